"""`ExecutionProvider`, the base class of EPs, with its options and context."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from epctx_core.errors import InvalidArgument, suggestion
from epctx_core.frozen import dataclass
from epctx_core.options.choices import WeightlessMode
from epctx_core.plugin.types import (
    Availability,
    BuildInfo,
    Compatibility,
    ContextNode,
    HardwareDevice,
    Purpose,
)

if TYPE_CHECKING:
    from epctx_core.plugin.packages import Engine
    from epctx_core.plugin.storage import ContextReader, Finding, Workspace
    from epctx_core.plugin.views import Partition

_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class ProviderOption:
    """Option of an EP.

    Args:
        name: the key that hosts set; "*" for all that no other option names, whose
            values the EP gets as given, for it to check.
        type: `int`, `float`, `bool` or `str`; values arrive as text and are converted.
        default: the typed value used when the host sets none; lists of options have
            None for a secret one.
        choices: the typed values allowed; empty for any.
        doc: one sentence for error messages and lists of options.
        secret: the value never leaves the process: not in reports, manifests or logs.
        effect: False for an option that is accepted because hosts set it, and has no
            effect; the core logs that, and leaves the option out of keys and
            fingerprints.
    """

    name: str
    type: type[Any]
    _: KW_ONLY
    default: Any
    choices: tuple[Any, ...] = ()
    doc: str
    secret: bool = False
    effect: bool = True

    def parse(self, ep: str, text: object) -> Any:
        """Convert and check one value.

        Raises:
            InvalidArgument: not of the declared type, or not among the choices.
        """
        shown = "the given value" if self.secret else repr(text)
        try:
            # By way of text: int(3.7) would cut, and a host may give options as text
            # anyway.
            value = (
                _BOOLEANS[str(text).lower()]
                if self.type is bool
                else self.type(str(text))
            )
        except (ValueError, TypeError, KeyError):
            raise InvalidArgument(
                f"{ep}: option {self.name!r} needs "
                f"{_TYPE_WORDS.get(self.type, self.type.__name__)}, not {shown}.",
                ep=ep,
                hint=self.doc,
            ) from None
        if self.choices and value not in self.choices:
            allowed = ", ".join(str(c) for c in self.choices)
            raise InvalidArgument(
                f"{ep}: option {self.name!r} is {shown}; allowed: {allowed}.",
                ep=ep,
                hint=self.doc,
            )
        return value


_TYPE_WORDS = {bool: "0 or 1", int: "a whole number", float: "a number", str: "text"}


def parse_provider_options(
    ep: str, schema: Iterable[ProviderOption], values: Mapping[str, object]
) -> Mapping[str, Any]:
    """Check a host's options against an EP's schema; return every option, typed, with
    defaults.

    Raises:
        InvalidArgument: an unknown name (with a suggestion) or a bad value.
    """
    by_name = {option.name: option for option in schema}
    others = by_name.pop("*", None)
    for name in values:
        if name not in by_name and others is None:
            close = suggestion(name, by_name)
            # A host may have passed a secret value as a key.
            hidden = not close and any(option.secret for option in by_name.values())
            shown = (
                "of that name, which is not shown as it may be a secret"
                if hidden
                else repr(name)
            )
            raise InvalidArgument(
                f"{ep} has no option {shown}.{close}",
                ep=ep,
                hint=f"Its options: {', '.join(sorted(by_name)) or 'none'}.",
            )
    typed = {
        name: option.parse(ep, values[name]) if name in values else option.default
        for name, option in by_name.items()
    }
    return MappingProxyType({**values, **typed} if others else typed)


class Cancellation(Protocol):
    """Cancellation by the host."""

    @property
    def requested(self) -> bool:
        """True if the host has requested cancellation."""

    def wait(self, seconds: float) -> bool:
        """Wait for cancellation, at most so many seconds; return whether it was
        requested.
        """

    def raise_if_requested(self) -> None:
        """Raise ModelLoadCanceled if the host has requested cancellation; call it
        between units of long work.
        """


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """Identity of a model, as far as an EP may know it.

    Attributes:
        name: the file's stem, or the graph's name for a model from bytes; no folder.
        digest: SHA-256 (hex) of the model file without its external weights, or None
            before it is known.
        opset_imports: domain to version.
    """

    name: str
    digest: str | None
    opset_imports: Mapping[str, int]


def no_span(name: str, /, **facts: object) -> nullcontext[None]:  # noqa: ARG001 - a span's signature
    """Observe nothing, for a host without profiles."""
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class ProviderContext:
    """Everything an EP instance gets from its host. One instance serves one session.

    Attributes:
        options: the EP's options, checked and typed, defaults filled in.
        session_config: a snapshot of the session's config entries, as text.
        purpose: EXPORT, LOAD or RUN.
        target: the device, where a host chooses it apart from the EP's options, as
            onnxruntime's interface for plugin EPs does; it goes before them. None in
            epctx's own sessions and compiles: there the device is an option of the
            EP's, so that it is checked, and counts in caches, share groups and
            compatibility texts.
        model: the model's identity.
        logger: a child of the logger `epctx`.
        cancel: cancellation by the host.
        progress: `progress(stage, done, total)`; cheap, may be called often.
        scratch: makes a private folder, as a context manager that removes it.
        engine: the engine of the core, which computes on the CPU.
        workspace: objects that this session shares with its share group.
        intra_op_num_threads: threads that the host allows one operator, 0 for the EP's
            choice.
        weightless: which weights payloads are to leave in the source model; see
            `ContextWriter.reference`. One of `ExecutionProvider.weightless_modes`, or
            NONE.
        span: `with span(name, **facts)` around what the EP does: profiles show it.
    """

    options: Mapping[str, Any]
    session_config: Mapping[str, str]
    purpose: Purpose
    target: str | None
    model: ModelIdentity
    logger: logging.Logger
    cancel: Cancellation
    progress: Callable[[str, int, int], None]
    scratch: Callable[[], AbstractContextManager[Path]]
    engine: Engine
    workspace: Workspace
    weightless: WeightlessMode = WeightlessMode.NONE
    intra_op_num_threads: int = 0
    span: Callable[..., AbstractContextManager[object]] = no_span


class ExecutionProvider:
    """Base class of all EPs.

    Class attributes describe the EP without an instance; hooks are methods marked with
    `hookimpl` (see `epctx_core.plugin.hookspecs`).

    Attributes:
        name: the EP name, such as `QNNExecutionProvider`; written into `source`.
        vendor: who is responsible for it.
        api_version: the `PLUGIN_API` it was written for.
        binary_suffix: the `[ep]` part of the context binary's name; the EP name if
            empty.
        options: the schema of its options.
        dynamic_options: the schema of those that may change while a session lives
            (`ep.dynamic.*`); the core checks them before calling `set_dynamic_options`.
            Empty: the hook checks them itself.
        keeps_functions: (domain, name) of functions that a model may define for itself
            and that this EP takes as one node each. All others stand as their operators
            in what an EP sees. A call that no EP takes runs on the CPU EP.
        weightless_modes: the modes in which its payloads can leave weights in the
            source model: EXTERNAL_ONLY, ALL, both or none of them. None for an EP that
            does not know weightless mode.
        simulated: whether it computes on this CPU in place of the hardware that its
            name says. Of two distributions that provide one EP, one of them simulated,
            the other is used; commands show which EPs are simulated.
        keeps_nodes: whether it may claim nodes with `ComputeCapability.keep_nodes`. A
            session over a context model then asks it for these, also where it has
            EPContext nodes of its own.
        loads_without_device: whether `load_context` works under purpose EXPORT: it
            checks all that a load checks, opens no device, makes nothing ready to run,
            and may give `CompiledPartition(None)`. Then the core has a new instance
            load what was compiled before anything is published: all primaries and, of
            references whose partitions differ in name alone, one. Otherwise
            `verify_payloads` is asked.
        needs_verified_payloads: whether a damaged payload can end the process that
            `load_context`, a run or `verify_payloads` reads it in, as native code can.
            Then the core compares every byte with the model's digests before the EP
            gets the first one; a payload without digests is loaded and run in a process
            of its own, unless the host sets `ep.context_trust_unverified=1`.
        environment: names of the environment variables that it reads, for the keys of
            caches: a compile under other values is another one.
        factory: for a class that a function made, so that its module does not contain
            it: that function, as `module:function`, and its arguments as JSON can hold
            them. A process of its own makes the class with them again. Classes derived
            from this one do not inherit it. None for a class that can be imported.
    """

    name: ClassVar[str]
    vendor: ClassVar[str] = ""
    api_version: ClassVar[int] = 1
    binary_suffix: ClassVar[str] = ""
    options: ClassVar[Sequence[ProviderOption]] = ()
    dynamic_options: ClassVar[Sequence[ProviderOption]] = ()
    keeps_functions: ClassVar[Collection[tuple[str, str]]] = ()
    weightless_modes: ClassVar[Collection[WeightlessMode] | None] = None
    keeps_nodes: ClassVar[bool] = False
    loads_without_device: ClassVar[bool] = False
    needs_verified_payloads: ClassVar[bool] = False
    simulated: ClassVar[bool] = False
    environment: ClassVar[Collection[str]] = ()
    factory: ClassVar[tuple[str, Mapping[str, Any]] | None] = None

    def __init__(self, context: ProviderContext) -> None:
        self.context = context

    @classmethod
    def accepts_source(cls, source: str) -> bool:
        """Return whether this EP accepts nodes with this `source`; called for names
        that differ by case.
        """
        return source == cls.name

    @classmethod
    def availability(cls, purpose: Purpose) -> Availability:  # noqa: ARG003 - the signature is the contract
        """Return whether the EP is available on this machine for a purpose.

        Cheap: called before an instance exists.
        """
        return Availability(True)

    @classmethod
    def devices(cls) -> Sequence[HardwareDevice]:
        """Return the devices on this machine that the EP works on, the preferred first:
        by default one virtual NPU.

        Called before an instance exists, for hosts that choose EPs by their devices.
        """
        return (HardwareDevice(metadata={"virtual": "1"}),)

    @classmethod
    def get_build_info(cls, options: Mapping[str, Any]) -> BuildInfo:  # noqa: ARG003
        """Return SDK, driver and target of payloads; called once for each compile that
        writes some.

        Do not include secrets or paths: the result is stored in the context model
        unchanged.
        """
        return BuildInfo()

    @classmethod
    def get_compatibility_info(
        cls,
        partitions: Sequence[Partition],  # noqa: ARG003
        options: Mapping[str, Any],  # noqa: ARG003
    ) -> str:
        """Return the text by which a later load validates a compiled model, or an empty
        one.

        Written by the core as metadata `ep_compatibility_info.<EP name>`; the format is
        the EP's.
        """
        return ""

    @classmethod
    def validate_compatibility(
        cls,
        info: str,  # noqa: ARG003
        options: Mapping[str, Any],  # noqa: ARG003
    ) -> Compatibility:
        """Validate a text of `get_compatibility_info`, before any payload is opened."""
        return Compatibility.EP_NOT_APPLICABLE

    @classmethod
    def verify_payloads(
        cls,
        context: ProviderContext,  # noqa: ARG003
        nodes: Sequence[ContextNode],  # noqa: ARG003
        reader: ContextReader,  # noqa: ARG003
    ) -> Sequence[Finding] | None:
        """Verify payloads as far as possible without a device; return None if the EP
        cannot.

        For `epctx verify`, and before a compile publishes what an EP wrote that cannot
        load without a device (`loads_without_device`; the purpose is EXPORT then): like
        `load_context`, but without an instance, and with every fault listed rather than
        the first one raised. The core has checked the nodes' attributes, the files and,
        where the model has a manifest, all digests.

        Args:
            context: the context of an instance under purpose LOAD; its engine is not
                needed.
            nodes: this EP's nodes, primaries first, except those with an unreadable
                payload.
            reader: reads their payloads.

        Returns:
            Findings with `CONTAINER_CODES`; empty if there are none.
        """
        return None
