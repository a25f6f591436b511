"""EPs of a session before they exist: those that a host asks for, those that take a
model's EPContext nodes, and what they say about a compiled model.

The text under `ep_compatibility_info.<EP name>` in the model's metadata is the EP's
own; only that EP validates it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.errors import (
    SHORTEST_SECRET,
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    NotImplementedByProvider,
    conceal,
    one_line,
)
from epctx_core.frozen import dataclass
from epctx_core.options.strict import log_without_effect
from epctx_core.plugin import BuildInfo, Compatibility, ExecutionProvider, Purpose
from epctx_core.plugin.provider import parse_provider_options
from epctx_core.registry import guard
from epctx_core.registry.records import (
    PluginRecord,
    PluginState,
    is_same_distribution,
)

if TYPE_CHECKING:
    from epctx_core.context.manifest import ProviderFacts
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.options import SessionOptions
    from epctx_core.registry import Registry

_log = logging.getLogger("epctx.session")

_UNSUPPORTED_HINT = (
    "Compile the source model again with the EP that is installed here, or give the "
    "options that describe the device it was compiled for."
)
EP_SUFFIX = "executionprovider"
"""End of a name that a host may leave out, in lower case."""

ProviderRequest: TypeAlias = "tuple[str, Mapping[str, object]]"
"""An EP that a host asks for, by any of its names, with its options."""


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


@dataclass(frozen=True, kw_only=True)
class SkippedProvider:
    """An optional EP that could not be had.

    Attributes:
        name: the EP as the host named it.
        reason: not installed, broken, kept out, or unavailable on this machine.
        hint: the way to have it, or None.
    """

    name: str
    reason: str
    hint: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        return asdict(self)


Outcome: TypeAlias = "ProviderChoice | SkippedProvider"
"""Result of the search for an EP that a host asked for."""

logged_names: ContextVar[set[str]] = ContextVar("epctx_told")
"""Optional EPs that the log named since the host's call began; see `host_call`."""


def stem(name: str) -> str:
    """Return the common part of the names of one EP: `distribution:QNN`, `QNN` and
    `qnnExecutionProvider`.
    """
    return name.rpartition(":")[2].casefold().removesuffix(EP_SUFFIX)


def choose_provider(
    record: PluginRecord,
    requested_options: Mapping[str, object],
    session: SessionOptions,
    registry: Registry,
    *,
    requested: str = "",
) -> ProviderChoice:
    """Import one EP and check the options for it; see `Request.look_up`.

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
        record=PluginRecord(
            **{
                **vars(record),
                "state": PluginState.LOADED,
                "vendor": cls.vendor,
                "simulated": cls.simulated,
            }
        ),
        cls=cls,
        options=options,
        requested=requested,
    )
    conceal(choice.secrets, choice)
    return choice


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


def find_maker(
    source: str, providers: ProviderFacts, registry: Registry
) -> PluginRecord | None:
    """Return the distribution that made a source's contexts, where several have the EP
    and the host did not choose.

    Args:
        source: of an EPContext node.
        providers: the manifest's record of the compilers.
        registry: the registry of EPs; nothing is imported.
    """
    maker = providers.get(source, {}).get("distribution")
    for record in registry.records() if isinstance(maker, str) else ():
        if (
            record.name == source
            and record.undecided
            and is_same_distribution(record.distribution, maker)
        ):
            return registry.resolve(f"{maker}:{record.name}")
    return None


def find_other_maker(providers: ProviderFacts, record: PluginRecord) -> str:
    """Return the distribution that made the payloads of an EP where that is not a
    record's; empty if it is the same, or nobody knows.
    """
    maker = providers.get(record.name, {}).get("distribution")
    # A manifest may have anything there.
    if not isinstance(maker, str) or is_same_distribution(record.distribution, maker):
        return ""
    return maker


def find_keeper(ep: str, registry: Registry, purpose: Purpose) -> PluginRecord | None:
    """Return an EP that kept nodes in a model when it was compiled; None, with a
    warning, for one that cannot be had.
    """
    try:
        record = registry.route(ep)
        if record is not None:
            registry.load(record)
            check_availability(record, purpose, registry)
            return record
        reason = registry.explain_missing(ep)[0]
    except InvalidArgument:  # of the host
        raise
    except EpctxError as error:
        reason = error.message

    text = (
        "%s took nodes that this model kept when it was compiled; the session runs "
        "without it: %s"
    )
    _log.warning(text, ep, reason)
    return None


def no_provider_error(
    node: ContextNodeRecord,
    listed: Sequence[str],
    skipped: Sequence[SkippedProvider],
    registry: Registry,
) -> NotImplementedByProvider:
    """Return the error for an EPContext node that no EP takes of those listed;
    `skipped` could not be had.
    """
    skip = next(
        (skip for skip in skipped if stem(skip.name) == stem(node.source)), None
    )
    if skip is not None:
        why = f"The optional EP {skip.name} was skipped: {skip.reason}"
        hint = skip.hint
    else:
        why, hint = registry.explain_missing(node.source, listed)
    source = repr(node.source) if node.source else "no source"
    return NotImplementedByProvider(
        f"EPContext node {node.name!r} (source {source}) has no EP to load it. "
        f"{why.rstrip('.')}.",
        node=node.name,
        hint=hint,
    )


def accept(choice: ProviderChoice, info: str, registry: Registry) -> str:
    """Return the reason for which an EP recommends to compile a model again, by its
    text about the model; an empty text for another one that it supports.

    Raises:
        InvalidGraph: it does not support the model any more.
        NotImplementedByProvider: nor is it available, so that this is no fault of the
            model.
        PluginError: see `ProviderChoice.validate`.
    """
    verdict = Compatibility.EP_UNSUPPORTED
    try:
        verdict = choice.validate(info)
    finally:
        # A validator may ask for a driver that is not there.
        if verdict == Compatibility.EP_UNSUPPORTED:
            check_availability(choice.record, Purpose.LOAD, registry)

    reason = one_line(verdict.reason).rstrip(".")
    why = f"the model was compiled for {info!r}{reason and '; '}{reason}."
    if verdict == Compatibility.EP_UNSUPPORTED:
        raise InvalidGraph(
            f"{choice.name} does not support this compiled model: {why}",
            ep=choice.name,
            hint=_UNSUPPORTED_HINT,
        )
    if verdict == Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION:
        return f"{choice.name} runs this compiled model less well than a new one: {why}"
    return ""
