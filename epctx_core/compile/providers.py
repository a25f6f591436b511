"""From what a host asks for to live EP instances."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.compile.weightless import compile_mode
from epctx_core.context.workspace import PrivateWorkspace, SharedWorkspace
from epctx_core.errors import EpctxError, Fail, InvalidArgument, NotImplementedByProvider, suggestion
from epctx_core.options import WeightlessMode
from epctx_core.options.table import SESSION_OPTIONS
from epctx_core.plugin import CompiledPartition, ExecutionProvider, ModelIdentity, ProviderContext, Purpose
from epctx_core.plugin.schema import parse_provider_options
from epctx_core.registry.guard import describe
from epctx_core.registry.instances import ProviderInstances

if TYPE_CHECKING:
    from epctx_core.kernels import CpuEngine
    from epctx_core.options import CancellationFlag, SessionOptions
    from epctx_core.registry.records import PluginRecord
    from epctx_core.registry.registry import Registry

CPU_EP = "CPUExecutionProvider"
_CPU_NAMES = frozenset({CPU_EP.lower(), "cpu"})
_log = logging.getLogger("epctx.providers")

Progress = Callable[[str, int, int], None]
"""`progress(stage, done, total)`."""


@dataclass(frozen=True, kw_only=True)
class ProviderChoice:
    """An EP that a session will have, before it exists.

    Attributes:
        record: what is known about the plugin.
        cls: the EP's class.
        options: checked and typed.
    """

    record: PluginRecord
    cls: type[ExecutionProvider]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The EP type."""
        return self.cls.name

    @property
    def binary_suffix(self) -> str:
        """The `[ep]` part of the context binary's name."""
        return self.cls.binary_suffix or self.cls.name

    def public_options(self) -> dict[str, Any]:
        """Return the options that may be shown: no secret ones."""
        secret = {option.name for option in self.cls.options if option.secret}
        return {name: value for name, value in self.options.items() if name not in secret}


WorkspaceOf = Callable[[ProviderChoice], PrivateWorkspace | SharedWorkspace]
"""Gives the workspace of an EP in one session."""


def private_workspace(_choice: ProviderChoice) -> PrivateWorkspace:
    """Return a workspace of one session's own."""
    return PrivateWorkspace()


def choose_providers(
    requested: Sequence[tuple[str, Mapping[str, object]]], session: SessionOptions, registry: Registry
) -> list[ProviderChoice]:
    """Look up, import and check the EPs that a host asked for, in its order; the CPU EP is left out.

    Raises:
        InvalidArgument: no such EP, one asked for twice, or a wrong option.
        PluginError: a plugin is broken.
    """
    _refuse_unknown_eps(session, registry)
    choices: list[ProviderChoice] = []
    for name, given in requested:
        if name.lower() in _CPU_NAMES:
            continue
        choice = choose_provider(registry.resolve(name), given, session, registry)
        if any(choice.name == other.name for other in choices):
            raise InvalidArgument(f"{choice.name} was asked for twice.", ep=choice.name)
        choices.append(choice)
    return choices


def choose_provider(
    record: PluginRecord, given: Mapping[str, object], session: SessionOptions, registry: Registry
) -> ProviderChoice:
    """Import one EP and check the options for it; see `choose_providers`."""
    cls = registry.load(record)
    merged = {**session.provider_config_entries(cls.name), **given}
    return ProviderChoice(
        record=record, cls=cls, options=parse_provider_options(cls.name, cls.options, merged)
    )


def kept_functions(classes: Iterable[type[ExecutionProvider]]) -> frozenset[tuple[str, str]]:
    """Return the functions that any of the EPs wants as calls."""
    return frozenset(function for cls in classes for function in cls.keeps_functions)


def requested_classes(
    requested: Iterable[tuple[str, Mapping[str, object]]], registry: Registry
) -> list[type[ExecutionProvider]]:
    """Return the classes of the EPs that a host asked for; the CPU EP is left out.

    Raises:
        InvalidArgument, PluginError: as `choose_providers`.
    """
    names = [name for name, _ in requested if name.lower() not in _CPU_NAMES]
    return [registry.load(registry.resolve(name)) for name in names]


def _refuse_unknown_eps(session: SessionOptions, registry: Registry) -> None:
    """Raise InvalidArgument for a config entry `ep.<name>.<key>` of an EP that is not there: a typo, mostly."""
    given = session.provider_option_keys
    if not given:
        return
    starts = [f"ep.{record.name.lower()}." for record in registry.records()]
    for key in given:
        if not key.startswith(tuple(starts)):
            known = [*SESSION_OPTIONS, *(start + key.rpartition(".")[2] for start in starts)]
            raise InvalidArgument(
                f"the session option {key!r} is none, nor an option of an installed EP.{suggestion(key, known)}",
                hint="Options of one EP are written ep.<lower-case EP name>.<key>.",
            )


def reported_progress(progress: Progress | None) -> Progress:
    """Return a host's progress callback as the core and EPs call it; what it raises is a Fail of the host's.

    None gives one that shows nothing.
    """
    if progress is None:
        return no_progress

    def report(stage: str, done: int, total: int) -> None:
        try:
            progress(stage, done, total)
        except EpctxError:
            raise
        except Exception as error:
            raise Fail(
                f"the progress callback raised at stage {stage!r}: {describe(error)}.",
                hint="Mend the callback, or give none.",
            ) from error

    return report


class ProviderSession:
    """The EP instances of one session with what they were given; closed once, at the session's end.

    Attributes:
        instances: the live EPs.
        choices: what was chosen, by EP type.
        weightless: the mode that they compile in.
    """

    def __init__(self) -> None:
        self.instances = ProviderInstances()
        self.choices: dict[str, ProviderChoice] = {}
        self.weightless = WeightlessMode.NONE
        self._workspaces: list[PrivateWorkspace | SharedWorkspace] = []
        self._runnables: list[CompiledPartition] = []
        self._stack = contextlib.ExitStack()
        self._closed = False

    def start(
        self,
        choices: Sequence[ProviderChoice],
        *,
        purpose: Purpose,
        model: ModelIdentity,
        session: SessionOptions,
        engine: CpuEngine,
        registry: Registry,
        progress: Progress | None = None,
        cancel: CancellationFlag | None = None,
        workspace_of: WorkspaceOf = private_workspace,
    ) -> None:
        """Make the instances; without `cancel` they poll the session's own flag.

        What `workspace_of` gives for each EP is closed with the session.

        Raises:
            NotImplementedByProvider: an EP says that this machine lacks what the purpose needs, or does
                not know weightless mode.
            InvalidArgument: an EP does not support the weightless mode that was asked for.
            PluginError: an EP's constructor or its `availability` raised.
        """
        self.weightless = compile_mode(choices, purpose, session.config().weightless)
        for choice in choices:
            _check_availability(choice, purpose, registry)
            workspace = workspace_of(choice)
            self._workspaces.append(workspace)
            context = ProviderContext(
                options=choice.options,
                session_config=session.config_entries,
                purpose=purpose,
                target=None,
                model=model,
                logger=logging.getLogger(f"epctx.ep.{choice.name}"),
                cancel=cancel or session.cancellation,
                progress=progress or no_progress,
                scratch=_scratch_folder,
                engine=engine,
                workspace=workspace,
                weightless=self.weightless,
            )
            self.instances.add(choice.record, choice.cls, context)
            self.choices[choice.name] = choice

    def scratch(self) -> Path:
        """Return a private folder that is removed with the session."""
        return self._stack.enter_context(_scratch_folder())

    def keep(self, results: Iterable[object]) -> None:
        """Take over what a hook gave: each `CompiledPartition` is closed once, before its EP is shut down."""
        self._runnables.extend(r for r in results if isinstance(r, CompiledPartition))

    def close(self) -> None:
        """Close runnables, shut all EPs down, release what they shared; further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            for runnable in {id(r): r for r in self._runnables}.values():
                if runnable.close is not None:
                    close_quietly(runnable.close, "a compiled partition")
            self._runnables.clear()
            self.instances.shutdown()
        finally:
            for workspace in self._workspaces:
                close_quietly(workspace.close, "what an EP kept in its workspace")
            self._stack.close()


def close_quietly(close: Callable[[], None], what: str) -> None:
    """Close something of a plugin's; what it raises is logged and keeps nothing else from being closed."""
    try:
        close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the others hold devices and memory too
        _log.error("closing %s: %s", what, describe(error))
        _log.debug("closing %s", what, exc_info=error)


def _check_availability(choice: ProviderChoice, purpose: Purpose, registry: Registry) -> None:
    available = registry.availability(choice.record, purpose)
    if not available.available:
        raise NotImplementedByProvider(
            f"{choice.name} cannot {purpose.value} on this machine: {available.reason or 'it gives no reason'}.",
            ep=choice.name,
            hint=available.hint or "Leave it out of the providers, or repair what is missing.",
        )


@contextlib.contextmanager
def _scratch_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="epctx-") as folder:
        yield Path(folder)


def no_progress(stage: str, done: int, total: int) -> None:
    """Show nothing: the host did not ask for progress."""
