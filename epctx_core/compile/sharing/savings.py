"""How many bytes of weights a share group does not store again, counted by content."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epctx_core.graph.subgraph import GraphPartition


@dataclass(kw_only=True)
class Savings:
    """Bytes of the members' weights.

    Attributes:
        saved: what each member by itself would store, less what they store together.
    """

    saved: int = 0
    _stored: set[tuple[str, str, int]] = field(default_factory=set)

    def with_more(self, members: Iterable[Iterable[GraphPartition]]) -> Savings:
        """Return what it is with further members; this one stays as it is."""
        more = Savings(saved=self.saved, _stored=set(self._stored))
        for partitions in members:
            more.add(partitions)
        return more

    def add(self, partitions: Iterable[GraphPartition]) -> None:
        """Count one member; of equal weights inside it, one is stored in any case."""
        weights = {
            (partition.ep, weight.digest, weight.nbytes)
            for partition in partitions
            for weight in partition.weights.values()
        }
        self.saved += sum(nbytes for _, _, nbytes in weights & self._stored)
        self._stored |= weights
