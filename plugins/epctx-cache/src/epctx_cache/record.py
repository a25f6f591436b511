"""Record of an entry: what the entry says about itself, and how its files are checked against it.

Knows one entry's folder; knows no locks, and not how entries come and go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from epctx_core.errors import EpctxError
from epctx_core.ext import check_files

NAME = "entry.json"
MODEL = "model_ctx.onnx"
_VERSION = 1


class CorruptEntryError(Exception):
    """An entry is not what was written; the text says how."""


@dataclass(frozen=True, kw_only=True)
class EntryFile:
    """A file of an entry.

    Attributes:
        path: relative to the entry's folder.
        bytes: its length.
        digest: as `CompileReport.outputs` has it; of the model its SHA-256 (hex).
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
        fields = {"version": _VERSION, **asdict(self)}
        return json.dumps({**fields, "record": _digest(fields)}).encode()


def read_record(folder: Path) -> EntryRecord | None:
    """Return the record of the entry in a folder, None if there is no such entry.

    Raises:
        CorruptEntryError: the record is damaged.
    """
    path = folder / NAME
    if not path.is_file():  # nor is a pipe one, which nobody may write into
        if not folder.exists():
            return None
        raise CorruptEntryError("it has no record")
    try:
        return _parse(path.read_bytes(), folder.name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptEntryError(f"its record is damaged ({type(error).__name__})") from error


def _parse(data: bytes, key: str) -> EntryRecord:
    fields = json.loads(data)
    said = fields.pop("record")
    if said != _digest(fields) or fields.pop("version") != _VERSION or fields["key"] != key:
        raise ValueError("another record")
    fields["files"] = tuple(EntryFile(**file) for file in fields["files"])
    record = EntryRecord(**fields)
    if not record.files or record.dump() != data:
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
            if path.is_symlink() or not path.is_file():
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
        check_files(folder / record.files[-1].path)
    except EpctxError as error:
        raise CorruptEntryError(error.message) from error
    except OSError as error:
        raise CorruptEntryError(f"it cannot be read: {error}") from error
