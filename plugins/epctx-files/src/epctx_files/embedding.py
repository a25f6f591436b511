"""`embed` and `externalize`: payloads and weights in the model, or in files of their
own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from onnx import TensorProto, helper

from epctx_core.errors import InvalidArgument, InvalidGraph, convert_errors
from epctx_files.bundle import (
    Bundle,
    FilesReport,
    PathInput,
    check_length,
    find_range,
    normalise,
    publish,
    read_bundle,
    require_path,
)
from epctx_files.contexts import share_payloads
from epctx_files.manifests import Manifest, index_payloads
from epctx_files.structure import (
    INITIALIZERS,
    find_attribute,
    find_file_name,
    find_location,
    is_embedded,
    is_primary,
    remove_metadata,
    set_metadata,
)

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import NodeProto

    from epctx_core.ext import MappedFile

Payloads: TypeAlias = "Mapping[tuple[str, bool], Manifest]"
SMALLEST = 1024
"""Bytes from which `externalize` moves a weight: shape inference reads smaller ones."""
_ALIGNMENT = 4096
_MOST_COPIES = 4
_FREE = 1 << 24
"""Bytes of a model that `embed` writes: so many for each of the model and its files,
and so many more.
"""
_LONGEST_EP = 64
"""Characters of an EP's name in the name of a file."""
_SUFFIX = re.compile("executionprovider$", re.IGNORECASE)


@convert_errors("embedding the files")
def embed(model: PathInput, output: PathInput) -> FilesReport:
    """Write a model with all that it names: context binaries become payloads of their
    nodes, external weights initializers with their data.

    Args:
        model: a plain model or a context model.
        output: the model that needs no other file.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: the model, or a file of it, is
            missing or damaged.
        InvalidArgument: the result would have more than 2 GiB, or needs its source
            model.
        Fail: the file cannot be written.
    """
    bundle = read_bundle(model)
    if bundle.manifest.get("source_weights"):
        raise InvalidArgument(
            f"{bundle.path.name} cannot be one file: it needs weights of its "
            "source model.",
            path=bundle.path,
            hint="Compile without weightless mode.",
        )
    share_payloads(bundle)
    _check_size(bundle, require_path(output))
    payloads = index_payloads(bundle.manifest)
    kept = [_embed_payload(bundle, node, payloads) for node in bundle.parts.contexts]
    if bundle.manifest:
        inside = [p for p in bundle.manifest["payloads"] if p.get("embedded")]
        bundle.manifest["payloads"] = inside + list(chain.from_iterable(kept))
    for tensor in bundle.parts.tensors:
        _embed_tensor(bundle, tensor)

    bundle.files.clear()
    remove_metadata(bundle.model, {INITIALIZERS})
    return publish(bundle, output)


def _check_size(bundle: Bundle, target: Path) -> None:
    """Raise InvalidArgument, before any byte is read, if a model with all that it names
    has more than 2 GiB, or would be mostly copies of what many nodes or tensors name.
    """
    stated = {
        name: len(json.dumps(payload))
        for (name, embedded), payload in index_payloads(bundle.manifest).items()
        if not embedded
    }
    names = [
        normalise(cache.s.decode())
        for node, cache in zip(
            bundle.parts.contexts,
            map(find_file_name, bundle.parts.contexts),
            strict=True,
        )
        if cache is not None and is_primary(node)
    ]
    payloads = [bundle.get_file(name).size + stated.get(name, 0) for name in names]
    weights = [
        find_range(bundle, tensor)[2]
        for tensor in bundle.parts.tensors
        if find_location(tensor) is not None
    ]
    own = bundle.model.ByteSize() + sum(file.size for file in bundle.list_files())
    size = bundle.model.ByteSize() + sum(payloads) + sum(weights)
    check_length(target, size)
    if size > _MOST_COPIES * (own + sum(stated.values())) + _FREE:
        raise InvalidArgument(
            f"{bundle.path.name} cannot be one file: with a copy for each node and "
            f"tensor that names a file it would have {size:,} bytes, and with its "
            f"files it has {own:,}.",
            path=bundle.path,
            hint="Leave payloads and weights in files of their own.",
        )


def _embed_payload(
    bundle: Bundle, node: NodeProto, payloads: Payloads
) -> list[Manifest]:
    """Move the payload of an EPContext node from its file into the node, and return its
    entries for the manifest; a reference only says that there is no file.
    """
    mode = find_attribute(node, "embed_mode")
    cache = find_attribute(node, "ep_cache_context")
    if is_embedded(node) or mode is None:
        return []
    mode.i = 1
    if cache is None:
        return []
    if not is_primary(node):
        node.attribute.remove(cache)
        return []

    name = normalise(cache.s.decode())
    if not name:
        raise InvalidGraph(
            f"the EPContext node {node.name!r} of {bundle.path.name} has no payload.",
            node=node.name,
            path=bundle.path,
            hint="Compile it again.",
        )
    file = bundle.get_file(name)
    cache.s = _read(file, 0, file.size)
    payload = payloads.get((name, False))
    return [{**payload, "name": node.name, "embedded": True}] if payload else []


def _embed_tensor(bundle: Bundle, tensor: TensorProto) -> None:
    location = find_location(tensor)
    if location is not None:
        file, offset, length = find_range(bundle, tensor)
        tensor.raw_data = _read(file, offset, length)
        del tensor.external_data[:]
        tensor.data_location = TensorProto.DEFAULT


def _read(file: MappedFile, offset: int, length: int) -> bytes:
    """Return bytes of a file.

    Raises:
        InvalidGraph: it was written to since it was opened.
    """
    # Reading beyond the end of a truncated file would end the process.
    file.check_unchanged()
    return bytes(file.view[offset : offset + length])


@convert_errors("writing payloads and weights to files")
def externalize(model: PathInput, output: PathInput) -> FilesReport:
    """Write a model whose payloads and weights lie in files beside it.

    Payloads of nodes go into `<stem>_<EP>.bin`, initializers of 1 KiB and more into
    `<name>.data`; what lies in files already stays in files. A note counts the weights
    that stay in the model, such as those in Constant nodes.

    Args:
        model: a plain model or a context model.
        output: the model; the files go into its folder.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: the model, or a file of it, is
            missing or damaged.
        Fail: the files cannot be written.
    """
    target = require_path(output)
    bundle = read_bundle(model)
    payloads = index_payloads(bundle.manifest)
    numbers: Counter[str] = Counter()
    for node in bundle.parts.contexts:
        _externalize_payload(bundle, node, target, payloads, numbers)
    data = _find_free(f"{target.stem}.data", bundle.files, numbers)
    weights = list(_move_weights(bundle, data))
    if weights:
        bundle.files[data] = _seal_weights(bundle, data, weights)
    return publish(bundle, output, notes=list(_list_staying(bundle)))


def _externalize_payload(
    bundle: Bundle,
    node: NodeProto,
    target: Path,
    payloads: Payloads,
    numbers: Counter[str],
) -> None:
    """Move the payload of an EPContext node into a file of its own."""
    if not is_embedded(node):
        return
    mode = find_attribute(node, "embed_mode")
    if mode is None:
        node.attribute.append(helper.make_attribute("embed_mode", 0))
    else:
        mode.i = 0
    cache = find_attribute(node, "ep_cache_context")
    if cache is None or not is_primary(node):
        return

    source = find_attribute(node, "source")
    text = "" if source is None else source.s.decode(errors="replace")
    ep = re.sub(r"\W+", "_", _SUFFIX.sub("", text).lower())[:_LONGEST_EP]
    name = f"{target.stem.removesuffix('_ctx')}_{ep or 'ep'}.bin"
    name = _find_free(name, bundle.files, numbers)
    bundle.files[name] = [memoryview(cache.s)]
    cache.s = name.encode()
    if payload := payloads.get((node.name, True)):
        payload |= {"name": name, "embedded": False}


def _find_free(name: str, taken: Mapping[str, object], numbers: Counter[str]) -> str:
    """Return a name that is not taken, with the next number that it was not tried
    with.
    """
    stem, dot, suffix = name.rpartition(".")
    free = name
    while free in taken:
        numbers[name] += 1
        free = f"{stem}_{numbers[name] + 1}{dot}{suffix}"
    return free


def _move_weights(bundle: Bundle, name: str) -> Iterator[memoryview]:
    """Yield the bytes of a file of initializers, which then refer to it."""
    position = 0
    for tensor in bundle.model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL or tensor.HasField("segment"):
            continue
        data = tensor.raw_data
        if len(data) < SMALLEST:
            continue
        padding = -position % _ALIGNMENT
        if padding:
            yield memoryview(bytes(padding))
        offset = position + padding
        position = offset + len(data)
        yield memoryview(data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", name),
            ("offset", str(offset)),
            ("length", str(len(data))),
        ):
            tensor.external_data.add(key=key, value=value)


def _seal_weights(
    bundle: Bundle, name: str, weights: list[memoryview]
) -> list[memoryview]:
    """Return a file of weights with its digest in a last line, and state this in the
    model as a compile does, unless another file is stated there.

    Where a killed publication left the file of one state beside the model of another,
    a load tells from this which file is the model's.
    """
    if bundle.read_checksum():
        return weights
    size = 0
    digest = hashlib.sha256()
    for part in weights:
        size += len(part)
        digest.update(part)
    segments = [[size, digest.hexdigest()]]
    stated_segment = f"0 {size} {digest.hexdigest()}\n"
    root = hashlib.sha256(stated_segment.encode()).hexdigest()
    line = f"epctx initializers {root}\n".encode()
    stated = {"bytes": size + len(line), "digest": root, "name": name}
    compact = json.dumps({**stated, "segments": segments}, separators=(",", ":"))
    set_metadata(bundle.model, INITIALIZERS, compact)
    return [*weights, memoryview(line)]


def _list_staying(bundle: Bundle) -> Iterator[str]:
    """Yield a sentence about the large tensors that are still in a model, if any."""
    sizes = [
        size
        for tensor in bundle.parts.tensors
        if find_location(tensor) is None
        for size in (len(tensor.raw_data) or tensor.ByteSize(),)
        if size >= SMALLEST
    ]
    if sizes:
        one = len(sizes) == 1
        noun, verb = ("tensor", "stays") if one else ("tensors", "stay")
        yield (
            f"{len(sizes):,} {noun} of 1 KiB or more "
            f"{verb} in the model, {sum(sizes):,} bytes: "
            "only initializers of the main graph with raw data go into a file, not "
            "tensors in subgraphs or in attributes, such as those of Constant nodes"
        )
