"""Base class of EPs with kernels, over the hooks that every EP has."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from epctx_core.errors import EpctxError, InvalidGraph, PluginError
from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    ExecutionProvider,
    Refusal,
    hookimpl,
)
from epctx_kernels.definitions import KernelDef, KernelRegistry
from epctx_kernels.matching import KernelLookup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epctx_core.plugin import (
        ContextNode,
        EPContextNode,
        GraphView,
        NodeView,
        Partition,
    )

_CREATE = "KernelDef.create"


class KernelProvider(ExecutionProvider):
    """EP that runs single nodes by its kernels, instead of compiling partitions or
    beside that.

    A subclass has `get_kernel_registry`. The nodes stay in a context model, and a load
    asks the EP for them again. An EP that compiles, too, overrides the hooks, marks
    them with `hookimpl`, and calls these for what its kernels run.
    """

    keeps_nodes: ClassVar[bool] = True

    def get_kernel_registry(self) -> KernelRegistry | None:
        """Return the kernels, None for none; called once for each instance."""
        raise NotImplementedError(
            f"{type(self).__name__} has kernels and no get_kernel_registry"
        )

    @cached_property
    def _registry(self) -> KernelRegistry:
        registry: Any = self.get_kernel_registry()
        if registry is None:
            return KernelRegistry()
        if not isinstance(registry, KernelRegistry):
            raise PluginError(
                f"{self.name} gave a {type(registry).__name__} instead of a "
                "KernelRegistry.",
                hook="get_kernel_registry",
                hint="Return an `epctx_kernels.KernelRegistry`, or None.",
            )
        return registry

    def match(self, graph: GraphView) -> KernelLookup:
        """Return the kernels for the nodes of a graph.

        Raises:
            InvalidGraph: the model's metadata about operators are damaged.
        """
        return KernelLookup(self._registry, graph)

    @hookimpl
    def get_capability(self, graph: GraphView) -> list[ComputeCapability | Refusal]:
        """Claim each node that a kernel fits; refuse the others whose operator has
        kernels, with the reasons.

        Raises:
            InvalidGraph: see `match`.
            PluginError: a kernel constrains a parameter that its operator does not
                have.
        """
        lookup = self.match(graph)
        result: list[ComputeCapability | Refusal] = []
        for node in graph.nodes:
            if lookup.lookup(node) is not None:
                result.append(lookup.claim(node))
            elif (reason := lookup.refusal(node)) is not None:
                result.append(Refusal(reason, [node]))
        return result

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> list[CompiledPartition]:
        """Make the kernel of each claimed node.

        Raises:
            PluginError: a partition is none that `KernelLookup.claim` claimed, or
                `KernelDef.create` gave nothing that can be called.
        """
        return [CompiledPartition(_make_run(partition)) for partition in partitions]

    @hookimpl
    def get_ep_context_nodes(self) -> Sequence[EPContextNode]:
        """Return no nodes: those that kernels run stay in the model."""
        return []

    @hookimpl
    def load_context(self, nodes: Sequence[ContextNode]) -> Sequence[CompiledPartition]:
        """Refuse all: an EP that only has kernels wrote none.

        Raises:
            InvalidGraph: always.
        """
        raise InvalidGraph(
            f"{self.name} only has kernels and loads no EPContext node.",
            node=nodes[0].name,
            hint="Compile the source model again.",
        )


def _make_run(partition: Partition) -> Callable[..., Any]:
    """Return the `run` of a partition of one node: its kernel, which gets and gives
    what the node lists, and not the values at the partition's boundary.
    """
    kernel = partition.token
    if not isinstance(kernel, KernelDef):
        raise PluginError(
            f"{partition!r} is claimed without a kernel.",
            hook="get_capability",
            hint="Claim nodes that kernels run by `KernelLookup.claim`.",
        )
    (node,) = partition.nodes
    compute = _create(kernel, node)
    places = {value.name: place for place, value in enumerate(partition.inputs)}
    reads = [places.get(name) for name in (*node.inputs, *node.implicit_inputs)]
    # Results that nobody reads are not at the boundary.
    wanted = [node.outputs.index(value.name) for value in partition.outputs]
    is_whole = wanted == list(range(len(node.outputs)))

    def run(
        inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Any:
        given = [None if place is None else inputs[place] for place in reads]
        if kernel.takes_outputs:
            results = compute(given, outputs if is_whole else None)
        else:
            results = compute(given)
        if not isinstance(results, list | tuple):
            return results
        if len(results) != len(node.outputs):
            raise PluginError(
                f"the kernel {kernel} of {node.name!r} gave {len(results)} results for "
                f"{len(node.outputs)} outputs.",
                node=node.name,
                hook=_CREATE,
                hint="A kernel returns one array for each output of its node.",
            )
        results = [results[place] for place in wanted]
        return results if outputs is None else _place(results, outputs)

    return run


def _create(kernel: KernelDef, node: NodeView) -> Callable[..., Any]:
    compute: Any
    try:
        compute = kernel.create(node)
    except EpctxError:
        raise
    except Exception as error:
        raise PluginError(
            f"{_CREATE} failed for {node.name!r}: {type(error).__name__}: {error}",
            node=node.name,
            hook=_CREATE,
            hint="This is a mistake in the plugin; report it to its vendor.",
        ) from error
    if not callable(compute):
        raise PluginError(
            f"{_CREATE} gave a {type(compute).__name__} instead of a kernel for "
            f"{node.name!r}.",
            node=node.name,
            hook=_CREATE,
            hint="Return a function of a node's inputs.",
        )
    return compute  # type: ignore[no-any-return]


def _place(results: Sequence[Any], outputs: Sequence[np.ndarray]) -> list[Any]:
    """Copy results into given memory. What does not fit is returned as it is: the core
    says so.
    """
    placed = []
    for result, memory in zip(results, outputs, strict=True):
        fits = (
            isinstance(result, np.ndarray)
            and result.dtype == memory.dtype
            and result.shape == memory.shape
        )
        if fits and result is not memory:
            memory[...] = result
        placed.append(memory if fits else result)
    return placed
