"""Live EPs of a session or a compile."""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.errors import concealed, convert_errors, describe
from epctx_core.options.choices import PROFILE
from epctx_core.plugin import CompiledPartition, ProviderContext, Purpose
from epctx_core.plugin.hookspecs import HOOKS
from epctx_core.process import keep_forever
from epctx_core.registry import guard
from epctx_core.registry.instances import ProviderInstances, collect_closers
from epctx_core.registry.lookup import NAMES_VARIABLE, TRACE_VARIABLE
from epctx_core.sessions.routing import ProviderChoice
from epctx_core.sessions.workspaces import SessionWorkspace

if TYPE_CHECKING:
    from epctx_core.options import CancellationFlag, SessionConfig, SessionOptions
    from epctx_core.plugin import ContextNode, ContextReader
    from epctx_core.registry.entries import HostPlugin
    from epctx_core.registry.registry import Registry

Progress: TypeAlias = "Callable[[str, int, int], None]"
"""`progress(stage, done, total)`."""


def check_progress(stage: str, done: int, total: int) -> None:
    """Check what an EP reports; all that there is to do for a host without a callback.

    Raises:
        TypeError: it is something else than a stage and two whole numbers.
    """
    if not isinstance(stage, str):
        raise TypeError(f"progress takes the name of a stage first, not {stage!r:.80}")
    index(done)
    index(total)


WorkspaceOf = Callable[[ProviderChoice], SessionWorkspace]
"""Function that returns the workspace of an EP in one session."""


def make_private_workspace(_choice: ProviderChoice) -> SessionWorkspace:
    """Return a workspace of one session's own."""
    return SessionWorkspace()


class ProviderSession:
    """EP instances of one session and their resources; closed once, at the session's
    end.

    Args:
        session: the session's options.
        registry: the registry of EPs.
        progress: called with (stage, done, total).
        cancel: the flag that EPs poll; None for the session's own.
        host_plugins: what wraps hooks; None for what the environment, the registry and
            the session's options name.
        config: the session's options, if they were read before.

    Attributes:
        config: the session's options, read.
        instances: the live EPs.
        choices: the chosen EPs, by name.
        contexts: those of their instances.
        scratch: temporary files of payloads; removed last.
    """

    def __init__(
        self,
        session: SessionOptions,
        registry: Registry,
        *,
        progress: Progress = check_progress,
        cancel: CancellationFlag | None = None,
        host_plugins: Sequence[HostPlugin] | None = None,
        config: SessionConfig | None = None,
    ) -> None:
        self.session = session
        self.config = config or session.config()
        self.registry = registry
        self.progress = progress
        self.cancel = cancel or session.cancellation
        self._stack = contextlib.ExitStack()
        if host_plugins is None:
            # A host that names classes of its own may pass None.
            registered = registry.host_plugins if registry else ()
            plugins = session.host_plugins
            names = map(os.environ.get, (NAMES_VARIABLE, TRACE_VARIABLE))
            host_plugins = ()
            if registered or plugins or any(names):
                # Few processes have any.
                from epctx_core.registry.entries import list_host_plugins

                host_plugins = list_host_plugins(registered, plugins)

            # What is handed on belongs to another session, which ends it.
            self._stack.callback(
                guard.close_quietly, self.end_profiling, "writing the profile"
            )

        self.instances = ProviderInstances(host_plugins)
        self.choices: dict[str, ProviderChoice] = {}
        self.contexts: dict[str, ProviderContext] = {}
        self._runnables: list[CompiledPartition] = []
        self.scratch = self._stack.enter_context(contextlib.ExitStack())
        self._closed = False
        self._process = os.getpid()

    def keep(self, workspace: SessionWorkspace) -> None:
        """Close a workspace with the EPs, after them."""
        self._stack.callback(
            guard.close_quietly,
            workspace.close,
            "closing what an EP kept in its workspace",
        )

    def add(self, choice: ProviderChoice, context: ProviderContext) -> None:
        """Make one instance."""
        self.instances.add(choice.record, choice.cls, context)
        self.choices[choice.name] = choice
        self.contexts[choice.name] = context

    def load_nodes(
        self,
        ep: str,
        nodes: Sequence[ContextNode],
        reader: ContextReader,
        purpose: Purpose,
    ) -> Sequence[CompiledPartition]:
        """Have an EP load its nodes; the results are closed with the session.

        Raises:
            InvalidGraph: a payload is missing or wrong.
            PluginError: the EP failed or broke the contract.
        """
        names = [node.name for node in nodes]
        return self.call_for_runnables(
            ep, "load_context", names, purpose, nodes=nodes, reader=reader
        )

    def call_for_runnables(
        self,
        ep: str,
        hook: str,
        expected: Sequence[object],
        purpose: Purpose,
        **arguments: object,
    ) -> Sequence[CompiledPartition]:
        """Call a hook that returns one `CompiledPartition` for each expected item; they
        are closed before their EP is shut down, a shared `close` once.

        Raises:
            PluginError: it failed, or returned something else.
        """
        result: Sequence[Any]
        with self.instances.calling(ep, hook, **arguments) as result:
            self._runnables.extend(
                r for r in result if issubclass(type(r), CompiledPartition)
            )
            record = self.choices[ep].record
            if len(result) != len(expected):
                what = (
                    f"gave {len(result)} results for {len(expected)}: "
                    f"{', '.join(map(str, expected[:3]))}"
                )
                raise guard.contract_error(record, hook, what)
            guard.check_result_types(record, HOOKS[hook], result, expected)
            for name, item in zip(expected, result, strict=True):
                if item.run is None and purpose is not Purpose.EXPORT:
                    what = (
                        f"gave a CompiledPartition without `run` for {name}, outside "
                        "of purpose EXPORT"
                    )
                    raise guard.contract_error(record, hook, what)
        return result

    @convert_errors("writing the profile")
    def end_profiling(self) -> str:
        """Write the profile, unless that is done; return the path of its file, empty
        without a profile.
        """
        prefix = self.session.profile_file_prefix
        plugins = self.instances.host_plugins
        return next((h.plugin.end(prefix) for h in plugins if h.name == PROFILE), "")

    def set_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Give each EP the options that it declares; see
        `InferenceSession.set_ep_dynamic_options`.
        """
        from epctx_core.sessions.provider_options import set_dynamic_options

        set_dynamic_options(self, options)

    def close(self) -> None:
        """Close compiled partitions, shut all EPs down, close their workspaces; further
        calls do nothing.

        In a forked child nothing is closed: all of it is the parent's.
        """
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._process:
            keep_forever(self)
            return
        try:
            for close in collect_closers(self._runnables):
                guard.close_quietly(close, "closing a compiled partition")
            self._runnables.clear()
            self.instances.shutdown()
        finally:
            self._stack.close()


def ep_logger(name: str) -> logging.Logger:
    """Return the logger of an EP, which conceals the values of secret options, as do
    its children.
    """
    logger = logging.getLogger(f"epctx.ep.{name}")
    logger.addFilter(_conceal_in_record)
    # A child does not ask the filters of its parents.
    logger.getChild = lambda suffix: ep_logger(f"{name}.{suffix}")  # type: ignore[method-assign]
    return logger


def _conceal_in_record(record: logging.LogRecord) -> bool:
    try:
        text = record.getMessage()
    except Exception as error:  # noqa: BLE001 - without this filter, too, logging survives a plugin's wrong call
        text = f"a message that cannot be formatted: {describe(error)}"
    record.msg = concealed(text)
    record.args = ()
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = concealed(
            "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        )
    return True
