"""Which files a model names: context binaries, external weights. What guards them against being replaced."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from onnx import ModelProto

from epctx_core.context.metadata import set_metadata
from epctx_core.context.node import payload_files
from epctx_core.errors import InvalidGraph
from epctx_core.graph.weights import all_tensors, is_detached

if TYPE_CHECKING:
    from pathlib import Path


DEPENDENCIES_KEY = "external_dependencies"
"""ONNX Runtime's metadata key for what a compiled model needs besides its file; from 1.32 on in each."""
SOURCE_MODEL, EXTERNAL_WEIGHTS, CONTEXT_BINARY = "source_model", "external_weights", "ep_context_binary"
"""The words for it, in the order in which ONNX Runtime writes them."""


def state_dependencies(
    model: ModelProto, *, source_model: bool, external_weights: bool, context_binary: bool
) -> None:
    """Write what a context model needs besides its file, in ONNX Runtime's words joined by `;`."""
    words = {SOURCE_MODEL: source_model, EXTERNAL_WEIGHTS: external_weights, CONTEXT_BINARY: context_binary}
    set_metadata(model, DEPENDENCIES_KEY, ";".join(word for word, needed in words.items() if needed))


def stated_dependencies(model: ModelProto) -> tuple[str, ...] | None:
    """Return what a model says that it needs besides its file; None if it does not say."""
    for entry in model.metadata_props:
        if entry.key == DEPENDENCIES_KEY:
            # protobuf hands out what is not UTF-8 as bytes.
            text: str | bytes = entry.value
            text = text.decode(errors="replace") if isinstance(text, bytes) else text
            return tuple(filter(None, text.split(";")))
    return None


def models_naming(folder: Path, name: str, *, besides: Collection[Path] = ()) -> Iterator[Path]:
    """Yield the models directly in a folder that name a file of it: as a binary, or as one of weights.

    A file is parsed only if the name occurs in it; those of `besides` are not even opened. Unreadable files
    name nothing.
    """
    for path in sorted(set(folder.glob("*.onnx")).difference(besides)):
        with suppress(OSError, ValueError, DecodeError, InvalidGraph):
            # A pipe of that name would make us wait for a writer.
            if (
                path.is_file()
                and _mentions(path, os.fsencode(PurePosixPath(name).name))
                and _names(path, name)
            ):
                yield path


def external_locations(model: ModelProto) -> Iterator[str]:
    """Yield the files that a model's tensors say, wherever in the model they stand; some of them twice."""
    for tensor in all_tensors(model.graph, model.functions):
        if is_detached(tensor):
            yield from (entry.value for entry in tensor.external_data if entry.key == "location")


def _names(path: Path, name: str) -> bool:
    model: ModelProto = ModelProto.FromString(path.read_bytes())
    return _is_among(name, payload_files(model.graph)) or _is_among(name, external_locations(model))


def _is_among(name: str, names: Iterator[str]) -> bool:
    return any(os.path.normpath(other) == name for other in names)


def _mentions(path: Path, text: bytes) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped.find(text) >= 0
