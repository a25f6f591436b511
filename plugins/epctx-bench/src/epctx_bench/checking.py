"""Differences of the columns' outputs to those of a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from epctx_bench.column_measurement import ColumnMeasurement

_TINY = 1e-6
"""Keeps the relative difference finite where the reference is zero."""


def compare_outputs(
    measurements: Sequence[ColumnMeasurement],
    reference: ColumnMeasurement | None,
    folder: Path,
) -> dict[int, dict[str, Any]]:
    """Return the largest differences of each column by its index; a column that cannot
    be compared has a note instead.

    Args:
        measurements: the columns of one model.
        reference: computes the expected outputs; None if there is no reference.
        folder: folder for the outputs.
    """
    if reference is None:
        for measurement in measurements:
            measurement.notes.append(
                "not checked: there is no session of the original model to compare with"
            )
        return {}
    expected = reference.compute_outputs(folder / "expected.npz")
    name = reference.column.heading
    checks = {}
    for index, measurement in enumerate(measurements):
        if measurement is reference or measurement.error is not None:
            continue
        try:
            outputs = measurement.compute_outputs(folder / f"{index}.npz")
            checks[index] = {"reference": name, **measure_distance(outputs, expected)}
        except (EpctxError, ValueError) as error:
            reason = error.message if isinstance(error, EpctxError) else error
            measurement.notes.append(f"not checked: {reason}")
    return checks


def measure_distance(
    outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Return the largest absolute difference of all outputs, and the largest one
    relative to the largest number of its output.

    NaN equals NaN at the same index, and infinity the same infinity.

    Raises:
        ValueError: names or shapes differ, or outputs are no numbers.
    """
    if outputs.keys() != expected.keys():
        raise ValueError("the outputs have other names than those of the reference")
    absolute = relative = 0.0
    for name, target in expected.items():
        array = outputs[name]
        if array.shape != target.shape:
            raise ValueError(
                f"the output {name!r} has shape {list(array.shape)}, the reference "
                f"{list(target.shape)}"
            )
        if {array.dtype.kind, target.dtype.kind} - {*"biufc"}:
            raise ValueError(f"the output {name!r} has no numbers")
        distance, size = _measure_output(array, target)
        absolute = max(absolute, distance)
        relative = max(relative, distance / (size + _TINY))
    return {"max_abs": absolute, "max_rel": relative}


def _measure_output(array: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Return the largest difference and the largest finite expected number."""
    # Of complex numbers, where one is: the sum of both types.
    wide = np.result_type(array, target, np.float64)
    found, expected = array.astype(wide), target.astype(wide)
    same = np.isclose(found, expected, rtol=0, atol=0, equal_nan=True)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.where(same, 0.0, np.abs(found - expected))

    size = np.abs(expected[np.isfinite(expected)])
    largest = np.max(np.nan_to_num(distance, nan=np.inf, posinf=np.inf), initial=0.0)
    return float(largest), float(np.max(size, initial=0.0))
