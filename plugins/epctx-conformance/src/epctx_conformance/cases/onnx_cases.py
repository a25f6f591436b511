"""The cases of `onnx.backend.test` that the onnx package ships. Knows no epctx."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from epctx_conformance.cases.case import Case, Data

if TYPE_CHECKING:
    from onnx.backend.test.case.test_case import TestCase

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


def load_cases(kinds: Iterable[str] = KINDS) -> dict[str, Case]:
    """Return all cases of some kinds by name, sorted; making those of single nodes
    takes some seconds.
    """
    drawn = np.random.get_state()  # noqa: NPY002 - onnx's cases set it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # making the data overflows on purpose
            cases = [case for kind in kinds for case in load_model_tests(kind=kind)]
    finally:
        np.random.set_state(drawn)  # noqa: NPY002
    return {
        case.name: _as_case(case) for case in sorted(cases, key=lambda case: case.name)
    }


def _as_case(case: TestCase) -> Case:
    model = partial(_read_model, case)
    data = partial(_read_data, case)
    return Case(name=case.name, model=model, data=data, rtol=case.rtol, atol=case.atol)


def _read_model(case: TestCase) -> bytes:
    if case.model is not None:
        return bytes(case.model.SerializeToString())
    return Path(str(case.model_dir), "model.onnx").read_bytes()


def _read_data(case: TestCase) -> list[Data]:
    model = case.model or onnx.load(Path(str(case.model_dir), "model.onnx"))
    names = [value.name for value in model.graph.input]
    if case.data_sets is not None:
        sets = [
            ([_make_array(x) for x in inputs], [_make_array(x) for x in outputs])
            for inputs, outputs in case.data_sets
        ]
    else:
        folders = sorted(Path(str(case.model_dir)).glob("test_data_set_*"))
        sets = [
            (
                _read_stored(folder, "input", model.graph.input),
                _read_stored(folder, "output", model.graph.output),
            )
            for folder in folders
        ]
    return [
        Data(inputs=dict(zip(names, inputs, strict=False)), outputs=outputs)
        for inputs, outputs in sets
    ]


def _make_array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return (
        np.asarray(value) if isinstance(value, np.generic) else value
    )  # onnxruntime takes no scalars


def _read_stored(
    folder: Path, start: str, declared: Sequence[onnx.ValueInfoProto]
) -> list[Any]:
    readings: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "tensor_type": (onnx.TensorProto, numpy_helper.to_array),
        "sequence_type": (onnx.SequenceProto, numpy_helper.to_list),
        "optional_type": (onnx.OptionalProto, numpy_helper.to_optional),
    }
    values = []
    for number in range(len(list(folder.glob(f"{start}_*.pb")))):
        message, read = readings[str(declared[number].type.WhichOneof("value"))]
        values.append(
            read(message.FromString((folder / f"{start}_{number}.pb").read_bytes()))
        )
    return values
