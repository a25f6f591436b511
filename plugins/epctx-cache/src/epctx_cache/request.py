"""Request to the cache: from a model and options to an entry, or to a session without
one.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from epctx_cache import key as keys
from epctx_cache import store
from epctx_cache.content import Source, content_of
from epctx_cache.settings import unusable_cache
from epctx_core import GraphOptimizationLevel, SessionOptions, errors, ext
from epctx_core.ext import make_private_folder, read_request
from epctx_core.plugin import Purpose

if TYPE_CHECKING:
    from epctx_cache.settings import CacheSettings, Progress, Providers
    from epctx_cache.shared import SharedCache
    from epctx_core import InferenceSession, ModelCompiler, Registry
    from epctx_core.ext import ProviderChoice

T = TypeVar("T")

INITIALIZERS = "model.weights"
"""File of the remaining initializers, so that a hit reads no weights."""

_ATTEMPTS = 3
"""Attempts of a request whose model or entry changes meanwhile."""
_FAULTS_OF_ENTRIES = (
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NoSuchFile,
    errors.NotImplementedByProvider,
)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOAD_OPTIONS = (
    "graph_optimization_level",
    "execution_mode",
    "intra_op_num_threads",
    "inter_op_num_threads",
    "input_budget",
    "log_severity_level",
    "cancellation",
)
_log = logging.getLogger("epctx.cache")
_warned: set[Path] = set()


class _UnusableError(Exception):
    """The cache cannot be used; its cause is the reason."""

    def __str__(self) -> str:
        # The text of an error of epctx has its hint, too, behind a full stop.
        cause = self.__cause__
        return getattr(cause, "message", str(cause)).rstrip(".")


def cacheable(
    options: SessionOptions | None,
    providers: Providers | None,
    provider_options: Sequence[Mapping[str, object]] | None,
) -> SessionOptions:
    """Return a copy of a host's options with all its EPs.

    Raises:
        InvalidArgument: they are wrong, or their results cannot be cached.
        Fail: a library of custom operators does not exist any more.
    """
    copy, requested = read_request(options, providers, provider_options)
    copy.providers = []
    for name, options_of_ep in requested or ():
        copy.add_provider(name, options_of_ep)
    for path in copy.config().custom_ops_libraries:
        copy.register_custom_ops_library(
            path
        )  # a file that is gone is no fault of the cache
    _, refused, _ = keys.cache_entries(copy.config_entries)
    for key, value in refused.items():
        raise errors.InvalidArgument(
            f"a model compiled with {key}={value} cannot be cached: its payloads "
            "depend on files outside the cache.",
            hint="Leave the option out, or compile with epctx.ModelCompiler.",
        )
    if copy.data_reader is not None:
        raise errors.InvalidArgument(
            "a callback reads payloads, and the payloads of a cached model are files "
            "of the cache.",
            hint="Call clear_ep_context_data_read_func of the session options.",
        )
    return copy


@dataclass(kw_only=True)
class Request:
    """One call of a host.

    Raises:
        InvalidArgument: an argument is wrong; see `ModelCompiler`.
    """

    model: str | os.PathLike[str] | bytes
    options: SessionOptions
    level: GraphOptimizationLevel | None
    settings: CacheSettings
    progress: Progress | None
    registry: Registry
    compiled: bool = False

    def __post_init__(self) -> None:
        is_model = isinstance(self.model, (str, os.PathLike, bytes)) and self.model
        is_sound = (
            is_model
            and self.level in (None, *GraphOptimizationLevel)
            and (self.progress is None or callable(self.progress))
        )
        if not is_sound:
            # It says what is wrong.
            self._compiler  # noqa: B018 - made for its checks
        self._source = Source(self.model, self.options)
        self._has_pulled = False
        self._has_refused = False

    @cached_property
    def _compiler(self) -> ModelCompiler:
        # A hit compiles nothing, and imports neither what does so nor onnx.
        from epctx_core import ModelCompiler

        named = self.options.get_session_config_entry(
            "ep.context_model_external_initializers_file_name"
        )
        return ModelCompiler(
            self.options,
            self.model,
            external_initializers_file_path=None if named else INITIALIZERS,
            graph_optimization_level=self.level,
            progress=self.progress,
            registry=self.registry,
        )

    def session(self) -> InferenceSession:
        """Return a session; see `load_or_compile`."""
        return self.load(self._open_entry, self._open_source)

    def load(self, entry: Callable[[store.Lease], T], source: Callable[[], T]) -> T:
        """Return what a host loads: the model's entry, compiled first if there is none,
        or else its source.

        Args:
            entry: loads an entry, which is not removed meanwhile. An entry that an
                earlier call compiled and whose load raises InvalidGraph,
                InvalidProtobuf, NoSuchFile or NotImplementedByProvider, or any error if
                its bytes are damaged or it was just pulled, is removed and compiled
                again.
            source: loads the model as it is: where the cache cannot be used, or has
                nothing to offer.

        Raises:
            EpctxError: as the compile and the two functions.
        """
        try:
            # Without anything to compile with, an entry would gain nothing.
            gains = bool(self.choices or self.level)
            for lease in self._lease_entries() if gains else ():
                with lease:
                    try:
                        loaded = entry(lease)
                    except errors.EpctxError as error:
                        if self.compiled and not lease.model.exists():
                            # Something has removed it, or the cache, meanwhile.
                            raise _UnusableError from error
                        if self.compiled or not self._is_fault_of_entry(lease, error):
                            self._warn_of_plugin(lease, error)
                            raise
                        # The shared cache would only give the same once more.
                        self._has_refused = self._has_pulled
                        key = lease.record.key[:12]
                        _log.warning(
                            "the cache entry %s cannot be loaded and is removed: %s",
                            key,
                            error.message,
                        )
                        self._store.drop(lease)
                    else:
                        self._count_hit(lease)
                        if lease.record.partitions:
                            # Of another one the EPs may run nodes, and save none.
                            _log.info("%s", _describe_share(lease.record))
                        return loaded
        except _UnusableError as error:
            folder = self.settings.folder
            _warn_once(folder, f"the cache in {folder} cannot be used: {error}.")
        return source()

    def _open_entry(self, lease: store.Lease) -> InferenceSession:
        from epctx_core import InferenceSession

        return InferenceSession(
            lease.model, self._load_options(), registry=self.registry
        )

    def _open_source(self) -> InferenceSession:
        """Return a session with the host's options that writes nothing."""
        from epctx_core import InferenceSession

        options = self.options.copy()
        options.add_session_config_entry("ep.context_enable", "0")
        if self.level:
            options.graph_optimization_level = self.level
        return InferenceSession(self.model, options, registry=self.registry)

    def path(self) -> Path:
        """Return the context model's path; see `compile_cached`."""
        try:
            for lease in self._lease_entries():
                with lease:
                    self._count_hit(lease)
                    return lease.model
        except _UnusableError as error:
            raise unusable_cache(self.settings.folder, error) from error.__cause__
        if self._content.has_context_nodes:
            raise self._is_context_model()
        raise errors.Fail(
            f"{self._source.name} was changed each time it was compiled.",
            hint="Wait until nothing writes to it, then try again.",
        )

    def _count_hit(self, lease: store.Lease) -> None:
        """Count a use of an entry, unless this call compiled it."""
        if not self.compiled:
            self._store.count_hit(lease)

    def identify(self) -> tuple[str, Mapping[str, Any]]:
        """Return the key of the model, and its ingredients; nothing is compiled, no
        cache is made, and a secret is only read.

        Raises:
            InvalidArgument: it is a context model.
            EpctxError: the model cannot be read, or an EP cannot be used.
            OSError: the cache cannot be read.
        """
        entries = store.EntryStore(self.settings.folder)
        content = content_of(
            self._source,
            entries.index_folder,
            trust_stat=self.settings.trust_stat and entries.exists,
        )
        if content.has_context_nodes:
            raise self._is_context_model()
        # Without a secret there is no entry that a key with hidden values could be of.
        return self._make_key(content.digest, entries.read_secret)

    def _make_key(
        self, digest: str, secret: Callable[[], bytes]
    ) -> tuple[str, Mapping[str, Any]]:
        parts = keys.ingredients(
            digest,
            self.choices,
            self.options,
            self.level,
            secret,
            [
                (host.name, host.plugin)
                for host in self._providers.instances.host_plugins
            ],
        )
        return keys.key_of(parts), parts

    def _is_context_model(self) -> errors.InvalidArgument:
        """Return the error for a model that is compiled already."""
        return errors.InvalidArgument(
            f"{self._source.name} is a context model already.",
            hint="Load it as it is.",
        )

    def _lease_entries(self) -> Iterator[store.Lease]:
        """Yield the model's entry, again after each that cannot be loaded; none for a
        context model or a changing one.

        Raises:
            _UnusableError: the cache cannot be used.
        """
        for _ in range(_ATTEMPTS):
            state = self._source.identity()
            index = self._store.index_folder
            trust_stat = self.settings.trust_stat
            self._content = content_of(self._source, index, trust_stat=trust_stat)
            if self._content.has_context_nodes:
                return
            try:
                lease = self._find(state)
            except errors.EpctxError as error:
                if not self._is_of_cache_folder(error):
                    raise
                raise _UnusableError from error
            except OSError as error:
                raise _UnusableError from error
            if lease is not None:
                yield lease

    def _find(self, state: str) -> store.Lease | None:
        """Return the entry of the model's content; None if the model changed while it
        was compiled.
        """
        is_private = False

        def secret() -> bytes:
            # Values of it make keys that no other machine has.
            nonlocal is_private
            is_private = True
            return self._store.secret()

        key, parts = self._make_key(self._content.digest, secret)
        if is_private and self.settings.shared:
            _log.info(
                "%s has secret options: its entry is not shared.",
                errors.one_line(self._source.name),
            )
        self._shared = None if is_private else self.open_shared()
        with suppress(store.CorruptEntryError):  # logged when it is replaced
            if (lease := self._store.open(key)) is not None:
                self._push(lease)
                return lease
        return self._make_entry(key, parts, state)

    def _check_may_compile(self) -> None:
        """Raise ModelRequiresCompilation if the host forbids EPs to compile."""
        entry = self.options.get_session_config_entry("session.disable_model_compile")
        if self.choices and entry == "1":
            raise errors.ModelRequiresCompilation(
                f"{self._source.name} is not in the cache, and "
                "session.disable_model_compile forbids to compile it.",
                hint=(
                    "Fill the cache first, by compile_cached or load_or_compile "
                    "without that option."
                ),
            )

    def _make_entry(
        self, key: str, parts: Mapping[str, Any], state: str
    ) -> store.Lease | None:
        def write(folder: Path) -> store.EntryRecord | None:
            if self._shared is not None and not self._has_refused:
                pulled = self._shared.pull(key, folder, self.settings.size)
                if pulled is not None:
                    self._has_pulled = True
                    return pulled
            return self._compile(folder, key, parts, state)

        cancel = self.options.cancellation
        lease = self._store.create(
            key, model=self._source.name, cancel=cancel, write=write
        )
        if lease is None:
            return None
        if self.compiled:
            _log.info(
                "compiled %s into the cache in %s s: %s",
                errors.one_line(self._source.name),
                lease.record.seconds,
                key,
            )
            self._make_room(key)
            self._push(lease)
        elif self._has_pulled:
            self._store.note_push(lease)
        return lease

    def _make_room(self, key: str) -> None:
        """Reduce the cache to its limit; the entry of a key stays."""
        try:
            store.collect(self._store, self.settings.size, keep=key)
        except OSError as error:
            _log.warning(
                "the cache in %s exceeds its limit and cannot be reduced: %s.",
                self.settings.folder,
                error,
            )

    def _compile(
        self, folder: Path, key: str, parts: Mapping[str, Any], state: str
    ) -> store.EntryRecord | None:
        """Compile the model into a folder; return the record of its entry, or None if
        it changed meanwhile.
        """
        from epctx_core import inspect_model

        begun = time.monotonic()
        self._check_may_compile()
        self.compiled = True
        report = self._compiler.compile_to_file(folder / store.CONTEXT_MODEL)
        self._store.count_miss([choice.name for choice in self.choices])
        nodes = inspect_model(
            folder / store.CONTEXT_MODEL,
            registry=self.registry,
            budget=self.options.input_budget,
        ).ep_contexts
        if self._source.identity() != state or not self._source.has_files(
            self._content.files
        ):
            return None  # the key may be of another content
        return store.EntryRecord(
            key=key,
            model=self._source.name,
            created=time.time(),
            seconds=round(time.monotonic() - begun, 3),
            partitions=len(report.partitions),
            assignments=report.assignments,
            node_attributes=tuple(sorted({a for n in nodes for a in n.attributes})),
            files=tuple(store.EntryFile(**file.as_dict()) for file in report.outputs),
            ingredients=parts,
        )

    def _push(self, lease: store.Lease) -> None:
        """Put an entry into the shared cache, once a day: the storage may have lost it.

        Raises:
            ModelLoadCanceled: the host cancelled meanwhile.
        """
        if self._shared is None or not self.settings.push:
            return
        if self._store.is_pushed(lease):
            return
        try:
            if self._shared.push(lease, rewriting=self._has_refused):
                self._store.note_push(lease)
        except BaseException:
            lease.held.close()
            raise

    def open_shared(self) -> SharedCache | None:
        """Return the cache that machines share; None if the settings name none."""
        if not self.settings.shared:
            return None
        from epctx_cache.shared import SharedCache

        return SharedCache(
            self.settings.shared,
            cancel=self.options.cancellation,
            progress=self.progress,
        )

    def _is_fault_of_entry(self, lease: store.Lease, error: errors.EpctxError) -> bool:
        """Return whether an entry that was compiled earlier may be the cause of an
        error.
        """
        # Also of an EP that refuses a payload of an older driver, or of another EP.
        if isinstance(error, _FAULTS_OF_ENTRIES):
            return True
        if self._has_pulled:
            return not isinstance(error, errors.ModelLoadCanceled)
        strict = self.options.get_session_config_entry(
            "session.fail_on_suboptimal_compiled_model"
        )
        if isinstance(error, errors.Fail) and strict == "1":
            return True
        try:
            store.check_whole(lease.folder, lease.record)
        except store.CorruptEntryError:
            return True
        return False

    def _warn_of_plugin(self, lease: store.Lease, error: errors.EpctxError) -> None:
        """Log a warning that an entry stays which a plugin fails to load."""
        # It names neither the cache nor the model, and fails at each start.
        if not self.compiled and isinstance(error, errors.PluginError):
            _log.warning(
                "the cache entry %s of %s in %s cannot be loaded, and stays: %s. To "
                "have the model compiled again, remove all entries by `epctx cache "
                "clear`.",
                lease.record.key[:12],
                errors.one_line(lease.record.model),
                self.settings.folder,
                error.message.rstrip("."),
            )

    def _is_of_cache_folder(self, error: errors.EpctxError) -> bool:
        """Return whether an error of a compile is caused by the cache's folder."""
        folder = Path(os.path.realpath(self.settings.folder))
        inside = (
            error.path is not None
            and folder in Path(os.path.realpath(error.path)).parents
        )
        if inside and isinstance(error, (errors.Fail, errors.NoSuchFile)):
            return True
        cause: BaseException | None = error
        while cause is not None and not (
            isinstance(cause, OSError) and cause.errno in _DISK_FULL
        ):
            cause = cause.__cause__
        return cause is not None

    def _load_options(self) -> SessionOptions:
        """Return the options to load a cached model: all but those of its source and
        its compile.
        """
        options = SessionOptions()
        for name in _LOAD_OPTIONS:
            setattr(options, name, getattr(self.options, name))
        for name, provider_options in self.options.providers:
            options.add_provider(name, provider_options)
        _, _, loaded = keys.cache_entries(self.options.config_entries)
        for key, value in loaded.items():
            options.add_session_config_entry(key, value)
        for path in self.options.config().custom_ops_libraries:
            options.register_custom_ops_library(path)
        return options

    @cached_property
    def _store(self) -> store.EntryStore:
        folder = self.settings.folder
        # Where it cannot be made, using it says what is wrong.
        with suppress(OSError):
            if (why := make_private_folder(folder)) and folder.is_dir():
                _warn_once(
                    folder,
                    f"the cache in {folder} {why}: others can replace your models "
                    "there. Restrict it to this user (chmod 700), or use another "
                    "folder.",
                )
        return store.EntryStore(folder)

    @cached_property
    def choices(self) -> Sequence[ProviderChoice]:
        """The EPs that a compile will have, in order; without those that are optional
        and cannot be had.
        """
        request = self._request
        outcomes = request.stages.admit(request, request.look_up(), Purpose.EXPORT)
        return [each for each in outcomes if isinstance(each, ext.ProviderChoice)]

    @cached_property
    def _request(self) -> ext.Request:
        options = self.options
        return ext.Request.from_options(
            self.model, options, self.registry, options.providers
        )

    @cached_property
    def _providers(self) -> Any:
        return self._request.make_providers()


def _describe_share(record: store.EntryRecord) -> str:
    total = sum(record.assignments.values())
    shares = [
        f"{ep} runs {count} of {total} nodes ({count / total:.0%})"
        for ep, count in record.assignments.items()
        if total
    ]
    words = f"{record.model}: {', '.join(shares) or 'it has no nodes'}"
    return errors.one_line(words)


def _warn_once(folder: Path, text: str) -> None:
    """Log a warning about a folder, once in this process."""
    if folder not in _warned:
        _warned.add(folder)
        _log.warning("%s", text)
