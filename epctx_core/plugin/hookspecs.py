"""The hooks of the contract: what the core calls on an EP, when, and what it expects back.

An EP implements them as methods marked with `hookimpl` on its `ExecutionProvider` class. An
implementation may take fewer arguments than the specification (pluggy passes what is named), never
unknown ones, none with a default, and no wrappers. All but the first two are optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from epctx_core.plugin.kernels import KernelLookup, KernelRegistry
    from epctx_core.plugin.partition import CompiledPartition, Partition
    from epctx_core.plugin.storage import ContextReader, ContextWriter
    from epctx_core.plugin.types import ComputeCapability, ContextNode, EPContextNode, Refusal
    from epctx_core.plugin.views import GraphView, TensorView

PLUGIN_API = 1
"""The version of this contract. It evolves by additions; an EP declares the one it was written for."""

PROJECT = "epctx"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """The specifications; `ep` is the EP type and serves host wrappers that trace or time calls."""

    @hookspec
    def get_capability(
        self, ep: str, graph: GraphView, kernels: KernelLookup
    ) -> Sequence[ComputeCapability | Refusal]:
        """Say which of the graph's unassigned nodes this EP takes, and why not the others.

        Called once for each graph, bodies of control-flow nodes before the graph that holds them.
        Must be pure: same graph, same answer, no side effects. Usually one call of
        `supported_partitions(graph, is_supported)`.
        """
        raise NotImplementedError

    @hookspec
    def optimize_model(
        self, ep: str, model: onnx.ModelProto, weights: Mapping[str, TensorView], level: int
    ) -> onnx.ModelProto | None:
        """Return the model as this EP would rather have it, or None to leave it as it is.

        Called once before partitioning, EPs in order of priority, each with the model that the one before
        it left. `model` is the EP's own copy; its large weights stand as external tensors whose bytes
        `weights` gives. The answer has the same inputs and outputs: names, order and types. Weights that
        are unchanged stay external under their names; new ones are inline. `level` is the number of the
        host's `GraphOptimizationLevel`. What the model says about itself is put back by the core. Not
        called for the bodies of control flow, nor for a model that is compiled already.
        """
        raise NotImplementedError

    @hookspec
    def compile(self, ep: str, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Compile partitions; return one `CompiledPartition` for each, in order.

        Called with all partitions known so far, and possibly again with further ones. Under purpose
        EXPORT no device is opened and `run` may be None (an EP whose compiler needs a device says so
        in `availability`). Weight views end with the call unless the
        EP keeps a reference to them.
        """
        raise NotImplementedError

    @hookspec
    def get_ep_context_nodes(self, ep: str, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Describe one EPContext node for each compiled partition, and write the payloads.

        May be called any number of times from the end of `compile` until `shutdown`, with the same
        answer each time. The core writes name, partition_name, source, embed_mode and
        ep_cache_context.

        In a share group it is called with `writer.final` False for each member; then for the last one
        once more with True, to write what all members left in `ProviderContext.workspace`.
        """
        raise NotImplementedError

    @hookspec
    def load_context(
        self, ep: str, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Turn this EP's EPContext nodes into runnables, one for each node, in order.

        Primaries come before references. May be called again with further nodes, and must not
        assume that this instance compiled anything. Under purpose EXPORT only where
        `ExecutionProvider.loads_without_device` is set.
        """
        raise NotImplementedError

    @hookspec
    def get_kernel_registry(self, ep: str) -> KernelRegistry | None:
        """Return the kernels with which this EP runs single nodes, if it has any.

        Called once a compile or session, before `get_capability`, which says with `fuse=False` what they
        run. An EP with this hook may leave out `compile`. In a session over a context model with EPContext
        nodes of this EP, only claims with `fuse=False` count: what to compile was decided before.
        """
        raise NotImplementedError

    @hookspec
    def allocate(self, ep: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return uninitialised, writable, C-contiguous memory for an input or output of this EP.

        Called in `run`, from many threads, for what is computed while a model runs: the outputs of this
        EP's partitions and kernels, and what other EPs or the CPU EP make for its inputs. Used where all outputs
        of a step have a known type and shape. The memory is nobody else's until the array is gone, which may be
        after the session: outputs of the model are the caller's.
        """
        raise NotImplementedError

    @hookspec
    def set_dynamic_options(self, ep: str, options: Mapping[str, str]) -> None:
        """Apply options that may change while a session lives.

        With `ExecutionProvider.dynamic_options` only options declared there arrive, their values checked.
        Without, all that the host set do: raise ValueError for an unknown one.
        """
        raise NotImplementedError

    @hookspec
    def on_run_start(self, ep: str, tag: str) -> None:
        """Called before each `run` of the session, with the tag of its run options."""
        raise NotImplementedError

    @hookspec
    def on_run_end(self, ep: str, tag: str) -> None:
        """Called after each `run` of the session, also after one that failed."""
        raise NotImplementedError

    @hookspec
    def shutdown(self, ep: str) -> None:
        """Release everything; called exactly once, also after a failed compile."""
        raise NotImplementedError


REQUIRED_HOOKS = ("get_capability", "compile")
"""What every EP has; one with `get_kernel_registry` may leave out `compile`."""
CONTEXT_HOOKS = ("get_ep_context_nodes", "load_context")
