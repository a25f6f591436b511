"""State and content of a model, and an index of contents that saves reading weights
again.

Knows neither EPs nor entries.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.errors import EpctxError
from epctx_core.ext import ModelFolder, make_private_folder, parse_json, read_small_file

if TYPE_CHECKING:
    from epctx_core import SessionOptions

RACY_NS = 2_000_000_000
"""Nanoseconds that a file's last change has to precede the reading, to be indexed: time
stamps are coarse, and a file may change twice within one.
"""


FileState: TypeAlias = "tuple[int, ...]"
"""Device, inode, size, and the times of the last change to the content and to content
or attributes.

Programs may set the first time, as those do that unpack archives, and a new file may
get the inode of one that was removed. No program sets the last one.
"""


def file_state(status: os.stat_result) -> FileState:
    """Return the state of a file."""
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


@dataclass(frozen=True, kw_only=True)
class Content:
    """Content of a model.

    Attributes:
        digest: SHA-256 (hex) over the model and its weights; see `digest_model`.
        has_context_nodes: True for a context model.
        files: state of each file of weights, by its location in the model.
    """

    digest: str
    has_context_nodes: bool
    files: Mapping[str, FileState]


class Source:
    """Model of a host, and the current state of its files.

    Args:
        model: a path or bytes.
        options: as for `digest_model`.
    """

    def __init__(
        self, model: str | os.PathLike[str] | bytes, options: SessionOptions
    ) -> None:
        self._model = model
        self._options = options
        self._replaced = sorted(options.model_overrides.initializers)

    @property
    def name(self) -> str:
        """Name of the model in messages."""
        return (
            "a model given as bytes"
            if isinstance(self._model, bytes)
            else Path(self._model).name
        )

    def identity(self) -> str:
        """Return the state of the model's file, or the digest of its bytes."""
        if isinstance(self._model, bytes):
            return hashlib.sha256(self._model).hexdigest()
        try:
            return repr(file_state(os.stat(self._model)))  # noqa: PTH116 - one call, text or Path
        except (OSError, ValueError):
            return ""  # reading it raises

    def index_name(self) -> str:
        """Return the name of the content in the index."""
        return hashlib.sha256(
            repr((self.identity(), self._replaced)).encode()
        ).hexdigest()

    def has_files(self, files: Mapping[str, FileState]) -> bool:
        """Return whether the files of weights are in these states."""
        try:
            now = self._find_files(files)
        except EpctxError:
            return False  # reading the model raises
        return all(
            status is not None and file_state(status) == files[at]
            for at, status in now.items()
        )

    def _find_files(
        self, locations: Iterable[str]
    ) -> Mapping[str, os.stat_result | None]:
        """Return the status of each file of weights that a location means now; None if
        there is none.

        Raises:
            EpctxError: a location leads out of the folder.
        """
        named = self._options.config().external_initializers_folder
        if named is not None:
            folder = ModelFolder(Path(named))
        elif isinstance(self._model, bytes):
            return dict.fromkeys(locations)
        else:
            folder = ModelFolder(Path(self._model).parent, Path(self._model))
        return {
            each: folder.status(each, what="the weights file") for each in locations
        }

    def read(self) -> Content:
        """Read the model and its weights; see `digest_model`."""
        # It imports onnx, which a model that the index knows does without.
        from epctx_core.ext import digest_model

        found = digest_model(self._model, self._options)
        return Content(
            digest=found.sha256,
            has_context_nodes=found.has_context_nodes,
            files={at: file_state(status) for at, status in found.files.items()},
        )

    def changed_ns(self, content: Content) -> int:
        """Return the time of the last change to the model or a file of its weights; 0
        for bytes without files.
        """
        states = list(content.files.values())
        if not isinstance(self._model, bytes):
            states.append(file_state(os.stat(self._model)))  # noqa: PTH116
        return max((max(state[3:]) for state in states), default=0)


def content_of(source: Source, index: Path, *, trust_stat: bool) -> Content:
    """Return a model's content; it is read only if it, or a file of its weights, is in
    an unknown state.

    Args:
        source: the model.
        index: folder of the index, which has the content of a file in a certain state.
            A damaged record is ignored; a wrong one leads to another key, and so to a
            compile.
        trust_stat: True to use the index.

    Raises:
        NoSuchFile, InvalidArgument, InvalidProtobuf, InvalidGraph: as for a load.
    """
    name = source.index_name()
    record = index / name[:2] / f"{name}.json"
    cached_content = _read(record) if trust_stat else None
    if cached_content is not None and source.has_files(cached_content.files):
        return cached_content
    begun = time.time_ns()
    content = source.read()
    if trust_stat and name == source.index_name():
        with suppress(OSError):
            if begun - RACY_NS > source.changed_ns(content):
                _write(record, content)
    return content


def forget_older(index: Path, seconds: float) -> None:
    """Remove records of at least this age."""
    for record in index.glob("??/*"):
        with suppress(OSError):
            if time.time() - record.stat().st_mtime >= seconds:
                record.unlink()


def _read(record: Path) -> Content | None:
    try:
        fields = parse_json(read_small_file(record))
        return Content(
            digest=str(fields["digest"]),
            has_context_nodes=bool(fields["context"]),
            files={
                str(name): tuple(map(int, state))
                for name, state in fields["files"].items()
            },
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _write(record: Path, content: Content) -> None:
    """Write a record in one step. A crash may lose it; then the model is read again."""
    fields = {
        "digest": content.digest,
        "context": content.has_context_nodes,
        "files": content.files,
    }
    make_private_folder(record.parent)
    draft = record.with_suffix(f".{os.urandom(4).hex()}")
    draft.write_text(json.dumps(fields))
    draft.replace(record)
