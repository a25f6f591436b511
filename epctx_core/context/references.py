"""Which context models of a folder name a context binary: what guards a binary against being replaced."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from onnx import ModelProto

from epctx_core.context.node import payload_files
from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from pathlib import Path


def models_naming(folder: Path, binary: str) -> Iterator[Path]:
    """Yield the models directly in a folder that have an EPContext node whose payload is in `binary`.

    A file is parsed only if the binary's name occurs in it. Unreadable files name nothing.
    """
    for path in sorted(folder.glob("*.onnx")):
        with suppress(OSError, ValueError, DecodeError, InvalidGraph):
            if _mentions(path, binary.encode()) and names_binary(path, binary):
                yield path


def names_binary(path: Path, binary: str) -> bool:
    """Whether a model has an EPContext node whose payload is in `binary`."""
    model = ModelProto.FromString(path.read_bytes())
    return any(os.path.normpath(name) == binary for name in payload_files(model.graph))


def _mentions(path: Path, text: bytes) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped.find(text) >= 0
