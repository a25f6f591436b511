"""The limit of a protobuf: whether a context model can be stored in one is said as early as it can be known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from epctx_core.errors import Fail
from epctx_core.options import WeightlessMode

if TYPE_CHECKING:
    from epctx_core.compiling.initializers import InitializerPlacement
    from epctx_core.graph.weights import Weight
    from epctx_core.sessions.assignment import Assignment

PROTOBUF_LIMIT = (2 << 30) - 1
"""Bytes above which a protobuf cannot be written."""

_EMBED_LESS = "Set ep.context_embed_mode=0, so that payloads go into a file of their own."
_PLACE_OUTSIDE = (
    "Set ep.context_model_external_initializers_file_name (external_initializers_file_path of "
    "ModelCompiler), so that they go into a file of their own; or have an EP take more of the model."
)


def check_weights_fit(
    assignment: Assignment,
    placement: InitializerPlacement,
    weightless: WeightlessMode,
    *,
    embedded: bool,
) -> None:
    """Raise before anything is compiled if the weights alone exceed what a context model can hold.

    Args:
        assignment: who takes what.
        placement: where the initializers that stay go.
        weightless: which weights payloads leave in the source.
        embedded: whether payloads with the weights that EPs took are stored in the model.

    Raises:
        Fail: they do.
    """
    taken = list(_payload_weights(assignment, weightless)) if embedded else []
    stored = [*taken, *(w for w in _left_weights(assignment) if placement.stays_inside(w.nbytes))]
    once = {id(weight): weight for weight in stored}.values()
    if sum(weight.nbytes for weight in once) > PROTOBUF_LIMIT:
        # Equal weights are stored once in a payload. To know it costs reading them, so only here.
        by_content = {weight.digest: weight.nbytes for weight in once}
        check_size(sum(by_content.values()), embedded=embedded and bool(taken), at_least=True)


def check_size(size: int, *, embedded: bool, at_least: bool = False) -> None:
    """Raise if a context model of that many bytes is more than a protobuf can hold.

    Raises:
        Fail: it is.
    """
    if size > PROTOBUF_LIMIT:
        raise Fail(
            f"the context model would have {'at least ' if at_least else ''}{size:,} bytes; a protobuf holds at most "
            f"{PROTOBUF_LIMIT:,}.",
            hint=_EMBED_LESS if embedded else _PLACE_OUTSIDE,
        )


def _payload_weights(assignment: Assignment, weightless: WeightlessMode) -> Iterator[Weight]:
    """Yield the weights that EPs took and that their payloads hold."""
    if weightless is not WeightlessMode.ALL:
        for partition in assignment.partitions:
            for weight in partition.weights.values():
                if weightless is WeightlessMode.NONE or weight.extent is None:
                    yield weight


def _left_weights(assignment: Assignment) -> Iterator[Weight]:
    """Yield the weights that nodes which stay read; those of the main graph alone lie outside the protobuf."""
    graph = assignment.main.graph
    for node in assignment.main.left_over():
        for name in graph.inputs[node]:
            if name in graph.weights:
                yield graph.weights[name]
