"""`diff`: what two models have differently."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from epctx_files.bundle import (
    Bundle,
    PathInput,
    find_range,
    read_bundle,
)
from epctx_files.structure import find_location, is_context_node, spell_type

if TYPE_CHECKING:
    from epctx_core.ext import MappedFile

_AT_ONCE = 1 << 22
_LONGEST = 200
_OF_CONTEXT = frozenset({"ep_cache_context"})
"""Attribute whose bytes the manifest's digests stand for."""

Facts: TypeAlias = "Mapping[str, str]"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Fact in which two models differ.

    Attributes:
        part: `model`, `opset`, `input`, `output`, `node`, `weight`, `payload`, `EP` or
            `metadata`.
        name: its name in the model.
        first, second: in the two models; None where one has no such thing.
    """

    part: str
    name: str
    first: str | None
    second: str | None

    def as_dict(self) -> dict[str, str | None]:
        """Return the form that `epctx diff --json` prints."""
        return {
            "part": self.part,
            "name": self.name,
            "first": self.first,
            "second": self.second,
        }


@dataclass(frozen=True, kw_only=True)
class DiffReport:
    """Differences of two models.

    Attributes:
        differences: in the order of the models' parts.
        notes: sentences about what was not compared.
    """

    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx diff --json` prints."""
        return {
            "differences": [each.as_dict() for each in self.differences],
            "notes": list(self.notes),
        }


def diff(first: PathInput, second: PathInput, *, weights: bool = False) -> DiffReport:
    """Return the differences of two models: versions, inputs and outputs, nodes by
    name, weights, payloads by their digests, EPs, metadata.

    Args:
        first, second: plain models or context models.
        weights: True to compare the bytes of weights in files as well, which reads
            them; otherwise their types, shapes and lengths are compared.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: a model, or a file of it, is missing
            or damaged.

    Example:
        >>> diff("old_ctx.onnx", "new_ctx.onnx").differences[0].part
        'payload'
    """
    one, other = read_bundle(first), read_bundle(second)
    tables = zip(_describe(one).items(), _describe(other).values(), strict=True)
    found = [
        difference
        for (part, mine), theirs in tables
        for difference in _compare(part, mine, theirs)
    ]
    unread = 0
    for name, mine, theirs in _pair_weights(one, other):
        if _are_same_bytes(mine, theirs):
            continue
        if not weights:
            unread += 1
        elif not _have_equal_bytes(mine, theirs):
            found.append(
                Difference(part="weight", name=name, first="its bytes", second="others")
            )
    notes = [f"the bytes of {unread} weights in files were not compared"] * bool(unread)
    return DiffReport(differences=tuple(found), notes=tuple(notes))


def _describe(bundle: Bundle) -> dict[str, Facts]:
    """Return each part of a model as texts by name."""
    model = bundle.model
    graph = model.graph
    manifest = bundle.manifest
    opsets = {
        each.domain or "ai.onnx": str(each.version) for each in model.opset_import
    }
    return {
        "model": {"ir_version": str(model.ir_version)},
        "opset": opsets,
        "input": {each.name: spell_type(each.type) for each in graph.input},
        "output": {each.name: spell_type(each.type) for each in graph.output},
        "node": {_identify(node): _spell_node(node) for node in graph.node},
        "weight": {each.name: _spell_tensor(each) for each in graph.initializer},
        "payload": {
            str(each["name"]): f"{each.get('bytes')} bytes, digest {each.get('root')}"
            for each in manifest.get("payloads", ())
        },
        "EP": {
            f"{ep} {fact}": str(value)
            for ep, facts in manifest.get("providers", {}).items()
            for fact, value in facts.items()
        },
        "metadata": {each.key: str(each.value) for each in model.metadata_props},
    }


def _compare(part: str, mine: Facts, theirs: Facts) -> Iterator[Difference]:
    """Yield the names under which two tables have different texts."""
    for name in dict.fromkeys(chain(mine, theirs)):
        one, other = mine.get(name), theirs.get(name)
        if one != other:
            yield Difference(part=part, name=name, first=one, second=other)


def _identify(node: NodeProto) -> str:
    """Return the name of a node, or its first output, which no other node has."""
    return node.name or next(filter(None, node.output), node.op_type)


def _spell_node(node: NodeProto) -> str:
    """Return an operator with its arguments and attributes on one line."""
    hidden = _OF_CONTEXT if is_context_node(node) else frozenset()
    attributes = sorted(
        f"{each.name}={_spell_attribute(each)}"
        for each in node.attribute
        if each.name not in hidden
    )
    given = f" [{', '.join(attributes)}]" if attributes else ""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{operator}({', '.join(node.input)}) -> {', '.join(node.output)}{given}"


def _spell_attribute(attribute: AttributeProto) -> str:
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        graphs = (attribute.g, *attribute.graphs)
        return "; ".join(
            f"{{{'; '.join(map(_spell_node, each.node))}}}" for each in graphs
        )
    if attribute.type == AttributeProto.TENSOR:
        return _spell_tensor(attribute.t)
    return repr(onnx.helper.get_attribute_value(attribute))


def _spell_tensor(tensor: TensorProto) -> str:
    """Return type and shape of a tensor, and a digest of data in the model."""
    kind = TensorProto.DataType.Name(tensor.data_type).lower()
    shape = "x".join(map(str, tensor.dims)) or "scalar"
    if find_location(tensor) is not None:
        return f"{kind} {shape}"
    bare = TensorProto()
    bare.CopyFrom(tensor)
    bare.ClearField("name")
    bare.ClearField("doc_string")
    digest = _digest(bare.SerializeToString(deterministic=True))
    return f"{kind} {shape}, data {digest[:12]}"


def _digest(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


Range: TypeAlias = "tuple[MappedFile, int, int]"


def _pair_weights(one: Bundle, other: Bundle) -> Iterator[tuple[str, Range, Range]]:
    """Yield the weights that both models have in files, with the ranges there."""
    theirs = {each.name: each for each in other.model.graph.initializer}
    for tensor in one.model.graph.initializer:
        match = theirs.get(tensor.name)
        if (
            match is not None
            and find_location(tensor) is not None
            and find_location(match) is not None
            and _spell_tensor(tensor) == _spell_tensor(match)
        ):
            yield tensor.name, find_range(one, tensor), find_range(other, match)


def _are_same_bytes(one: Range, other: Range) -> bool:
    """Return whether two ranges are one, of a file with several names."""
    is_one_file = os.path.samestat(one[0].status, other[0].status)
    return is_one_file and one[1:] == other[1:]


def _have_equal_bytes(one: Range, other: Range) -> bool:
    """Return whether two ranges have the same bytes; they are read."""
    if one[2] != other[2]:
        return False
    for done in range(0, one[2], _AT_ONCE):
        count = min(_AT_ONCE, one[2] - done)
        pieces = []
        for file, offset, _ in (one, other):
            start = offset + done
            pieces.append(file.view[start : start + count])
        if pieces[0] != pieces[1]:
            return False

        # Pages that were read count as this process's memory until then.
        for file, offset, _ in (one, other):
            file.forget(offset + done, count)
    return True
