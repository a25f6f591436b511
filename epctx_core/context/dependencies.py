"""Files that a model depends on, as it names them: what it states, and which models
name a file, so that nobody may replace it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path, PurePosixPath

from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto

from epctx_core.context.metadata import get_metadata, set_metadata
from epctx_core.context.node import is_context_node
from epctx_core.errors import InvalidGraph
from epctx_core.graph.walks import walk_indexed_nodes, walk_tensors
from epctx_core.graph.weights import is_detached

DEPENDENCIES_KEY = "external_dependencies"
"""ONNX Runtime's metadata key for what a compiled model needs besides its file; from
1.32 on in each.
"""
SOURCE_MODEL = "source_model"
EXTERNAL_WEIGHTS = "external_weights"
CONTEXT_BINARY = "ep_context_binary"
"""The words for it, in the order in which ONNX Runtime writes them."""


def write_dependencies(
    model: ModelProto,
    *,
    source_model: bool,
    external_weights: bool,
    context_binary: bool,
) -> None:
    """Write the dependencies of a context model besides its file, in ONNX Runtime's
    words joined by `;`.
    """
    words = {
        SOURCE_MODEL: source_model,
        EXTERNAL_WEIGHTS: external_weights,
        CONTEXT_BINARY: context_binary,
    }
    set_metadata(
        model,
        DEPENDENCIES_KEY,
        ";".join(word for word, needed in words.items() if needed),
    )


def read_dependencies(model: ModelProto) -> tuple[str, ...] | None:
    """Return the stated dependencies of a model besides its file, None if it states
    none.
    """
    text = get_metadata(model, DEPENDENCIES_KEY)
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    return None if text is None else tuple(filter(None, text.split(";")))


def find_models_naming(
    folder: Path, name: str, *, besides: Collection[Path] = ()
) -> Iterator[Path]:
    """Yield the models directly in a folder that name a file of it: as a binary, or as
    one of weights.

    A file is parsed only if the name occurs in it; those of `besides` are not even
    opened. Unreadable files are skipped.
    """
    for path in sorted(set(folder.glob("*.onnx")).difference(besides)):
        with suppress(OSError, ValueError, DecodeError, InvalidGraph):
            # A pipe of that name would make us wait for a writer.
            if path.is_file() and _mentions(
                path, os.fsencode(PurePosixPath(name).name)
            ):
                model = ModelProto.FromString(path.read_bytes())
                said = chain(
                    list_payload_files(model.graph), list_external_locations(model)
                )
                if any(os.path.normpath(other) == name for other in said):
                    yield path


def list_payload_files(graph: GraphProto) -> Iterator[str]:
    """Yield the file names in EPContext nodes, at any depth, without decoding the rest
    of the nodes.
    """
    for _, _, node in walk_indexed_nodes(graph):
        if is_context_node(node):
            attributes = {a.name: a for a in node.attribute}
            mode = attributes.get("embed_mode")
            cache = attributes.get("ep_cache_context")
            if mode is not None and mode.i != 1 and cache is not None:
                yield cache.s.decode(errors="replace")


def list_external_locations(model: ModelProto) -> Iterator[str]:
    """Yield the files in which a model's tensors lie, at any depth; some of them
    twice.
    """
    for tensor in walk_tensors(model.graph, model.functions):
        if is_detached(tensor):
            yield from (
                entry.value for entry in tensor.external_data if entry.key == "location"
            )


def _mentions(path: Path, text: bytes) -> bool:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        return mapped.find(text) >= 0
