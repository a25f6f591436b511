"""What stands in the host for an EP that compiles in another process and runs in this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from epctx_core.context.scratch import Scratch
from epctx_core.isolation.elsewhere import WorksElsewhere, compile_elsewhere, describe_nodes, shut_down
from epctx_core.isolation.loading import PrivatePayloads, by_partition
from epctx_core.plugin import CompiledPartition, Purpose, hookimpl
from epctx_core.registry.guard import contract_broken
from epctx_core.registry.instances import ProviderInstances

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.plugin import ProviderContext


class LoadsHere(WorksElsewhere):
    """Stands for an EP that compiles elsewhere and runs here: a second instance loads what the first compiled."""

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self.here = ProviderInstances()
        self.folders = ExitStack()
        try:
            self.here.add(self.isolated.record, self.isolated.cls, context)
        except BaseException:
            self.remote.shutdown()
            raise

    def purpose_there(self, purpose: Purpose) -> Purpose:  # noqa: ARG002 - the same for all
        """Return what the instance there is made for: it opens no device."""
        return Purpose.EXPORT

    def call_here(self, hook: str, **arguments: Any) -> Any:
        """Call a hook of the instance here."""
        return self.here.call(self.isolated.record.name, hook, **arguments)


@hookimpl
def _compile_and_load(self: LoadsHere, partitions: Sequence[GraphPartition]) -> Sequence[CompiledPartition]:
    record = self.isolated.record
    exported = compile_elsewhere(self, partitions)
    if len(exported) != len(partitions):
        return exported  # the core says what is wrong with that
    folders = self.folders
    payloads = PrivatePayloads(record.name, folders.enter_context(self.context.scratch()), partitions)
    try:
        described = describe_nodes(self, payloads.writer)
    finally:
        payloads.close()
    wanted = {id(partition) for partition in partitions}
    new = [node for node in described if id(node.partition) in wanted]
    if len(new) != len(partitions):
        raise contract_broken(
            record, "get_ep_context_nodes", f"described {len(new)} nodes for {len(partitions)} partitions"
        )
    nodes, reader = payloads.compiled(new, self.root.types, folders.enter_context(Scratch()))
    loaded = self.call_here("load_context", nodes=nodes, reader=reader)
    if len(loaded) != len(nodes):
        raise contract_broken(record, "load_context", f"gave {len(loaded)} results for {len(nodes)}")
    if not self.describes_later:
        self.forget()
    return by_partition(nodes, loaded, partitions)


@hookimpl
def _set_dynamic_options_here(self: LoadsHere, options: Mapping[str, str]) -> None:
    self.call_here("set_dynamic_options", options=options)


@hookimpl
def _on_run_start_here(self: LoadsHere, tag: str) -> None:
    self.call_here("on_run_start", tag=tag)


@hookimpl
def _on_run_end_here(self: LoadsHere, tag: str) -> None:
    self.call_here("on_run_end", tag=tag)


@hookimpl
def _allocate_here(self: LoadsHere, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    array: np.ndarray = self.call_here("allocate", shape=shape, dtype=dtype)
    return array


@hookimpl
def _shutdown_both(self: LoadsHere) -> None:
    try:
        self.here.shutdown()
    finally:
        self.folders.close()
        shut_down(self)


HOOKS_HERE: Mapping[str, Callable[..., Any]] = {
    "compile": _compile_and_load,
    "allocate": _allocate_here,
    "set_dynamic_options": _set_dynamic_options_here,
    "on_run_start": _on_run_start_here,
    "on_run_end": _on_run_end_here,
    "shutdown": _shutdown_both,
}
