"""Kernels: how an EP runs single nodes instead of compiling partitions.

Matching follows ONNX Runtime since its format 5: operator, version range and type constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.plugin.views import NodeView

Kernel: TypeAlias = "Callable[[Sequence[np.ndarray | None]], Sequence[np.ndarray]]"
"""Takes the node's `inputs` (None for an omitted one), then its `implicit_inputs`; gives its outputs."""


@dataclass(frozen=True, kw_only=True)
class KernelDef:
    """One kernel.

    Attributes:
        domain, op_type: the operator; the default domain is the empty string.
        since_version: the first operator version covered.
        end_version: the last one covered, or None for all later ones.
        type_constraints: the operator's type variable (`T`) to the element types allowed
            (`onnx.TensorProto.DataType`); a variable not named is not restricted.
        create: makes a stateless kernel for one node; called once a node when a session is made.
    """

    domain: str = ""
    op_type: str
    since_version: int
    end_version: int | None = None
    type_constraints: Mapping[str, frozenset[int]] = field(default_factory=dict)
    create: Callable[[NodeView], Kernel]


class KernelRegistry:
    """The kernels of one EP."""

    def __init__(self, kernels: Sequence[KernelDef] = ()) -> None:
        self._by_operator: dict[tuple[str, str], list[KernelDef]] = {}
        for kernel in kernels:
            self.add(kernel)

    def add(self, kernel: KernelDef) -> None:
        """Add a kernel; the first match wins at look-up."""
        self._by_operator.setdefault((kernel.domain, kernel.op_type), []).append(kernel)

    def candidates(self, domain: str, op_type: str) -> Sequence[KernelDef]:
        """Return the kernels of one operator, in the order in which they were added."""
        return tuple(self._by_operator.get((domain, op_type), ()))

    def __iter__(self) -> Iterator[KernelDef]:
        for kernels in self._by_operator.values():
            yield from kernels


class KernelLookup(Protocol):
    """Given to `get_capability`: which of the EP's own kernels fits a node."""

    def lookup(self, node: NodeView) -> KernelDef | None:
        """Return the kernel that matches the node's operator, version and types, or None."""
