"""How many bytes of weights a share group does not store again, counted by content."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epctx_core.graph.subgraph import GraphPartition


def shared_weight_bytes(members: Iterable[Iterable[GraphPartition]]) -> int:
    """Return what the members' weights have each by itself, less what they have together.

    Counted are the models' own bytes; an EP may store them in another type. Equal weights inside one member
    count once.
    """
    shared = 0
    known: set[tuple[str, str, int]] = set()
    for partitions in members:
        weights = {
            (partition.ep, weight.digest, weight.nbytes)
            for partition in partitions
            for weight in partition.weights.values()
        }
        shared += sum(nbytes for _, _, nbytes in weights & known)
        known |= weights
    return shared
