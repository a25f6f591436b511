"""Errors of EPContext nodes, those of `epctx compare --by-partition --json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_report.measurements import read_json, refuse

if TYPE_CHECKING:
    from os import PathLike

    from epctx_report.cut import Cut

_COMPARE = "epctx compare --by-partition --json"
_KINDS = ("own", "inherited", "total")
_NUMBERS = ("max_abs", "mean_abs", "max_rel", "snr_db", "cosine")
_STEPS = (80, 60, 50, 40, 30, 20)
"""Signal-to-noise ratios in dB at which the colour of a box changes: rounding to
float32 is above the first one, to float16 above the second, and to 8 bits above 30.
"""


def read_errors(cut: Cut, file: str | PathLike[str] | None) -> dict[str, Any] | None:
    """Return the errors by partition that the page shows; None without a file.

    Args:
        cut: cut of the context model.
        file: the JSON of `epctx compare --by-partition`.

    Raises:
        NoSuchFile, InvalidArgument: there is no such file, or it is another one.
    """
    if file is None:
        return None
    path = Path(file)
    data = read_json(path, _COMPARE)
    boxes = cut.contexts
    try:
        found = data["by_partition"]
        rows = found["rows"]
        uncompared = {each["partition"]: each["reason"] for each in found["uncompared"]}
        names = {row["partition"] for row in rows} | uncompared.keys()
        lost = names - boxes.keys()
        return {
            "steps": _STEPS,
            "inputs": int(found["inputs"]),
            "rows": [
                _read_row(row, boxes[row["partition"]])
                for row in rows
                if row["partition"] not in lost
            ],
            "uncompared": [
                {"box": boxes[name], "reason": str(reason)}
                for name, reason in uncompared.items()
                if name not in lost
            ],
            "note": (
                f"{len(lost):,} of {len(names):,} partitions in {path.name} are not in "
                "this model: is it a comparison of another model?"
                if lost
                else ""
            ),
        }
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise refuse(path, _COMPARE) from error


def _read_row(row: Mapping[str, Any], box: int) -> dict[str, Any]:
    """Return the errors of an output, the worst of all inputs, and the step of its own
    error.
    """
    errors = {
        kind: {key: _read_number(row[kind]["worst"][key]) for key in _NUMBERS}
        for kind in _KINDS
    }
    ratio = errors["own"]["snr_db"]
    if ratio is None:
        # Infinite if the values are equal, or if the error is.
        ratio = -math.inf if errors["own"]["max_abs"] is None else math.inf
    step = sum(ratio < bound for bound in _STEPS)
    return {"box": box, "output": str(row["output"]), "step": step, **errors}


def _read_number(value: Any) -> float | None:
    """Return a number, or None for one that is infinite.

    Raises:
        ValueError: it is none that JSON has.
    """
    if value is None:
        return None
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number
