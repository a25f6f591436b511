"""Hooks of the contract: the methods that the core calls on an EP.

An EP implements them as methods marked with `hookimpl` on its `ExecutionProvider`
class. An implementation may take fewer arguments than the specification (the core
passes what is named), never unknown ones, none with a default, and no wrappers. All but
the first two are optional.

All code that calls, checks, traces or documents hooks reads the table
`HOOKS`. A new hook is a specification in `HookSpecs`, which is its row, and its call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import pluggy

from epctx_core.plugin.provider import ExecutionProvider

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from epctx_core.plugin.storage import ContextReader, ContextWriter, EPContextNode
    from epctx_core.plugin.types import CompiledPartition, ContextNode
    from epctx_core.plugin.views import (
        ComputeCapability,
        GraphView,
        Partition,
        Refusal,
        TensorView,
    )

PLUGIN_API = 1
"""Version of this contract.

It evolves by additions; an EP declares the one it was written for.
"""

PROJECT = "epctx"
hookimpl = pluggy.HookimplMarker(PROJECT)

_Specification = TypeVar("_Specification", bound=Callable[..., Any])
_FACTS = "epctx_facts"


class Hook(NamedTuple):
    """Row of the table of hooks.

    Attributes:
        name: the hook's name.
        arguments: each argument's type as the specification writes it, in order; `ep`
            first, but for class methods.
        result: the type of the result, written likewise. Results are checked against
            it.
        needed_for: `run` or `save and load` for a hook that an EP needs to do so; empty
            for an optional one.
        in_runs: whether it is called while a session is open, by runs and by the host.
            All others belong to a compile or a load, which the host can cancel.
        caller_checks: whether the caller checks the items of the result against the
            arguments.
    """

    name: str
    arguments: Mapping[str, str]
    result: str
    needed_for: str = ""
    in_runs: bool = False
    caller_checks: bool = False

    @classmethod
    def of(cls, specification: Callable[..., Any]) -> Hook:
        """Return the row of a specification."""
        types = dict(specification.__annotations__)
        result = types.pop("return")
        facts = getattr(specification, _FACTS, {})
        return cls(
            name=specification.__name__,
            arguments=MappingProxyType(types),
            result=result,
            **facts,
        )

    @property
    def returns_list(self) -> bool:
        """True if the result is a list; a tuple is accepted, too."""
        return self.result.startswith("Sequence[")

    @property
    def may_return_none(self) -> bool:
        """True if None is allowed instead of a list."""
        return self.returns_list and self.result.endswith("] | None")

    @property
    def result_types(self) -> tuple[str, ...]:
        """Names of the types allowed for a result, or for each item of a list."""
        return tuple(
            self.result.removeprefix("Sequence[").partition("]")[0].split(" | ")
        )

    @property
    def expected(self) -> str:
        """Expected types of a result, or of each item of a list, in words."""
        return " or ".join(
            name
            if name == "None"
            else f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"
            for name in self.result_types
        )

    def implementation(
        self, function: Callable[..., Any], **marks: Any
    ) -> Callable[..., Any]:
        """Mark a function that takes `self` and all arguments of the hook as its
        implementation.
        """
        functools.update_wrapper(function, getattr(HookSpecs, self.name), updated=())
        marked: Callable[..., Any] = hookimpl(function, **marks)
        return marked


def hookspec(**facts: Any) -> Callable[[_Specification], _Specification]:
    """Mark a specification with the facts of its row that its signature does not have;
    see `Hook`.
    """

    def mark(function: _Specification) -> _Specification:
        setattr(function, _FACTS, facts)
        return pluggy.HookspecMarker(PROJECT)(function, firstresult=True)

    return mark


class HostHookSpecs(Protocol):
    """Specifications of hooks that plugins of hosts implement, and EPs do not."""

    @hookspec()
    def transform_model(
        self, model: onnx.ModelProto, weights: Mapping[str, TensorView], level: int
    ) -> onnx.ModelProto | None:
        """Return an equal model, or None to leave it unchanged.

        Called once for each model that is compiled or explained, or run as it is,
        before any EP and any optimisation, at every level and also where no EP takes
        part; plugins in the host's order. Arguments and result are those of
        `HookSpecs.optimize_model`. Same model, same result: caches find what was
        compiled by the plugin's attribute `version`, a text.
        """


class HookSpecs(Protocol):
    """Specifications of hooks; `ep` is the EP name, which implementations may leave out
    like any argument.
    """

    @hookspec(needed_for="run")
    def get_capability(
        self, ep: str, graph: GraphView
    ) -> Sequence[ComputeCapability | Refusal]:
        """Return the unassigned nodes of a graph that this EP takes, and the reasons
        why it refuses others.

        Called once for each graph, subgraphs of control-flow nodes before the graph
        that contains them; again if an EP before it failed to compile and the host lets
        that pass. In a session over a context model, an EP whose nodes are there is
        asked only if it `keeps_nodes`, and only claims with `keep_nodes` count: what to
        compile was decided before. Must be pure: same graph, same
        result, no side effects; the instance may keep what it computed, such as what it
        compiled (see `ComputeCapability.token`). Usually one call of
        `supported_partitions(graph, is_supported)`.
        """

    @hookspec()
    def optimize_model(
        self,
        ep: str,
        model: onnx.ModelProto,
        weights: Mapping[str, TensorView],
        level: int,
    ) -> onnx.ModelProto | None:
        """Return the model in the form that this EP prefers, or None to leave it
        unchanged.

        Called once before partitioning, EPs in order of priority, each with the model
        that the previous one returned. `model` is the EP's own copy; its large weights
        are external tensors with their bytes in `weights`. The result has the same
        inputs and outputs: names, order and types. Unchanged weights stay external
        under their names; new ones are inline. `level` is the number of the host's
        `GraphOptimizationLevel`. The core restores the metadata of the model. Not
        called for subgraphs of control flow, nor for a model that is already compiled.
        """

    @hookspec(needed_for="run", caller_checks=True)
    def compile(
        self, ep: str, partitions: Sequence[Partition]
    ) -> Sequence[CompiledPartition]:
        """Compile partitions; return one `CompiledPartition` for each, in order.

        Called with all partitions known so far, and possibly again with further ones,
        also after it raised (`ep.on_compile_failure=next`): `get_ep_context_nodes` then
        describes no partition of that call. Under purpose EXPORT no device is opened
        and `run` may be None (an EP whose compiler needs a device says so in
        `availability`). Weight views end with the call unless the EP keeps a reference
        to them.
        """

    @hookspec(needed_for="save and load")
    def get_ep_context_nodes(
        self, ep: str, writer: ContextWriter
    ) -> Sequence[EPContextNode]:
        """Describe one EPContext node for each compiled partition, and write the
        payloads.

        May be called any number of times from the end of `compile` until `shutdown`,
        with the same result each time. The core writes name, partition_name, source,
        embed_mode and ep_cache_context.

        In a share group it is called with `writer.final` False for each member; then
        for the last one once more with True, to write what all members left in
        `ProviderContext.workspace`.
        """

    @hookspec(needed_for="save and load", caller_checks=True)
    def load_context(
        self, ep: str, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Turn this EP's EPContext nodes into runnables, one for each node, in order.

        Primaries come before references. May be called again with further nodes, and
        must not assume that this instance compiled anything. Under purpose EXPORT only
        where `ExecutionProvider.loads_without_device` is set.
        """

    @hookspec(in_runs=True, caller_checks=True)
    def allocate(
        self, ep: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> np.ndarray:
        """Return uninitialised, writable, C-contiguous memory for an input or output of
        this EP.

        Called in `run`, from many threads, for what is computed while a model runs: the
        outputs of this EP's partitions, and what other EPs or the CPU EP make for its
        inputs. Used where all outputs of a step have a known type and shape. The memory
        must not be reused while the array exists, which may be after the session:
        outputs of the model are the caller's.
        """

    @hookspec(in_runs=True)
    def set_dynamic_options(self, ep: str, options: Mapping[str, str]) -> None:
        """Apply options that may change while a session lives.

        With `ExecutionProvider.dynamic_options` only options declared there arrive,
        their values checked. Without, all that the host set do: raise ValueError for an
        unknown one.
        """

    @hookspec(in_runs=True)
    def on_run_start(self, ep: str, tag: str) -> None:
        """Called before each `run` of the session, with the tag of its run options."""

    @hookspec(in_runs=True)
    def on_run_end(self, ep: str, tag: str) -> None:
        """Called after each `run` of the session, also after one that failed."""

    @hookspec()
    def shutdown(self, ep: str) -> None:
        """Release everything; called exactly once, also after a failed compile."""


HOOKS: Mapping[str, Hook] = {
    name: Hook.of(spec)
    for name, spec in vars(HookSpecs).items()
    if hasattr(spec, _FACTS)
}
"""Hooks of an instance, by name."""
CLASS_METHODS: Mapping[str, Hook] = {
    name: Hook.of(method.__func__)
    for name, method in vars(ExecutionProvider).items()
    if isinstance(method, classmethod)
}
"""Class methods that the core calls before there is an instance, by name; they are not
marked with `hookimpl`.
"""
CONTEXT_HOOKS = tuple(
    hook.name for hook in HOOKS.values() if hook.needed_for == "save and load"
)
"""Hooks of an EP that writes and loads context models."""
