"""The cases of `onnx.backend.test` that the onnx package ships: a model, its inputs, what it has to give. Knows no epctx."""

from __future__ import annotations

import hashlib
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onnx.backend.test.case.test_case import TestCase

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
BFLOAT16_RTOL = 2**-6
"""Two units in the last place."""


class Data(NamedTuple):
    """Values for each input by its name, and the outputs in the model's order."""

    inputs: dict[str, Any]
    outputs: list[Any]


@cache
def cases() -> dict[str, TestCase]:
    """Return all cases by name, sorted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the data overflows on purpose
        found = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    return {case.name: case for case in sorted(found, key=lambda case: case.name)}


def model_bytes(case: TestCase) -> bytes:
    """Return a case's model."""
    if case.model is not None:
        return case.model.SerializeToString()
    return Path(case.model_dir, "model.onnx").read_bytes()


def data_of(case: TestCase) -> list[Data]:
    """Return a case's sets of inputs and outputs."""
    model = case.model or onnx.load(Path(case.model_dir, "model.onnx"))
    names = [value.name for value in model.graph.input]
    if case.data_sets is not None:
        sets = [tuple([_array(x) for x in xs] for xs in one) for one in case.data_sets]
    else:
        folders = sorted(Path(case.model_dir).glob("test_data_set_*"))
        sets = [
            (_stored(folder, "input", model.graph.input), _stored(folder, "output", model.graph.output))
            for folder in folders
        ]
    return [Data(dict(zip(names, inputs, strict=False)), list(outputs)) for inputs, outputs in sets]


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value  # onnxruntime takes no scalars


def _stored(folder: Path, start: str, declared: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    readings = {
        "tensor_type": (onnx.TensorProto, numpy_helper.to_array),
        "sequence_type": (onnx.SequenceProto, numpy_helper.to_list),
        "optional_type": (onnx.OptionalProto, numpy_helper.to_optional),
    }
    values = []
    for number in range(len(list(folder.glob(f"{start}_*.pb")))):
        message, read = readings[declared[number].type.WhichOneof("value")]
        values.append(read(message.FromString((folder / f"{start}_{number}.pb").read_bytes())))
    return values


def difference(found: Any, expected: Any, case: TestCase) -> str:
    """Return how a result is not what a case expects; empty if it is, within the case's own tolerance."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return "another length"
        return next(filter(None, (difference(*pair, case) for pair in zip(found, expected, strict=True))), "")
    if expected is None or isinstance(expected, dict) or found is None:
        return "" if found == expected else "another value"
    return _difference_of_arrays(np.asarray(found), np.asarray(expected), case)


def _difference_of_arrays(found: np.ndarray, expected: np.ndarray, case: TestCase) -> str:
    if found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}"
    if expected.dtype.kind in "OUST":
        same = np.array_equal(found.astype(object), expected.astype(object))
    elif found.dtype != expected.dtype:
        return f"{found.dtype} instead of {expected.dtype}"
    else:
        rtol = max(case.rtol, BFLOAT16_RTOL if expected.dtype.name == "bfloat16" else 0)
        if expected.dtype.type.__module__ != "numpy":
            found, expected = found.astype(np.float32), expected.astype(np.float32)
        same = np.allclose(found, expected, rtol=rtol, atol=case.atol, equal_nan=True)
    return "" if same else "other values"


def compute_digest(values: Iterable[Any]) -> str:
    """Return a digest of results: equal for equal bits, types and shapes."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, (list, tuple)):
            digest.update(f"[{len(value)}:{compute_digest(value)}]".encode())
        elif isinstance(value, dict):
            digest.update(repr(sorted(value.items())).encode())
        else:
            array = np.asarray(value)
            content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
            digest.update(f"{array.dtype}{array.shape}".encode() + content)
    return digest.hexdigest()[:16]
