"""One request to the cache: from a model and options to an entry, and what happens where there can be none.

Knows how a compile and a session are asked for; how entries are kept is `store`'s.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.cache import key as keys
from epctx_core.cache import record as records
from epctx_core.cache.content import ContentIndex, ModelContent, ModelSource
from epctx_core.cache.housekeeping import collect
from epctx_core.cache.record import CorruptEntryError, EntryFile, EntryRecord, check_whole
from epctx_core.cache.store import EntryStore, Lease
from epctx_core.compiling.compile import Compile, CompileRequest
from epctx_core.compiling.destination import Destination, destination_of
from epctx_core.compiling.initializers import DEFAULT_THRESHOLD, placement_of
from epctx_core.context.scratch import distrusted
from epctx_core.errors import (
    EpctxError,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelRequiresCompilation,
    NoSuchFile,
    errors_typed,
)
from epctx_core.options import GraphOptimizationLevel, SessionOptions
from epctx_core.options.table import CachePart
from epctx_core.plugin import Purpose
from epctx_core.publish.failures import DISK_FULL
from epctx_core.session import InferenceSession
from epctx_core.sessions.compile_host import path_of
from epctx_core.sessions.missing_providers import each_told_once
from epctx_core.sessions.providers import Progress, ProviderChoice, choose_providers

if TYPE_CHECKING:
    from epctx_core.cache.content import Model
    from epctx_core.cache.settings import CacheSettings
    from epctx_core.compiling.report import CompileReport
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.registry import Registry

INITIALIZERS = "model.weights"
"""The file for the initializers that stay, so that a hit reads no weights."""

_ATTEMPTS = 3
"""How often a request starts again because its model changed, or its entry went bad, meanwhile."""
_log = logging.getLogger("epctx.cache")
_warned: set[Path] = set()


class _UnusableError(Exception):
    """The cache cannot be used; the cause says why."""


@dataclass(kw_only=True)
class Request:
    """One call: what a host asked for, and where it is looked for."""

    model: Model
    options: SessionOptions
    level: GraphOptimizationLevel
    settings: CacheSettings
    progress: Progress
    registry: Registry
    compiled: bool = False

    @errors_typed("loading or compiling the model")
    @each_told_once()
    def session(self) -> InferenceSession:
        """Return a session; see `load_or_compile`."""
        try:
            # Without anything to compile with, a session from an entry would gain nothing.
            gains = bool(self._choices) or self.level > GraphOptimizationLevel.ORT_DISABLE_ALL
            for _ in range(_ATTEMPTS if gains else 0):
                content, lease = self._find()
                if content.has_context_nodes:
                    break
                session = None if lease is None else self._load(lease)
                if session is not None:
                    return session
        except _UnusableError as error:
            folder = self.settings.folder
            _warn_once(
                folder, f"the cache in {folder} cannot be used, so nothing is kept there: {error.__cause__}."
            )
        # The source itself is loaded as the host said, but nothing is written.
        options = self.options.copy()
        options.add_session_config_entry("ep.context_enable", "0")
        if self.level > GraphOptimizationLevel.ORT_DISABLE_ALL:
            options.graph_optimization_level = self.level
        return InferenceSession(self.model, options, registry=self.registry)

    @errors_typed("compiling the model into the cache")
    @each_told_once()
    def path(self) -> Path:
        """Return the context model's path; see `compile_cached`."""
        try:
            for _ in range(_ATTEMPTS):
                content, lease = self._find()
                if content.has_context_nodes:
                    raise InvalidArgument(
                        f"{self._source.name} is a context model already.",
                        hint="Load it as it is; what it holds is compiled.",
                    )
                if lease is not None:
                    with lease:
                        return lease.model
        except _UnusableError as error:
            raise Fail(
                f"the cache in {str(self.settings.folder)!r} cannot be used: {error.__cause__}.",
                path=self.settings.folder,
                hint="Name a folder that can be written, by cache_dir or EPCTX_CACHE_DIR.",
            ) from error.__cause__
        raise Fail(
            f"{self._source.name} was written to again and again while it was compiled.",
            hint="Let whatever writes it finish, then start again.",
        )

    def _find(self) -> tuple[ModelContent, Lease | None]:
        """Return what the model holds and its entry; no entry for a context model or one that changed meanwhile.

        Raises:
            _UnusableError: the cache cannot be used.
        """
        state = self._source.identity()
        index = ContentIndex(self._store.index_folder, trust_stat=self.settings.trust_stat)
        content = index.content_of(self._source)
        if content.has_context_nodes:
            return content, None
        try:
            parts = keys.ingredients(
                content.digest, self._choices, self.options, self.level, keys.sealing(self._store.secret)
            )
            key = keys.key_of(parts)
            with suppress(CorruptEntryError):  # who makes it anew says what is wrong with it, once
                if (lease := self._store.open(key)) is not None:
                    return content, lease
            return content, self._new_entry(key, parts, content, state)
        except EpctxError as error:
            if not self._is_about_the_cache(error):
                raise
            raise _UnusableError from error
        except OSError as error:
            raise _UnusableError from error

    def _new_entry(
        self, key: str, parts: Mapping[str, object], content: ModelContent, state: str
    ) -> Lease | None:
        def write(folder: Path) -> EntryRecord | None:
            begun = time.monotonic()
            report = self._compile(folder)
            if self._source.identity() != state or not self._source.has_files(content.files):
                return None  # the key may not be that of what was compiled
            return EntryRecord(
                key=key,
                model=self._source.name,
                created=time.time(),
                seconds=round(time.monotonic() - begun, 3),
                partitions=len(report.partitions),
                files=_entry_files(folder, report),
                ingredients=parts,
            )

        lease = self._store.create(
            key, model=self._source.name, cancel=self.options.cancellation, write=write
        )
        if self.compiled and lease is not None:
            _log.info(
                "compiled %s into the cache in %s s: %s", *(self._source.name, lease.record.seconds, key)
            )
            self._make_room(key)
        return lease

    def _compile(self, folder: Path) -> CompileReport:
        config = self.options.config()
        if config.disable_model_compile and self._choices:
            raise ModelRequiresCompilation(
                f"{self._source.name} is not in the cache, and session.disable_model_compile is set.",
                hint="Fill the cache first, by compile_cached or load_or_compile without that option.",
            )
        self.compiled = True
        named = config.external_initializers_file
        placement = placement_of(None if named else INITIALIZERS, DEFAULT_THRESHOLD, None, named)

        def destination(_source: SourceModel | None, _has_payloads: bool) -> Destination:
            return destination_of(
                path_of(self.model),
                str(folder / records.MODEL),
                replace=True,
                initializers=placement.file,
            )

        request = CompileRequest(
            session=self.options,
            find_destination=destination,
            model=self.model,
            embedded=config.embed,
            placement=placement,
            level=self.level,
            progress=self.progress,
            registry=self.registry,
            digests=self._source.digests,
        )
        return Compile(request).run()

    def _make_room(self, key: str) -> None:
        try:
            collect(self._store, self.settings.size, keep=key)
        except OSError as error:
            _log.warning(
                "the cache in %s cannot be brought within its limit: %s.", self.settings.folder, error
            )

    def _load(self, lease: Lease) -> InferenceSession | None:
        """Return a session for an entry; None if the entry is to blame that there is none, and was dropped."""
        with lease:
            try:
                return InferenceSession(lease.model, self._load_options(), registry=self.registry)
            except EpctxError as error:
                if self.compiled or not self._is_to_blame(lease, error):
                    raise
                _log.warning(
                    "the cache's entry %s cannot be loaded and is dropped: %s",
                    lease.record.key[:12],
                    error.message,
                )
                self._store.drop(lease)
        return None

    def _is_to_blame(self, lease: Lease, error: EpctxError) -> bool:
        """Whether an entry that was compiled at another time may be the cause of an error."""
        if isinstance(error, (InvalidGraph, InvalidProtobuf, NoSuchFile)):
            return True  # also an EP that refuses what an older driver left
        if isinstance(error, Fail) and self.options.config().fail_on_suboptimal:
            return True
        try:
            check_whole(lease.folder, lease.record)
        except CorruptEntryError:
            return True
        return False

    def _is_about_the_cache(self, error: EpctxError) -> bool:
        """Whether an error of a compile is one of the folder that it wrote into."""
        folder = Path(os.path.realpath(self.settings.folder))
        inside = error.path is not None and folder in Path(os.path.realpath(error.path)).parents
        if inside and isinstance(error, (Fail, NoSuchFile)):
            return True
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno in DISK_FULL:
                return True
            cause = cause.__cause__
        return False

    def _load_options(self) -> SessionOptions:
        """Return what a cached model is loaded with: all but what was said about its source and the compile."""
        options = SessionOptions()
        for name in (
            "graph_optimization_level",
            "execution_mode",
            "intra_op_num_threads",
            "inter_op_num_threads",
        ):
            setattr(options, name, getattr(self.options, name))
        options.log_severity_level = self.options.log_severity_level
        options.cancellation = self.options.cancellation
        options.providers = [(name, dict(given)) for name, given in self.options.providers]
        left_out = keys.keys_with(CachePart.SOURCE)
        for key, value in self.options.config_entries.items():
            if key not in left_out:
                options.add_session_config_entry(key, value)
        return options

    @cached_property
    def _source(self) -> ModelSource:
        config = self.options.config()
        return ModelSource(
            self.model,
            config.external_initializers_folder,
            config.overrides.initializers,
            config.input_budget,
        )

    @cached_property
    def _store(self) -> EntryStore:
        folder = self.settings.folder
        with suppress(
            OSError
        ):  # there is none yet, and it is made for this user alone; or using it says what is wrong
            if folder.is_dir() and (why := distrusted(folder.stat())):
                _warn_once(
                    folder,
                    f"the cache in {folder} {why}: whoever can write there can put models in the place of yours. "
                    "Give it to this user alone (chmod 700), or name another folder.",
                )
        return EntryStore(folder)

    @cached_property
    def _choices(self) -> list[ProviderChoice]:
        requested = self.options.providers
        return choose_providers(requested, self.options, self.registry, Purpose.EXPORT)[0]


def _warn_once(folder: Path, text: str) -> None:
    """Log a warning about a folder, the first one in this process."""
    if folder not in _warned:
        _warned.add(folder)
        _log.warning("%s", text)


def _entry_files(folder: Path, report: CompileReport) -> tuple[EntryFile, ...]:
    """Return the files of an entry. Binaries have their digest in the manifest; other files get one of their own."""
    *others, model = report.outputs
    digests = records.file_digests(folder, model.path, [file.path for file in others])
    files = [EntryFile(path=f.path, bytes=f.bytes, digest=d) for f, d in zip(others, digests, strict=True)]
    return (*files, EntryFile(path=model.path, bytes=model.bytes, digest=model.digest))
