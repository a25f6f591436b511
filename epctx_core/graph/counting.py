"""Counts of the messages, nodes and names in a model, taken over its bytes before
anything is decoded.

Protobuf makes up to 220 bytes of one: an empty message takes two bytes in a file. The
structure comes from ONNX's descriptors.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from epctx_core.errors import InvalidGraph
from epctx_core.graph.wire import BYTES, FIXED_SIZES, MORE, VARINT, read_varint
from epctx_core.options.choices import FREE_MESSAGES
from epctx_core.plugin.protos import GraphProto, ModelProto, NodeProto

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epctx_core.options import InputBudget

_MOST_LEVELS = 100
"""Levels of messages that protobuf decodes."""
_CHUNK = 1 << 20
_WIRE_TYPE = 7
_GROUP = 3
_GROUP_END = 4
"""Marks around a group, which no message of ONNX has: protobuf keeps all in between
unread.
"""
_NAME = "name"

_Schema: TypeAlias = "dict[int, Any]"


def check_budget(
    data: bytes, size: int, budget: InputBudget, path: Path | None
) -> None:
    """Check that a serialised model decodes to no more than its host allows.

    Mostly a look at the bytes is enough: every message and text begins with a byte
    whose lowest bits are 2. Fields are stepped through only if there are too many of
    those; payloads and weights are stepped over.

    Args:
        data: what will be decoded.
        size: of the whole model, in bytes.
        budget: what its host allows.
        path: of its file, if any.

    Raises:
        InvalidGraph: it does.
    """
    allowed = _compute_limits(size, budget)
    view = np.frombuffer(data, np.uint8)
    chunks = (view[start : start + _CHUNK] for start in range(0, len(view), _CHUNK))
    if sum(
        int(np.count_nonzero((chunk & _WIRE_TYPE) == BYTES)) for chunk in chunks
    ) <= min(allowed.values()):
        return
    for what, count in _count_messages(data, allowed).items():
        if count > allowed[what]:
            raise _budget_error(what, allowed[what], budget, path)


def make_counter(
    size: int, budget: InputBudget, path: Path | None
) -> Callable[[str], None]:
    """Return a function that counts messages, nodes, names and bodies one by one, for
    readers of another format.

    It raises InvalidGraph at the first one over the budget; `size` is the length of the
    file.
    """
    allowed = _compute_limits(size, budget)
    counts = dict.fromkeys(allowed, 0)

    def count(what: str) -> None:
        counts[what] += 1
        if counts[what] > allowed[what]:
            raise _budget_error(what, allowed[what], budget, path)

    return count


def _compute_limits(size: int, budget: InputBudget) -> dict[str, int]:
    """Return how many messages, nodes, names and bodies a model of so many bytes may
    have.
    """
    return {
        "messages": min(
            budget.messages, max(FREE_MESSAGES, size // budget.bytes_per_message)
        ),
        "nodes": budget.nodes,
        "names": budget.names,
        "bodies": budget.bodies,
    }


def _budget_error(
    what: str, allowed: int, budget: InputBudget, path: Path | None
) -> InvalidGraph:
    """Return the error for a model that has more of something than `_compute_limits`
    says.
    """
    is_spread = what == "messages" and allowed < budget.messages
    why = (
        f"less than {budget.bytes_per_message} bytes for each"
        if is_spread
        else "all that its host allows"
    )
    smaller = " and a smaller bytes_per_message" if what == "messages" else ""
    return InvalidGraph(
        f"{path.name if path else 'the model given as bytes'} has more than "
        f"{allowed:,} {what}, which is {why}; this is counted as it is read.",
        path=path,
        hint="If the file is trusted, set SessionOptions.input_budget (inspect_model: "
        f"budget) to epctx.InputBudget with a larger {what!r}{smaller}.",
    )


@cache
def _read_schema(descriptor: Any) -> _Schema:
    """Return the content of a message's fields of bytes by number: text, or the
    descriptor of a message.
    """
    schema: _Schema = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            schema[field.number] = field.message_type
        elif field.type == field.TYPE_STRING:
            schema[field.number] = _NAME
    return schema


def _count_messages(data: bytes, allowed: dict[str, int]) -> dict[str, int]:
    """Step through the fields of a model until it ends, is damaged, or has more of
    something than is allowed.
    """
    node = NodeProto.DESCRIPTOR
    graph = GraphProto.DESCRIPTOR
    counts = dict.fromkeys(allowed, 0)
    schema = _read_schema(ModelProto.DESCRIPTOR)
    at = 0
    end = len(data)
    outside: list[tuple[_Schema, int]] = []
    try:
        while outside or at < end:
            if at >= end:
                schema, end = outside.pop()
                continue
            tag, at = read_varint(data, at) if data[at] >= MORE else (data[at], at + 1)
            wire_type = tag & _WIRE_TYPE
            if wire_type == _GROUP:
                outside.append((schema, end))
                schema = {}
                continue
            if wire_type == _GROUP_END:
                schema, end = outside.pop()
                continue
            if wire_type != BYTES:
                at = (
                    read_varint(data, at)[1]
                    if wire_type == VARINT
                    else at + FIXED_SIZES.get(wire_type, 0)
                )
                continue
            length, at = (
                read_varint(data, at) if data[at] >= MORE else (data[at], at + 1)
            )
            inner = schema.get(tag >> 3)
            is_over = (
                counts["messages"] > allowed["messages"]
                or counts["names"] > allowed["names"]
            )
            # The decoder has a better message for bytes that are not a model.
            if is_over or at + length > end or len(outside) > _MOST_LEVELS:
                break
            if inner is None or inner is _NAME:
                at += length
                counts["names"] += inner is _NAME
            else:
                counts["messages"] += 1
                counts["nodes"] += inner is node
                counts["bodies"] += inner is graph
                if length:
                    outside.append((schema, end))
                    schema = _read_schema(inner)
                    end = at + length
    except IndexError:
        pass

    return counts
