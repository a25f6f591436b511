"""What an entry of the cache says about itself: its record, and how its files are checked against it.

Knows one entry's folder; knows no locks, and not how entries come and go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epctx_core.context.manifest import Manifest, PayloadEntry, read_manifest
from epctx_core.context.payload_writer import digested
from epctx_core.context.unfinished import canonical, is_file
from epctx_core.errors import EpctxError, InvalidGraph
from epctx_core.graph.mapping import MappedFile
from epctx_core.graph.model_io import parse_model
from epctx_core.publish import posix

NAME = "entry.json"
MODEL = "model_ctx.onnx"
_VERSION = 1
_MAX_BYTES = 64 << 20


class CorruptEntryError(Exception):
    """An entry is not what was written; the text says how."""


@dataclass(frozen=True, kw_only=True)
class EntryFile:
    """A file of an entry.

    Attributes:
        path: relative to the entry's folder.
        bytes: its length.
        digest: of the model its SHA-256 (hex); of others as `CompileReport.outputs` has it.
    """

    path: str
    bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class EntryRecord:
    """What an entry says about itself.

    Attributes:
        key: the entry's.
        model: how the source was called when it was compiled.
        created: when, in seconds since 1970.
        seconds: how long the compile took.
        partitions: how many EPs compiled; 0 for a model of which no EP took a node.
        files: all but the record, the context model last.
        ingredients: what the key was made of.
    """

    key: str
    model: str
    created: float
    seconds: float
    partitions: int
    files: tuple[EntryFile, ...]
    ingredients: Mapping[str, Any]

    @property
    def eps(self) -> tuple[str, ...]:
        """The EP types that it was compiled for, in order of priority."""
        return tuple(str(provider["ep"]) for provider in self.ingredients["eps"])

    def dump(self) -> bytes:
        """Return the record's bytes, which hold a digest of the rest."""
        fields = {
            "version": _VERSION,
            "key": self.key,
            "model": self.model,
            "created": self.created,
            "seconds": self.seconds,
            "partitions": self.partitions,
            "files": [{"path": f.path, "bytes": f.bytes, "digest": f.digest} for f in self.files],
            "ingredients": dict(self.ingredients),
        }
        return json.dumps({**fields, "record": _digest(fields)}).encode()


def read_record(folder: Path) -> EntryRecord | None:
    """Return the record of the entry in a folder, None if there is no such entry.

    Raises:
        CorruptEntryError: the record is damaged.
    """
    try:
        data = posix.read_regular(folder / NAME, _MAX_BYTES)
        return None if data is None and not folder.exists() else _parse(data or b"", folder.name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptEntryError(f"its record is damaged ({type(error).__name__})") from error


def _parse(data: bytes, key: str) -> EntryRecord:
    fields = json.loads(data)
    said = fields.pop("record")
    if said != _digest(fields) or fields["version"] != _VERSION or fields["key"] != key:
        raise ValueError("another record")
    files = tuple(EntryFile(**{**file, "path": canonical(file["path"])}) for file in fields["files"])
    if not files or not all(file.bytes >= 0 for file in files):
        raise ValueError("no files")
    del fields["version"]
    record = EntryRecord(**{**fields, "files": files})
    if record.dump() != data:
        raise ValueError("not as it is written")
    return record


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def check_head(folder: Path, record: EntryRecord) -> None:
    """Check what a load does not: the model whole, and that all other files have their length.

    The model holds no large weights. Its payloads are checked against its manifest by the load itself.

    Raises:
        CorruptEntryError: a file is missing or another one.
    """
    try:
        for file in record.files:
            path = folder / file.path
            if not is_file(path):
                raise CorruptEntryError(f"{file.path} is missing")
            if path.stat().st_size != file.bytes:
                raise CorruptEntryError(f"{file.path} has another length")
        model = record.files[-1]
        if hashlib.sha256((folder / model.path).read_bytes()).hexdigest() != model.digest:
            raise CorruptEntryError(f"{model.path} has another digest")
    except OSError as error:
        raise CorruptEntryError(f"it cannot be read: {error}") from error


def check_whole(folder: Path, record: EntryRecord) -> None:
    """Check every byte of an entry.

    Raises:
        CorruptEntryError: as `check_head`, or a byte is another one.
    """
    check_head(folder, record)
    try:
        manifest = _manifest(folder / record.files[-1].path)
        for file in record.files[:-1]:
            mapped = _mapped(folder / file.path)
            entry = _entry(manifest, file.path, mapped)
            if entry.root != file.digest:
                raise CorruptEntryError(f"{file.path} has another digest")
            entry.check_whole(mapped.view, forget=mapped.forget)
    except InvalidGraph as error:
        raise CorruptEntryError(error.message) from error
    except (OSError, EpctxError) as error:
        raise CorruptEntryError(f"it cannot be read: {error}") from error


def file_digests(folder: Path, model: str, names: Iterable[str]) -> list[str]:
    """Return the digest (hex) of each file beside a context model, as its manifest says it, where it does."""
    manifest = _manifest(folder / model)
    return [_entry(manifest, name, _mapped(folder / name)).root for name in names]


def _entry(manifest: Manifest | None, name: str, mapped: MappedFile) -> PayloadEntry:
    """Return what the manifest says about a file; for one that it does not know, what the bytes are now."""
    known = manifest.entry(name, embedded=False) if manifest is not None else None
    return digested(name, mapped.view, mapped.forget) if known is None else known


def _manifest(model: Path) -> Manifest | None:
    return read_manifest(parse_model(model.read_bytes(), model))


def _mapped(path: Path) -> MappedFile:
    with path.open("rb") as file:
        return MappedFile(file.fileno(), str(path))
