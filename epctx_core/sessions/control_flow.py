"""If, Loop and Scan whose bodies hold EP work: executed here, each body by a plan of its own.

A body's plan takes the body's inputs, then the values of the enclosing scopes that it reads. ONNX
Runtime leaves such nodes whole to the CPU EP.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_core.errors import InvalidGraph, RuntimeException
from epctx_core.graph.view import attribute_value
from epctx_core.options.choices import CPU_EP
from epctx_core.sessions.plan import StepSpec, without_omitted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epctx_core.graph.index import GraphIndex
    from epctx_core.options.run import RunOptions
    from epctx_core.plugin import TensorType
    from epctx_core.sessions.plan import Plan

NestedRun = Callable[[Sequence[Any], "RunOptions | None"], Sequence[Any]]


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


def control_flow_step(graph: GraphIndex, node: int, plans: Mapping[str, Plan]) -> StepSpec:
    """Return the step of an If, Loop or Scan over plans of its bodies, by attribute.

    Raises:
        InvalidGraph: a body has not the inputs or outputs that its node needs.
    """
    explicit = graph.explicit_inputs[node]
    outer = tuple(dict.fromkeys(chain(*(plan.captured for plan in plans.values()))))
    places = {name: len(explicit) + place for place, name in enumerate(outer)}
    bodies = {}
    for name, plan in plans.items():
        index = graph.bodies[node][name]
        bodies[name] = Body(
            plan=plan,
            captured=[places[captured] for captured in plan.captured],
            input_types=[index.types.get(value) for value in index.input_names],
            output_types=[index.types.get(value) for value in index.output_names],
        )
    proto, called = graph.nodes[node], graph.node_name(node)
    given, wanted = len(explicit), len(graph.outputs[node])
    # An If's branches take nothing; a Loop's body gives the condition, too.
    needs = {"If": (0, wanted), "Loop": (given, wanted + 1)}.get(proto.op_type, (given, wanted))
    for name, body in bodies.items():
        found = len(body.input_types), len(body.output_types)
        if found != needs:
            raise InvalidGraph(
                f"the {name} of {called!r} has {found[0]} inputs and {found[1]} outputs; its node needs {needs[0]} and "
                f"{needs[1]}."
            )
    if proto.op_type == "If":
        run = _if(bodies["then_branch"], bodies["else_branch"])
    elif proto.op_type == "Loop":
        run = _loop(bodies["body"])
    else:
        attributes = {a.name: attribute_value(a) for a in proto.attribute if a.name not in plans}
        run = _scan(bodies["body"], given, attributes)
    return without_omitted(
        StepSpec(called, CPU_EP, run, (*explicit, *outer), graph.outputs[node], nested=True, in_place=False)
    )


def _if(then_branch: Body, else_branch: Body) -> NestedRun:
    def run(inputs: Sequence[Any], options: RunOptions | None) -> Sequence[Any]:
        branch = then_branch if _only(inputs[0], "the condition of If") else else_branch
        return branch.run((), inputs, options)

    return run


def _loop(body: Body) -> NestedRun:
    """Return what runs a Loop: its body takes (iteration, condition, carried...), gives (condition, carried..., scanned...)."""
    count = len(body.input_types) - 2
    types = body.output_types[1 + count :]

    def run(inputs: Sequence[Any], options: RunOptions | None) -> Sequence[Any]:
        trips = None if inputs[0] is None else int(_only(inputs[0], "the trip count of Loop"))
        going = inputs[1] is None or bool(_only(inputs[1], "the condition of Loop"))
        carried = list(inputs[2 : 2 + count])
        scanned: list[list[Any]] = [[] for _ in types]
        iteration = 0
        while going and (trips is None or iteration < trips):
            own = [
                _scalar(iteration, np.int64, body.input_types[0]),
                _scalar(going, np.bool_, body.input_types[1]),
            ]
            condition, *results = body.run([*own, *carried], inputs, options)
            going = bool(_only(condition, "the condition that a Loop's body gives"))
            carried = results[:count]
            for rows, row in zip(scanned, results[count:], strict=True):
                rows.append(row)
            iteration += 1
        if not iteration:
            # Nothing touched them: a result never aliases an input.
            carried = [copy.copy(value) for value in carried]
        return [*carried, *(_stacked(rows, t) for rows, t in zip(scanned, types, strict=True))]

    return run


def _scan(body: Body, explicit: int, attributes: Mapping[str, Any]) -> NestedRun:
    """Return what runs a Scan: its body takes (states..., slices...) and gives (states..., slices...)."""
    count = explicit - int(attributes["num_scan_inputs"])
    types = body.output_types[count:]
    input_axes = attributes.get("scan_input_axes", [0] * (explicit - count))
    input_reversed = attributes.get("scan_input_directions", [0] * (explicit - count))
    output_axes = attributes.get("scan_output_axes", [0] * len(types))
    output_reversed = attributes.get("scan_output_directions", [0] * len(types))

    def run(inputs: Sequence[Any], options: RunOptions | None) -> Sequence[Any]:
        states = list(inputs[:count])
        sliced = [
            np.moveaxis(value, axis, 0)[:: -1 if reverse else 1]
            for value, axis, reverse in zip(inputs[count:explicit], input_axes, input_reversed, strict=True)
        ]
        lengths = {len(value) for value in sliced}
        if len(lengths) != 1:
            raise RuntimeException(f"the scan inputs of a Scan have different lengths: {sorted(lengths)}.")
        rows: list[list[Any]] = [[] for _ in types]
        length = lengths.pop()
        for place in range(length):
            # A range of one keeps what an index would not: strings and rank 0 stay arrays.
            slices = [
                np.ascontiguousarray(value[place : place + 1]).reshape(value.shape[1:]) for value in sliced
            ]
            results = body.run([*states, *slices], inputs, options)
            states = results[:count]
            for kept, row in zip(rows, results[count:], strict=True):
                kept.append(row)
        if not length:
            states = [copy.copy(value) for value in states]
        joined = []
        for kept, axis, reverse, kind in zip(rows, output_axes, output_reversed, types, strict=True):
            moved = np.moveaxis(_stacked(kept[::-1] if reverse else kept, kind), 0, axis)
            joined.append(np.ascontiguousarray(moved).reshape(moved.shape))
        return [*states, *joined]

    return run


def _only(value: Any, what: str) -> Any:
    array = np.asarray(value)
    if array.size != 1:
        raise RuntimeException(f"{what} has {array.size} elements; it needs one.")
    return array.reshape(-1)[0]


def _scalar(value: int, dtype: type[np.generic], declared: TensorType) -> np.ndarray:
    """Return a scalar, or one element of rank 1 where the body declares that."""
    return np.full((1,) if declared.shape is not None and len(declared.shape) == 1 else (), value, dtype)


def _stacked(rows: Sequence[np.ndarray], declared: TensorType) -> np.ndarray:
    """Stack rows along a new first axis; without rows the declared shape says what the others would be."""
    if rows:
        return np.stack(rows)
    shape = [d if isinstance(d, int) else 0 for d in declared.shape or ()]
    return np.empty((0, *shape), declared.dtype or np.float32)
