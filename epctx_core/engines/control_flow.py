"""Runs of a Loop or a Scan over a function that runs its subgraph once: for sessions,
and for the reference engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from epctx_core.errors import RuntimeException

if TYPE_CHECKING:
    from epctx_core.plugin import TensorType

Arrays: TypeAlias = "Sequence[np.ndarray]"
"""Arrays in the order of a graph's inputs or outputs."""
Memory: TypeAlias = "Sequence[np.ndarray | None]"
"""An array for each output of a model or a step to write into; None where the caller
has none.
"""
RunSubgraph: TypeAlias = Callable[[list[Any]], Sequence[Any]]
"""Runs a subgraph once: takes its inputs in order, gives its outputs in order."""


def run_loop(
    run_subgraph: RunSubgraph,
    inputs: Sequence[Any],
    input_types: Sequence[TensorType],
    types: Sequence[TensorType],
) -> list[Any]:
    """Return the outputs of a Loop.

    Args:
        run_subgraph: takes (iteration, condition, carried...) and gives (condition,
            carried..., scanned...).
        inputs: the trip count and the condition, None for one that is left out; then
            the carried values.
        input_types: declared types of the subgraph's inputs.
        types: declared types of its outputs.

    Raises:
        RuntimeException: a trip count or a condition is not one element.
    """
    trips, condition, *carried = inputs
    count = len(carried)
    limit = None if trips is None else int(take_only(trips, "the trip count of Loop"))
    going = condition is None or bool(take_only(condition, "the condition of Loop"))
    scanned: list[list[Any]] = [[] for _ in types[1 + count :]]
    iteration = 0
    while going and (limit is None or iteration < limit):
        counters = (
            _make_scalar(iteration, np.int64, input_types[0]),
            _make_scalar(going, np.bool_, input_types[1]),
        )
        condition, *results = run_subgraph([*counters, *carried])
        going = bool(take_only(condition, "the condition that a Loop's subgraph gives"))
        carried = results[:count]
        for rows, row in zip(scanned, results[count:], strict=True):
            rows.append(row)
        iteration += 1

    if not iteration:
        # They are still inputs, which a result never aliases.
        carried = [copy.copy(value) for value in carried]
    return [*carried, *map(_stack, scanned, types[1 + count :])]


def run_scan(
    run_subgraph: RunSubgraph,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any],
    types: Sequence[TensorType],
) -> list[Any]:
    """Return the outputs of a Scan, from version 9 on.

    Args:
        run_subgraph: takes (states..., slices...) and gives (states..., slices...).
        inputs: the states, then the values that are sliced.
        attributes: the node's.
        types: declared types of the subgraph's outputs.

    Raises:
        RuntimeException: the values that are sliced have different lengths.
    """
    count = len(inputs) - int(attributes["num_scan_inputs"])
    states = list(inputs[:count])
    sources = inputs[count:]

    def get_setting(name: str, values: Sequence[Any]) -> Sequence[int]:
        return attributes.get(f"scan_{name}") or [0] * len(values)

    axes = get_setting("input_axes", sources)
    directions = get_setting("input_directions", sources)
    sliced = [
        np.moveaxis(value, axis, 0)[:: -1 if backwards else 1]
        for value, axis, backwards in zip(sources, axes, directions, strict=True)
    ]
    lengths = {len(value) for value in sliced}
    if len(lengths) != 1:
        raise RuntimeException(
            f"the scan inputs of a Scan have different lengths: {sorted(lengths)}."
        )
    rows: list[list[Any]] = [[] for _ in types[count:]]
    length = lengths.pop()
    for index in range(length):
        # A range of one keeps what an index would not: strings and rank 0 stay arrays.
        slices = [
            np.ascontiguousarray(v[index : index + 1]).reshape(v.shape[1:])
            for v in sliced
        ]
        results = run_subgraph([*states, *slices])
        states = list(results[:count])
        for kept, row in zip(rows, results[count:], strict=True):
            kept.append(row)

    if not length:
        states = [copy.copy(value) for value in states]
    axes = get_setting("output_axes", rows)
    directions = get_setting("output_directions", rows)
    joined = []
    for kept, axis, backwards, type_ in zip(
        rows, axes, directions, types[count:], strict=True
    ):
        moved = np.moveaxis(_stack(kept[::-1] if backwards else kept, type_), 0, axis)
        joined.append(np.ascontiguousarray(moved).reshape(moved.shape))

    return [*states, *joined]


def take_only(value: Any, what: str) -> Any:
    """Return the only element of a value.

    Raises:
        RuntimeException: it has none or several; `what` names it.
    """
    array = np.asarray(value)
    if array.size != 1:
        raise RuntimeException(f"{what} has {array.size} elements; it needs one.")
    return array.reshape(-1)[0]


def _make_scalar(
    value: int, dtype: type[np.generic], declared: TensorType
) -> np.ndarray:
    """Return a scalar, or one element of rank 1 where the subgraph declares that."""
    return np.full(
        (1,) if declared.shape is not None and len(declared.shape) == 1 else (),
        value,
        dtype,
    )


def _stack(rows: Arrays, declared: TensorType) -> np.ndarray:
    """Stack rows along a new first axis; without rows the declared shape says what the
    others would be.
    """
    if rows:
        return np.stack(rows)
    shape = [d if isinstance(d, int) else 0 for d in declared.shape or ()]
    return np.empty((0, *shape), declared.dtype or np.float32)
