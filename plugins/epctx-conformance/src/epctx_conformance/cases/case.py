"""A case of the conformance run: a model, its inputs, its expected outputs; and
comparison with what came out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

BFLOAT16_RTOL = 2**-6
"""Two units in the last place."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Values for one run.

    Attributes:
        inputs: values by name.
        outputs: what to expect, in the model's order; empty: nobody knows.
        may_refuse: whether a typed error is as good as the outputs.
    """

    inputs: dict[str, Any]
    outputs: list[Any]
    may_refuse: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and its data, both made when they are asked for.

    Attributes:
        name: unique among all cases of a run.
        model: gives the serialised model.
        data: gives one or more sets of inputs and outputs.
        rtol: share of a number by which a result may miss it, as of `numpy.allclose`;
            bfloat16 is allowed two units in the last place.
        atol: by how much besides; of a tuple each output has its own.
    """

    name: str
    model: Callable[[], bytes]
    data: Callable[[], list[Data]]
    rtol: float = 1e-3
    atol: float | tuple[float, ...] = 1e-7

    def for_output(self, number: int) -> Case:
        """Return the case with the tolerances of one output."""
        return (
            replace(self, atol=self.atol[number])
            if isinstance(self.atol, tuple)
            else self
        )


def difference(found: Any, expected: Any, case: Case) -> str:
    """Describe how a result differs from what a case expects; empty if it agrees within
    the case's tolerances.
    """
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return "another length"
        return next(
            filter(
                None,
                (difference(*pair, case) for pair in zip(found, expected, strict=True)),
            ),
            "",
        )
    if expected is None or isinstance(expected, dict) or found is None:
        return "" if found == expected else "another value"
    return _difference_of_arrays(np.asarray(found), np.asarray(expected), case)


def _difference_of_arrays(found: np.ndarray, expected: np.ndarray, case: Case) -> str:
    if found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}"
    if expected.dtype.kind in "OUST":
        same = np.array_equal(found.astype(object), expected.astype(object))
    elif found.dtype != expected.dtype:
        return f"{found.dtype} instead of {expected.dtype}"
    else:
        rtol = max(case.rtol, BFLOAT16_RTOL if expected.dtype.name == "bfloat16" else 0)
        if expected.dtype.type.__module__ != "numpy":
            found = found.astype(np.float32)
            expected = expected.astype(np.float32)
        same = np.allclose(found, expected, rtol=rtol, atol=case.atol, equal_nan=True)
    return "" if same else "other values"


def compute_digest(values: Iterable[Any]) -> str:
    """Return a digest of results, 16 hexadecimal digits: equal for equal bits, types
    and shapes.
    """
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, (list, tuple)):
            digest.update(f"[{len(value)}:{compute_digest(value)}]".encode())
        elif isinstance(value, dict):
            digest.update(repr(sorted(value.items())).encode())
        else:
            array = np.asarray(value)
            content = (
                repr(array.tolist()).encode()
                if array.dtype.hasobject
                else array.tobytes()
            )
            digest.update(f"{array.dtype}{array.shape}".encode() + content)
    return digest.hexdigest()[:16]
