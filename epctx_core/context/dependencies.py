"""Files that a model depends on, as it names them: what it states, and which models
name a file, so that nobody may replace it; and a digest of a model with its files of
weights, for caches.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from epctx_core.context.metadata import get_metadata, set_metadata
from epctx_core.context.model_formats import decode_model, find_format
from epctx_core.context.node import is_context_node
from epctx_core.context.weights_folder import WeightsFolder
from epctx_core.errors import EpctxError
from epctx_core.graph.model_io import MOST_BYTES, read_model
from epctx_core.graph.tensor_bytes import read_weight
from epctx_core.graph.walks import walk_indexed_nodes, walk_model_nodes, walk_tensors
from epctx_core.graph.weights import (
    Weight,
    compute_digests_ahead,
    is_detached,
    share_digests,
)

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

    from epctx_core.graph.mapping import MappedFile, ModelInput, OpenedFiles
    from epctx_core.options import InputBudget

DEPENDENCIES_KEY = "external_dependencies"
"""ONNX Runtime's metadata key for what a compiled model needs besides its file; from
1.32 on in each.
"""
SOURCE_MODEL = "source_model"
EXTERNAL_WEIGHTS = "external_weights"
CONTEXT_BINARY = "ep_context_binary"
"""The words for it, in the order in which ONNX Runtime writes them."""


def write_dependencies(model: ModelProto, words: Iterable[str]) -> None:
    """Write the dependencies of a context model besides its file: ONNX Runtime's words,
    joined by `;`.
    """
    set_metadata(model, DEPENDENCIES_KEY, ";".join(words))


def read_dependencies(model: ModelProto) -> tuple[str, ...] | None:
    """Return the stated dependencies of a model besides its file, None if it states
    none.
    """
    text = get_metadata(model, DEPENDENCIES_KEY)
    # protobuf gives bytes for one that is not UTF-8.
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return None if text is None else tuple(filter(None, text.split(";")))


def find_models_naming(
    folder: Path, name: str, *, besides: Collection[Path | None]
) -> Iterator[Path]:
    """Yield the models directly in a folder that name a file of it: as a binary, or as
    one of weights.

    A file is parsed only if the name occurs in it; those of `besides` are not even
    opened. Unreadable files are skipped.
    """
    for path in sorted(set(folder.glob("*.onnx")).difference(besides)):
        with suppress(OSError, ValueError, EpctxError):
            # A pipe of that name would make us wait for a writer, and a file with holes
            # of terabytes for its end: no model is as large.
            if (
                path.is_file()
                and path.stat().st_size <= MOST_BYTES
                and _mentions(path, os.fsencode(PurePosixPath(name).name))
            ):
                data, _ = read_model(path)
                model = decode_model(data, path, None, find_format(data, path))
                names = chain(
                    list_payload_files(model.graph), list_external_locations(model)
                )
                if any(os.path.normpath(other) == name for other in names):
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


class ModelDigest(NamedTuple):
    """Digest of a model with its weights.

    Attributes:
        sha256: in hex, over the model's bytes and its weights in files; the names of
            the folder and of the model's own file do not count.
        has_context_nodes: True for a context model.
        files: status of each file of weights when it was read, by its location as the
            model names it.
    """

    sha256: str
    has_context_nodes: bool
    files: Mapping[str, os.stat_result]


def digest_with_weights(
    model: ModelInput,
    opened: OpenedFiles,
    *,
    weights_folder: str | None,
    replaced: Collection[str],
    budget: InputBudget,
    named: str | None,
) -> ModelDigest:
    """Digest a model and its weights in files; see `digest_model`.

    Args:
        model: a path or bytes.
        opened: gets the files that are opened.
        weights_folder: the folder of the weights, as the host named it; None for the
            model's.
        replaced: the initializers that the host replaced, which are not read.
        budget: the limit of what the model may decode to.
        named: the format that the host named.
    """
    data, path = read_model(model, opened)
    proto = decode_model(data, path, budget, find_format(data, path, budget, named))
    sha = hashlib.sha256(hashlib.sha256(data).digest())
    del data

    for tensor in proto.graph.initializer if replaced else ():
        if tensor.name in replaced:
            tensor.ClearField("data_location")

    folder = WeightsFolder(path, weights_folder, opened=opened)
    model_name = "" if path is None else path.name
    files: dict[str, MappedFile] = {}
    weights: dict[tuple[str, int, int], Weight] = {}
    for tensor in filter(is_detached, walk_tensors(proto.graph, proto.functions)):
        weight = read_weight(tensor, files, folder.open)
        location = next(
            entry.value for entry in tensor.external_data if entry.key == "location"
        )
        # The model's own file is digested as the model; it may have another name next
        # time.
        if location != model_name:
            offset = weight.mapping[1] if weight.mapping else 0
            weights.setdefault((location, offset, weight.nbytes), weight)

    share_digests(weights.values())
    with compute_digests_ahead(weights.values()):
        for (location, offset, length), weight in sorted(weights.items()):
            line = f"{location}\0{offset} {length} {weight.digest}\n"
            sha.update(line.encode("utf-8", "surrogatepass"))

    # Also those in functions.
    has_context_nodes = any(map(is_context_node, walk_model_nodes(proto)))
    statuses = {
        location: mapped.status
        for location, mapped in files.items()
        if location != model_name
    }
    return ModelDigest(sha.hexdigest(), has_context_nodes, statuses)
