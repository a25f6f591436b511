"""If, Loop and Scan whose bodies hold EP work: executed here, each body by a plan of its own.

A body's plan takes the body's inputs, then the values of the enclosing scopes that it reads. ONNX
Runtime leaves such nodes whole to the CPU EP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epctx_core.options import RunOptions
    from epctx_core.plugin import TensorType
    from epctx_core.runtime.plan import Plan

NestedRun = Callable[[Sequence[Any], "RunOptions | None"], Sequence[Any]]

EXECUTABLE = {"If": 1, "Loop": 1, "Scan": 9}
"""Operators executed here, each from this version of the default domain on; Scan-8 had other inputs."""


@dataclass(frozen=True, kw_only=True)
class Body:
    """A body ready to run.

    Attributes:
        plan: its inputs are the body's own, then the captured values.
        captured: where the captured values stand among the node's inputs.
        input_types, output_types: of the body's own inputs and outputs.
    """

    plan: Plan
    captured: Sequence[int]
    input_types: Sequence[TensorType]
    output_types: Sequence[TensorType]

    def run(self, own: Sequence[Any], node_inputs: Sequence[Any], options: RunOptions | None) -> list[Any]:
        """Run the body once."""
        return self.plan.run([*own, *(node_inputs[place] for place in self.captured)], options)


def make_control_flow(
    op_type: str, explicit_inputs: int, attributes: Mapping[str, Any], bodies: Mapping[str, Body]
) -> NestedRun:
    """Return what runs a control-flow node.

    Args:
        op_type: If, Loop or Scan.
        explicit_inputs: how many inputs the node itself has; captured values follow them.
        attributes: the node's attributes.
        bodies: attribute name to body.
    """
    if op_type == "If":
        return _If(bodies["then_branch"], bodies["else_branch"]).run
    if op_type == "Loop":
        return _Loop(bodies["body"], explicit_inputs).run
    return _Scan(bodies["body"], explicit_inputs, attributes).run


class _If:
    def __init__(self, then_branch: Body, else_branch: Body) -> None:
        self._branches = (else_branch, then_branch)

    def run(self, inputs: Sequence[Any], options: RunOptions | None) -> Sequence[Any]:
        return self._branches[_truth(inputs[0], "the condition of If")].run((), inputs, options)


class _Loop:
    """The body takes (iteration, condition, carried...) and gives (condition, carried..., scanned...)."""

    def __init__(self, body: Body, explicit_inputs: int) -> None:
        self._body = body
        self._explicit = explicit_inputs
        self._carried = len(body.input_types) - 2

    def run(self, inputs: Sequence[Any], options: RunOptions | None) -> Sequence[Any]:
        body = self._body
        trips = None if inputs[0] is None else int(np.asarray(inputs[0]).reshape(-1)[0])
        has_condition = self._explicit > 1 and inputs[1] is not None
        going = bool(_truth(inputs[1], "the condition of Loop")) if has_condition else True
        carried = list(inputs[2 : 2 + self._carried])
        scanned: list[list[Any]] = [[] for _ in body.output_types[1 + self._carried :]]
        iteration = 0
        while going and (trips is None or iteration < trips):
            own = [
                _scalar(iteration, np.int64, body.input_types[0]),
                _scalar(going, np.bool_, body.input_types[1]),
            ]
            condition, *results = body.run([*own, *carried], inputs, options)
            going = bool(_truth(condition, "the condition that a Loop's body gives"))
            carried = results[: self._carried]
            for rows, row in zip(scanned, results[self._carried :], strict=True):
                rows.append(row)
            iteration += 1
        types = body.output_types[1 + self._carried :]
        return [*carried, *(_stacked(rows, t) for rows, t in zip(scanned, types, strict=True))]


class _Scan:
    """The body takes (states..., slices...) and gives (states..., slices...)."""

    def __init__(self, body: Body, explicit_inputs: int, attributes: Mapping[str, Any]) -> None:
        self._body = body
        self._explicit = explicit_inputs
        self._states = explicit_inputs - int(attributes["num_scan_inputs"])
        outputs = len(body.output_types) - self._states
        inputs = explicit_inputs - self._states
        self._input_axes = _per_value(attributes, "scan_input_axes", inputs)
        self._output_axes = _per_value(attributes, "scan_output_axes", outputs)
        self._input_reversed = _per_value(attributes, "scan_input_directions", inputs)
        self._output_reversed = _per_value(attributes, "scan_output_directions", outputs)

    def run(self, inputs: Sequence[Any], options: RunOptions | None) -> Sequence[Any]:
        states = list(inputs[: self._states])
        sliced = [
            np.moveaxis(value, axis, 0)[:: -1 if reverse else 1]
            for value, axis, reverse in zip(
                inputs[self._states : self._explicit], self._input_axes, self._input_reversed, strict=True
            )
        ]
        lengths = {len(value) for value in sliced}
        if len(lengths) != 1:
            raise InvalidGraph(f"the scan inputs of a Scan have different lengths: {sorted(lengths)}.")
        rows: list[list[Any]] = [[] for _ in self._output_axes]
        for place in range(lengths.pop()):
            slices = [np.ascontiguousarray(value[place]).reshape(value.shape[1:]) for value in sliced]
            results = self._body.run([*states, *slices], inputs, options)
            states = results[: self._states]
            for kept, row in zip(rows, results[self._states :], strict=True):
                kept.append(row)
        return [*states, *self._joined(rows)]

    def _joined(self, rows: Sequence[list[Any]]) -> list[np.ndarray]:
        types = self._body.output_types[self._states :]
        joined = []
        for kept, axis, reverse, kind in zip(
            rows, self._output_axes, self._output_reversed, types, strict=True
        ):
            stacked = _stacked(kept[::-1] if reverse else kept, kind)
            moved = np.moveaxis(stacked, 0, axis)
            joined.append(np.ascontiguousarray(moved).reshape(moved.shape))
        return joined


def _per_value(attributes: Mapping[str, Any], name: str, count: int) -> list[int]:
    return list(attributes.get(name, [0] * count))


def _truth(value: Any, what: str) -> int:
    array = np.asarray(value)
    if array.size != 1:
        raise InvalidGraph(f"{what} has {array.size} elements; it needs one.")
    return int(bool(array.reshape(-1)[0]))


def _scalar(value: int, dtype: type[np.generic], declared: TensorType) -> np.ndarray:
    """Return a scalar, or one element of rank 1 where the body declares that."""
    return np.full((1,) if declared.shape is not None and len(declared.shape) == 1 else (), value, dtype)


def _stacked(rows: Sequence[np.ndarray], declared: TensorType) -> np.ndarray:
    """Stack rows along a new first axis; without rows the declared shape says what the others would be."""
    if rows:
        return np.stack(rows)
    shape = [d if isinstance(d, int) else 0 for d in declared.shape or ()]
    return np.empty((0, *shape), declared.dtype or np.float32)
