"""EPs of a session: choosing them, checking their options, and their live instances."""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, fields, replace
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.context.scratch import make_scratch_folder
from epctx_core.errors import (
    SHORTEST_SECRET,
    EpctxError,
    InvalidArgument,
    NotImplementedByProvider,
    conceal,
    concealed,
    convert_errors,
    describe,
    suggestion,
)
from epctx_core.frozen import dataclass
from epctx_core.options import (
    CancellationFlag,
    SessionOptions,
    WeightlessMode,
)
from epctx_core.options.choices import CPU_EP, PROFILE
from epctx_core.options.strict import log_without_effect
from epctx_core.options.table import SESSION_OPTIONS
from epctx_core.plugin import (
    BuildInfo,
    Compatibility,
    CompiledPartition,
    ExecutionProvider,
    ProviderContext,
    Purpose,
)
from epctx_core.plugin.hookspecs import HOOKS
from epctx_core.plugin.provider import no_span, parse_provider_options
from epctx_core.process import keep_forever
from epctx_core.registry import guard
from epctx_core.registry.instances import ProviderInstances, collect_closers
from epctx_core.registry.lookup import NAMES_VARIABLE, TRACE_VARIABLE
from epctx_core.registry.records import PluginState
from epctx_core.sessions.workspaces import SessionWorkspace

if TYPE_CHECKING:
    from epctx_core.engines.cpu_engine import CpuEngine
    from epctx_core.options.table import SessionConfig
    from epctx_core.plugin import ContextNode, ContextReader, ModelIdentity
    from epctx_core.registry.entries import HostPlugin
    from epctx_core.registry.records import PluginRecord
    from epctx_core.registry.registry import Registry
    from epctx_core.sessions.source import OpenModel
_log = logging.getLogger("epctx.providers")


_SUFFIX = "executionprovider"
_CPU_NAMES = frozenset({CPU_EP.lower(), "cpu"})


ProviderRequest: TypeAlias = "tuple[str, Mapping[str, object]]"
"""An EP that a host asks for, by any of its names, with its options."""
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


@dataclass(frozen=True, kw_only=True)
class ProviderChoice:
    """An EP that a session will have, before it exists.

    Attributes:
        record: the record of the plugin.
        cls: the EP's class.
        options: checked and typed.
        requested: the name by which the host asked for it; empty if it did not.
    """

    record: PluginRecord
    cls: type[ExecutionProvider]
    options: Mapping[str, Any]
    requested: str = ""

    @property
    def name(self) -> str:
        """Name of the EP."""
        return self.cls.name

    @property
    def binary_suffix(self) -> str:
        """`[ep]` part of the context binary's name."""
        return self.cls.binary_suffix or self.cls.name

    def validate(self, info: str) -> Compatibility:
        """Return the EP's verdict on its text about a compiled model.

        Raises:
            PluginError: it raised, or did not return a verdict.
        """
        verdict: Compatibility = guard.call_class_method(
            self.record, self.cls, "validate_compatibility", info, self.options
        )
        return verdict

    def public_options(self) -> dict[str, Any]:
        """Return the options that may be shown: no secret ones."""
        secret = {option.name for option in self.cls.options if option.secret}
        return {
            name: value for name, value in self.options.items() if name not in secret
        }

    @property
    def secrets(self) -> list[str]:
        """The values of the secret options that are set."""
        values = (
            self.options.get(each.name) for each in self.cls.options if each.secret
        )
        return [str(value) for value in values if value is not None]

    def check_text(self, hook: str, value: object, part: str) -> str:
        """Return a text of the EP that models are to hold, as a plain one.

        Args:
            hook: what gave it.
            value: the text.
            part: its name in the result.

        Raises:
            PluginError: it is not a text, UTF-8 cannot represent it, or it has the
                value of one of the EP's secret options in it.
        """
        text: Any = guard.to_plain(value)
        if type(text) is not str:
            fault = f"gave a {type(text).__name__} instead of a text as {part}"
        elif text.encode(errors="ignore").decode() != text:
            fault = f"gave {text!r:.80} as {part}, which UTF-8 cannot represent"
        elif any(len(s) >= SHORTEST_SECRET and s in text for s in self.secrets):
            fault = f"gave a text as {part} that holds the value of a secret option"
        else:
            return text
        raise guard.contract_error(self.record, hook, fault)

    def build_info(self) -> BuildInfo:
        """Return versions and target of the EP.

        Raises:
            PluginError: its class raised, or gave something else.
        """
        method = "get_build_info"
        info = guard.call_class_method(self.record, self.cls, method, self.options)
        with guard.blame(self.record, method):
            texts = {each.name: getattr(info, each.name) for each in fields(BuildInfo)}
        return BuildInfo(
            **{
                name: self.check_text(method, text, name)
                for name, text in texts.items()
            }
        )


WorkspaceOf = Callable[[ProviderChoice], SessionWorkspace]
"""Function that returns the workspace of an EP in one session."""


def make_private_workspace(_choice: ProviderChoice) -> SessionWorkspace:
    """Return a workspace of one session's own."""
    return SessionWorkspace()


logged_names: ContextVar[set[str]] = ContextVar("epctx_told")
"""Optional EPs that the log named since the host's call began; see `host_call`."""


@dataclass(frozen=True, kw_only=True)
class SkippedProvider:
    """An optional EP that could not be had.

    Attributes:
        name: as the host named it.
        reason: not installed, broken, kept out, or unavailable on this machine.
        hint: the way to have it, or None.
    """

    name: str
    reason: str
    hint: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        return asdict(self)


def stem(name: str) -> str:
    """Return the common part of the names of one EP: `distribution:QNN`, `QNN` and
    `qnnExecutionProvider`.
    """
    return name.rpartition(":")[2].casefold().removesuffix(_SUFFIX)


def _find_optional_stems(names: Sequence[str], asked: Sequence[str]) -> frozenset[str]:
    """Return the stems of optional EPs.

    Args:
        names: of the session option. They apply to requested EPs only: a model's
            EPContext nodes need theirs.
        asked: names by which the host asked for EPs.

    Raises:
        InvalidArgument: an optional EP was not asked for: a typo, mostly.
    """
    for name in names if asked else ():
        if stem(name) not in map(stem, asked):
            raise InvalidArgument(
                f"the session option 'ep.optional_providers' names {name!r}, which is "
                f"not among the EPs that were asked for.{suggestion(name, asked)}",
                hint=f"They are: {', '.join(asked)}.",
            )
    return frozenset(map(stem, names))


def _skip(name: str, error: EpctxError, purpose: Purpose | None) -> SkippedProvider:
    """Return an optional EP that is skipped, which the log names if it is for a
    purpose.
    """
    logged = logged_names.get(set())
    if purpose is not None and stem(name) not in logged:
        _log.warning("the optional EP %s is skipped: %s", name, error.message)
        logged.add(stem(name))
    return SkippedProvider(name=name, reason=error.message, hint=error.hint)


def choose_provider(
    record: PluginRecord,
    requested_options: Mapping[str, object],
    session: SessionOptions,
    registry: Registry,
    *,
    requested: str = "",
) -> ProviderChoice:
    """Import one EP and check the options for it; see `ProviderSession.choose`.

    Secret options are concealed for as long as the result lives.
    """
    cls = registry.load(record)
    merged = {**session.provider_config_entries(cls.name), **requested_options}
    for option in cls.options:
        if option.name in merged and not option.effect:
            log_without_effect(
                f"the option {option.name!r} of {cls.name}", option.doc.rstrip(".")
            )

    options = parse_provider_options(cls.name, cls.options, merged)
    choice = ProviderChoice(
        record=replace(
            record,
            state=PluginState.LOADED,
            vendor=cls.vendor,
            simulated=cls.simulated,
        ),
        cls=cls,
        options=options,
        requested=requested,
    )
    conceal(choice.secrets, choice)
    return choice


def _refuse_unknown_eps(
    session: SessionOptions, registry: Registry, optional: Collection[str]
) -> None:
    """Raise InvalidArgument for a config entry `ep.<name>.<key>` of an unknown EP: a
    typo, mostly.
    """
    keys = session.provider_option_keys
    if not keys:
        return
    starts = [f"ep.{record.name.lower()}." for record in registry.records()]
    # An optional EP need not be installed.
    others = [f"ep.{name}{end}." for name in optional for end in ("", _SUFFIX)]
    for key in keys:
        if not key.startswith((*starts, *others)):
            names = [
                *SESSION_OPTIONS,
                *(start + key.rpartition(".")[2] for start in starts),
            ]
            raise InvalidArgument(
                f"unknown session option {key!r}, which is not an option of an "
                f"installed EP either.{suggestion(key, names)}",
                hint="Options of one EP are written ep.<lower-case EP name>.<key>.",
            )


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
        weightless: the mode that they compile in.
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
            named = map(os.environ.get, (NAMES_VARIABLE, TRACE_VARIABLE))
            host_plugins = ()
            if registered or plugins or any(named):
                # Few processes have any.
                from epctx_core.registry.entries import list_host_plugins

                host_plugins = list_host_plugins(registered, plugins)

            # What is handed on belongs to another session, which ends it.
            self._stack.callback(
                guard.close_quietly, self.end_profiling, "writing the profile"
            )

        self.instances = ProviderInstances(host_plugins)
        self.choices: dict[str, ProviderChoice] = {}
        self.weightless = WeightlessMode.NONE
        self.contexts: dict[str, ProviderContext] = {}
        self._runnables: list[CompiledPartition] = []
        self.scratch = self._stack.enter_context(contextlib.ExitStack())
        self._closed = False
        self._process = os.getpid()

    def choose(
        self, requested: Sequence[ProviderRequest], purpose: Purpose | None
    ) -> tuple[list[ProviderChoice], tuple[SkippedProvider, ...]]:
        """Look up, import and check the EPs that a host asked for, in its order; the
        CPU EP is left out.

        Args:
            requested: names with options.
            purpose: that of the EPs, for which optional ones that are not available are
                skipped; None if no device is needed. The log names those that are
                skipped for a purpose, once for each call of a host.

        Returns:
            The EPs, and the optional ones that cannot be had.

        Raises:
            InvalidArgument: no such EP, one asked for twice, a wrong option, or an
                optional EP that was not asked for: a typo, mostly.
            PluginError: a plugin is broken.
        """
        session = self.session
        registry = self.registry
        optional = _find_optional_stems(
            self.config.optional_providers, [name for name, _ in requested]
        )
        _refuse_unknown_eps(session, registry, optional)
        choices: list[ProviderChoice] = []
        skipped: list[SkippedProvider] = []

        for name, options in requested:
            if name.lower() in _CPU_NAMES:
                continue
            is_optional = stem(name) in optional
            try:
                record = registry.resolve(name)
                if is_optional:
                    registry.load(record)
            except EpctxError as error:
                if not is_optional:
                    raise
                skipped.append(_skip(name, error, purpose))
                continue
            choice = choose_provider(record, options, session, registry, requested=name)
            if any(choice.name == other.name for other in choices):
                raise InvalidArgument(
                    f"{choice.name} was asked for twice.", ep=choice.name
                )
            try:
                if is_optional and purpose is not None:
                    check_availability(record, purpose, registry)
                choices.append(choice)
            except EpctxError as error:
                skipped.append(_skip(name, error, purpose))

        return choices, tuple(skipped)

    def start(
        self,
        choices: Sequence[ProviderChoice],
        *,
        purpose: Purpose,
        model: OpenModel,
        engine: CpuEngine,
        workspace_of: WorkspaceOf = make_private_workspace,
    ) -> None:
        """Make the instances.

        The workspaces that `workspace_of` returns are closed with the session.

        Raises:
            NotImplementedByProvider: an EP is not available for the purpose, or does
                not know weightless mode.
            InvalidArgument: an EP does not support the weightless mode that was asked
                for.
            PluginError: an EP's constructor or its `availability` raised.
        """
        registry = self.registry
        mode = self.config.weightless
        # A load needs no mode: payloads say what they left out.
        if purpose is not Purpose.LOAD and mode is not WeightlessMode.NONE:
            from epctx_core.context.weightless import check_weightless_mode

            for choice in choices:
                check_weightless_mode(choice.name, choice.cls.weightless_modes, mode)
            self.weightless = mode

        if not choices:
            # Nobody asks for the model's digest.
            return
        identity = model.identity
        for choice in choices:
            check_availability(choice.record, purpose, registry)
            workspace = workspace_of(choice)
            self._stack.callback(
                guard.close_quietly,
                workspace.close,
                "closing what an EP kept in its workspace",
            )
            context = self.context_of(choice, purpose, identity, engine, workspace)
            self.add(choice, context)

    def context_of(
        self,
        choice: ProviderChoice,
        purpose: Purpose,
        model: ModelIdentity,
        engine: CpuEngine,
        workspace: SessionWorkspace | None = None,
    ) -> ProviderContext:
        """Return the context of an EP's instance in this session."""
        return ProviderContext(
            options=choice.options,
            session_config=self.session.config_entries,
            purpose=purpose,
            target=None,
            model=model,
            logger=ep_logger(choice.name),
            cancel=self.cancel,
            progress=self.progress,
            scratch=make_scratch_folder,
            engine=engine,
            workspace=workspace or SessionWorkspace(),
            weightless=self.weightless,
            intra_op_num_threads=self.session.intra_op_num_threads,
            span=partial(self.instances.span, category="ep", ep=choice.name)
            if self.instances.is_observed
            else no_span,
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
        from epctx_core.sessions.dynamic_options import set_dynamic_options

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


def check_availability(
    record: PluginRecord, purpose: Purpose, registry: Registry
) -> None:
    """Raise NotImplementedByProvider if an EP is not available for a purpose on this
    machine.
    """
    available = registry.availability(record, purpose)
    if not available.available:
        raise NotImplementedByProvider(
            f"{record.name} cannot {purpose.value} on this machine: "
            f"{available.reason.rstrip('.') or 'it gives no reason'}.",
            ep=record.name,
            hint=available.hint
            or (
                "Repair what is missing, leave it out of the providers, or name it in "
                "ep.optional_providers."
            ),
        )
