"""`load_or_compile`: a session of onnxruntime over a model that is compiled once, for
hosts that keep onnxruntime.

The compiled form is an entry of the cache of epctx-cache, with its key, locks,
publication and digests. Its payloads are the vendor's own, so that onnxruntime loads it
by itself, with the host's session options: `run` is onnxruntime's.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from epctx_core import (
    GraphOptimizationLevel,
    Registry,
    SessionOptions,
    default_registry,
    errors,
    get_model_compatibility,
)
from epctx_core.errors import quote
from epctx_core.ext import SESSION_OPTIONS, host_call, import_installed
from epctx_core.plugin import Compatibility
from epctx_onnxruntime.providers.base import MODELS, OnnxRuntimeProvider
from epctx_onnxruntime.providers.registration import find_adapter
from epctx_onnxruntime.real import onnxruntime

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_cache.request import Request
    from epctx_cache.store import Lease

    from epctx_core.ext import ProviderChoice

Devices = tuple[tuple[str, str, int, int], ...]
Progress = Callable[[str, int, int], None]

_THREADS = ("intra_op_num_threads", "inter_op_num_threads")
"""Attributes of onnxruntime's session options that a compile uses, too."""

_RECORD = "session.record_ep_graph_assignment_info"
_log = logging.getLogger("epctx.cache")
_LOCK = threading.RLock()
"""Held while the session options of a host, which several threads may share, are
changed.
"""


_OTHER_NAMES = {
    "NotImplemented": "NotImplementedByProvider",
    "EngineError": "RuntimeException",
}
"""Classes of onnxruntime's errors that epctx calls otherwise."""


@dataclass(frozen=True)
class _Added:
    """EP that was added to session options of a host."""

    devices: Devices
    options: Mapping[str, str]


_ADDED: WeakKeyDictionary[onnxruntime.SessionOptions, _Added] = WeakKeyDictionary()
"""EPs by session options of hosts, from which onnxruntime does not let it be read."""


def load_or_compile(  # noqa: PLR0913 - public: the model, the EP, and the settings of a cache
    model: str | os.PathLike[str] | bytes,
    session_options: onnxruntime.SessionOptions | None = None,
    *,
    provider: str | onnxruntime.OrtEpDevice,
    provider_options: Mapping[str, object] | None = None,
    free_dimensions: Mapping[str, int] | None = None,
    graph_optimization_level: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_size: int | None = None,
    trust_stat: bool | None = None,
    progress: Progress | None = None,
    registry: Registry = default_registry,
) -> onnxruntime.InferenceSession:
    """Return onnxruntime's session of a model for one EP; the EP compiles the model
    once, and not again while all is equal.

    The model is compiled in a process of its own into the cache (see
    `epctx_core.load_or_compile`); what is loaded is the context model there, after its
    digests and the EP's verdict on it. A stale or damaged one is compiled again. A
    model of which the EP takes nothing is loaded without the EP, and not compiled
    again; a context model is loaded as it is, as is any model where the cache cannot be
    used. `epctx.cache` logs how many nodes each EP runs, and why an entry was not used.

    Args:
        model: a path or bytes.
        session_options: onnxruntime's, without an EP: this one is added to them when
            the model is loaded, and they can be used again for the same EP. Their
            config entries count for the compile, too (`ep.context_embed_mode`,
            `ep.isolate`, `session.disable_model_compile`, ...). Initializers, free
            dimensions, custom operators and the cancellation flag cannot be read from
            them, so set none that changes what is compiled.
        provider: name of a plugin EP of onnxruntime, as in `epctx plugins list`, also
            after `<distribution>:`; or a device of it.
        provider_options: the vendor's options.
        free_dimensions: lengths of the model's open dimensions by name, such as
            {"batch": 1}.
        graph_optimization_level: of the optimisation before the EP sees the model, as
            for `epctx_core.ModelCompiler`.
        cache_dir, cache_size, trust_stat, progress, registry: as for
            `epctx_core.load_or_compile`.

    Raises:
        InvalidArgument: an argument or option is wrong, or the EP is not one of
            onnxruntime's.
        PackageMissing: epctx-cache or epctx-isolation is not installed.
        PluginError: the EP crashed while it compiled.
        ModelRequiresCompilation: `session.disable_model_compile` is set, and the model
            is not in the cache.
        EpctxError: as `epctx_core.ModelCompiler.compile_to_file`; an error of
            onnxruntime has the class of its code.

    Examples:
        >>> options = {"soc_model": "60"}
        >>> load_or_compile("model.onnx", provider="QNN", provider_options=options)
    """
    with host_call("loading or compiling the model"):
        requests, settings = _import_cache("request"), _import_cache("settings")
        host_options = (
            onnxruntime.SessionOptions() if session_options is None else session_options
        )
        name = _find_name(provider, registry)
        request: Request = requests.Request(
            model=model,
            options=requests.cacheable(
                translate(host_options, free_dimensions or {}),
                [(name, provider_options or {})],
                None,
            ),
            level=_read_level(graph_optimization_level),
            settings=settings.cache_settings(cache_dir, cache_size, trust_stat),
            progress=progress,
            registry=registry,
        )
        for choice in request.choices:
            devices = _select_devices(choice, provider)
            return _Loader(request, choice, host_options, devices).load()

        # `ep.optional_providers` names the EP, and it cannot be had.
        return _open(request.model, host_options, name)


def _read_level(level: int | None) -> GraphOptimizationLevel | None:
    return None if level is None else GraphOptimizationLevel(int(level))


def _find_name(provider: Any, registry: Registry) -> Any:
    """Return the name of an EP or of a device's; with its distribution, if of several
    that provide the EP one alone is on onnxruntime.

    A device has the program's name for its library where the library takes that.
    """
    name = getattr(provider, "ep_name", provider)
    if not isinstance(name, str):
        return name  # which is refused later
    with suppress(errors.EpctxError):  # raised again where the EP is chosen
        registry.resolve(name)
        return name

    library = dict(getattr(provider, "ep_metadata", {})).get("library_path")
    if library and (adapter := find_adapter(library, registry)):
        return adapter.qualified_name

    fitting = []
    for record in registry.find(name):
        if record.undecided:
            with suppress(errors.PluginError):  # it is broken
                if issubclass(registry.load(record), OnnxRuntimeProvider):
                    fitting.append(record.qualified_name)
    return fitting[0] if len(fitting) == 1 else name


def _import_cache(module: str) -> ModuleType:
    return import_installed(
        f"epctx_cache.{module}", needed_by="epctx_onnxruntime.cached.load_or_compile"
    )


def translate(
    host_options: onnxruntime.SessionOptions, free_dimensions: Mapping[str, int]
) -> SessionOptions:
    """Return epctx's session options for a compile, from onnxruntime's.

    They have threads and the config entries that epctx acts on. What a compile asks of
    the EP is isolated unless the entry `ep.isolate` says otherwise.

    Args:
        host_options: of onnxruntime, as the host set them.
        free_dimensions: lengths of open dimensions by name.

    Raises:
        InvalidArgument: they are not onnxruntime's, or an entry or length is wrong.
    """
    if not isinstance(host_options, onnxruntime.SessionOptions):
        raise errors.InvalidArgument(
            "load_or_compile takes onnxruntime.SessionOptions, not "
            f"{type(host_options).__name__}.",
            hint="For options of epctx there is epctx_core.load_or_compile.",
        )
    options = SessionOptions()
    for name in _THREADS:
        setattr(options, name, getattr(host_options, name))
    for key, value in {"ep.isolate": "compile", **_read_entries(host_options)}.items():
        options.add_session_config_entry(key, value)
    for name, length in free_dimensions.items():
        options.add_free_dimension_override_by_name(name, length)
    return options


def _read_entries(host_options: onnxruntime.SessionOptions) -> dict[str, str]:
    """Return the config entries that epctx acts on: onnxruntime lists none, and tells
    those that are asked for.
    """
    values = {key: _read_entry(host_options, key) for key in SESSION_OPTIONS}
    return {key: value for key, value in values.items() if value is not None}


def _read_entry(host_options: onnxruntime.SessionOptions, key: str) -> str | None:
    """Return a config entry; None where it is not set."""
    try:
        value: str = host_options.get_session_config_entry(key)
    except RuntimeError:
        return None
    return value


def _select_devices(
    choice: ProviderChoice, provider: str | onnxruntime.OrtEpDevice
) -> list[onnxruntime.OrtEpDevice]:
    """Return the devices that an EP's options choose.

    Raises:
        InvalidArgument: the EP is not one of onnxruntime's, or the host named another
            device of it.
    """
    if not issubclass(choice.cls, OnnxRuntimeProvider):
        raise errors.InvalidArgument(
            f"{choice.name} of {choice.record.distribution or 'this process'} is not "
            "a plugin EP of onnxruntime.",
            ep=choice.name,
            hint=(
                "Load the model with epctx_core.load_or_compile, or install the "
                "vendor's package for onnxruntime; where it is installed, name its "
                "EP as '<distribution>:<EP>'."
            ),
        )
    library = choice.cls.library
    # The session is the host's, and so are the devices of a library that it registered.
    name = getattr(provider, "ep_name", library.ep)
    listed = library.list_registered(name) or library.list_devices()
    devices = list(choice.cls.select_devices(listed, choice.options))
    if not isinstance(provider, str) and _identify([provider])[0] not in _identify(
        devices
    ):
        raise errors.InvalidArgument(
            f"{choice.name} compiles for another device than the one given with these "
            "options.",
            ep=choice.name,
            hint="Choose the device by the EP's own options, and name the EP.",
        )
    return devices


def _identify(devices: list[onnxruntime.OrtEpDevice]) -> Devices:
    return tuple(
        (d.ep_name, d.device.type.name, d.device.vendor_id, d.device.device_id)
        for d in devices
    )


@dataclass(frozen=True)
class _Loader:
    """Load of one model by onnxruntime.

    Args:
        request: to the cache.
        choice: the EP.
        given: the host's session options.
        devices: the EP's.

    Raises:
        InvalidArgument: the session options have an EP already, or this one with other
            options.
    """

    request: Request
    choice: ProviderChoice
    given: onnxruntime.SessionOptions
    devices: list[onnxruntime.OrtEpDevice]

    def __post_init__(self) -> None:
        if self.given.has_providers() and _ADDED.get(self.given) != self._provider:
            raise errors.InvalidArgument(
                "these session options have an EP already; load_or_compile adds "
                f"{self.choice.name} itself.",
                ep=self.choice.name,
                hint=(
                    "Pass session options without an EP, and others for each EP and "
                    "its options."
                ),
            )

    @property
    def _provider(self) -> _Added:
        cls: Any = self.choice.cls
        return _Added(_identify(self.devices), cls.run_options(self.choice.options))

    def load(self) -> onnxruntime.InferenceSession:
        """Return a session of the compiled model, or of the model itself."""
        cls: Any = self.choice.cls
        # Others that take nothing say why there.
        with nullcontext() if cls.writes_contexts else _hide_reports_of_nothing():
            return self.request.load(self._load_entry, self._load_source)

    def _load_source(self, *, with_ep: bool = True) -> onnxruntime.InferenceSession:
        for name, length in self.request.options.model_overrides.dimensions.items():
            self.given.add_free_dimension_override_by_name(name, length)
        if with_ep:
            return self._open(self.request.model)
        return _open(self.request.model, self.given, self.choice.name)

    def _load_entry(self, lease: Lease) -> onnxruntime.InferenceSession:
        """Return a session of an entry that is whole, and that the EP takes.

        Raises:
            InvalidGraph: it is not; it was compiled earlier, and compiling it again may
                help.
        """
        if not lease.record.partitions:
            return self._load_uncompiled(lease)
        if MODELS in lease.record.node_attributes:
            _warn_of_compiles(self.choice.name, lease.record.model, lease.folder)
            return self._load_source()
        self._check_entry(lease)
        entries = self.request.options.config_entries
        _, _, kept = _import_cache("key").cache_entries(entries)
        try:
            with self._reset_entries({key for key in entries if key not in kept}):
                return self._open(lease.model)
        except (errors.EPFail, errors.RuntimeException) as error:
            # Its bytes are right and the EP has said yes, but its runtime cannot use
            # it.
            raise errors.InvalidGraph(
                error.message, ep=self.choice.name, path=lease.model
            ) from error

    def _load_uncompiled(self, lease: Lease) -> onnxruntime.InferenceSession:
        """Return a session of a source of which the EP saved nothing; of one that it
        runs, as onnxruntime says, with the EP.
        """
        cls: Any = self.choice.cls
        model = lease.record.model
        if not cls.writes_contexts:
            # Not taken back: onnxruntime prints a warning when an entry is changed.
            if _read_entry(self.given, _RECORD) is None:
                self.given.add_session_config_entry(_RECORD, "1")
            session = self._load_source()
            parts = session.get_provider_graph_assignment_info()
            name = cls.library.get_name(self.devices)
            if any(part.ep_name == name for part in parts):
                _warn_of_compiles(self.choice.name, model, lease.folder)
            else:
                _log.warning("%s takes no node of %s.", self.choice.name, model)
            return session

        # With the EP, onnxruntime would have it look for nodes at each start.
        _log.warning(
            "%s takes no node of %s, which is loaded without it; `epctx explain` has "
            "the reasons.",
            self.choice.name,
            model,
        )
        return self._load_source(with_ep=False)

    def _check_entry(self, lease: Lease) -> None:
        """Raise InvalidGraph for an entry that is damaged, or that the EP says is
        stale.
        """
        from epctx_cache.store import CorruptEntryError, check_whole

        once = (
            self.request.options.get_session_config_entry("ep.context_verify") != "full"
        )
        try:
            check_whole(lease.folder, lease.record, once=once)
        except CorruptEntryError as error:
            raise errors.InvalidGraph(
                f"the cache entry is damaged: {error}.", path=lease.model
            ) from error
        # The name as given, which may have the distribution.
        ((name, options),) = self.request.options.providers
        verdict = get_model_compatibility(
            lease.model, name, options, registry=self.request.registry
        )
        # An EP that would rather compile again says so about what it has just compiled,
        # too.
        stale = (
            verdict is Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION
            and not self.request.compiled
        )
        if stale or verdict is Compatibility.EP_UNSUPPORTED:
            raise errors.InvalidGraph(
                f"{self.choice.name} says {verdict.name} of what was compiled from "
                f"{lease.record.model}.",
                ep=self.choice.name,
                path=lease.model,
            )

    @contextmanager
    def _reset_entries(self, keys: set[str]) -> Iterator[None]:
        """Take config entries about the source and the compile back to their defaults
        while the block runs.
        """
        with _LOCK if keys else nullcontext():
            before = {key: self.given.get_session_config_entry(key) for key in keys}
            for key in keys:
                self.given.add_session_config_entry(key, SESSION_OPTIONS[key].default)
            try:
                yield
            finally:
                for key, value in before.items():
                    self.given.add_session_config_entry(key, value)

    def _open(
        self, model: str | os.PathLike[str] | bytes
    ) -> onnxruntime.InferenceSession:
        with _LOCK:
            if not self.given.has_providers():
                library: Any = self.choice.cls.library  # type: ignore[attr-defined]
                library.add_to(self.given, self.devices, self._provider.options)
                _ADDED[self.given] = self._provider
        return _open(model, self.given, self.choice.name)


@contextmanager
def _hide_reports_of_nothing() -> Iterator[None]:
    """Hide what a compile of this thread warns of where nothing was compiled: it names
    a file of the cache, and the session's own warning says what follows.
    """
    thread = threading.get_ident()

    def is_shown(record: logging.LogRecord) -> bool:
        # Of another process the message is an argument.
        text = record.getMessage()
        return record.thread != thread or not text.startswith("nothing was")

    compiles = logging.getLogger("epctx.compile")
    compiles.addFilter(is_shown)
    try:
        yield
    finally:
        compiles.removeFilter(is_shown)


@cache
def _warn_of_compiles(ep: str, model: str, _entry: Path) -> None:
    """Log, once in a process for each entry, that what an EP compiled is not kept."""
    _log.warning(
        "%s runs %s but cannot save what it compiled as EPContext nodes: onnxruntime "
        "compiles the model at each start.",
        ep,
        model,
    )


def _open(
    model: str | os.PathLike[str] | bytes, options: onnxruntime.SessionOptions, ep: str
) -> onnxruntime.InferenceSession:
    """Return onnxruntime's session; an error of onnxruntime gets the class of its
    code.
    """
    try:
        return onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else os.fspath(model), options
        )
    except Exception as error:
        kind = type(error)
        if kind.__module__ != onnxruntime.SessionOptions.__module__:
            raise
        name = _OTHER_NAMES.get(kind.__name__, kind.__name__)
        typed: type[errors.EpctxError] = getattr(errors, name, errors.Fail)
        raise typed(
            f"onnxruntime cannot make the session: {quote(error)}", ep=ep
        ) from error
