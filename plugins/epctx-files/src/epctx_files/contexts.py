"""Primaries and references among the EPContext nodes of a model: which reference needs
which payload, where several models become one or one becomes several.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidArgument
from epctx_files.manifests import Manifest, find_payloads
from epctx_files.structure import (
    find_attribute,
    find_file_name,
    is_primary,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from epctx_files.bundle import Bundle

_OF_PAYLOAD = ("main_context", "embed_mode", "ep_cache_context")
"""Attributes that make a node a primary."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """EPContext nodes of one payload.

    Attributes:
        source: of the nodes.
        primary: the name of the node that has the payload.
        references: names of the nodes without one that need it.
        payload: its entry in the manifest, if there is one.
    """

    source: bytes
    primary: str
    references: tuple[str, ...]
    payload: Manifest | None


def list_contexts(bundle: Bundle) -> list[Context]:
    """Return the payloads of a model with the nodes that need them.

    Raises:
        InvalidArgument: a reference has several primaries, and the manifest does not
            say which one.
    """
    nodes = bundle.parts.contexts
    needed = {
        node.name: find_primary(bundle, node).name
        for node in nodes
        if not is_primary(node)
    }
    return [
        Context(
            source=_get_source(node),
            primary=node.name,
            references=tuple(name for name, of in needed.items() if of == node.name),
            payload=_find_payload(bundle, node),
        )
        for node in nodes
        if is_primary(node)
    ]


def _get_source(node: NodeProto) -> bytes:
    source = find_attribute(node, "source")
    return b"" if source is None else source.s


def _find_payload(bundle: Bundle, primary: NodeProto) -> Manifest | None:
    """Return the manifest's entry of a primary's payload."""
    cache = find_file_name(primary)
    name = primary.name if cache is None else posixpath.normpath(cache.s.decode())
    entries = find_payloads(bundle.manifest, name, embedded=cache is None)
    return entries[0] if entries else None


def find_primary(bundle: Bundle, node: NodeProto) -> NodeProto:
    """Return the primary that a reference needs.

    Raises:
        InvalidArgument: the model has none, or several and does not say which one.
    """
    primaries = [
        each
        for each in bundle.parts.contexts
        if is_primary(each) and _get_source(each) == _get_source(node)
    ]
    if len(primaries) > 1:
        # Several of one file are one payload.
        named = [each for each in primaries if _states(bundle, each, node)]
        files = {cache.s for cache in map(find_file_name, primaries) if cache}
        primaries = named or (primaries[:1] if len(files) == 1 else primaries)
    if len(primaries) != 1:
        raise InvalidArgument(
            f"the EPContext node {node.name!r} of {bundle.path.name} has no payload, "
            f"and {len(primaries) or 'no'} others of its EP have one.",
            path=bundle.path,
            hint="The manifest of a compile says which one it needs: compile again.",
        )
    return primaries[0]


def _states(bundle: Bundle, primary: NodeProto, node: NodeProto) -> bool:
    """Return whether the manifest says that a reference needs a primary's payload."""
    payload = _find_payload(bundle, primary)
    return payload is not None and node.name in payload.get("references", ())


def separate_contexts(bundle: Bundle, contexts: Iterable[Context]) -> None:
    """Have each reference of a merged model find its primary, where an EP has several:
    the manifest says it, or, without one, the reference becomes a primary.
    """
    contexts = list(contexts)
    counts = Counter(context.source for context in contexts)
    nodes = {node.name: node for node in bundle.parts.contexts}
    for context in contexts:
        if counts[context.source] == 1 or not context.references:
            continue
        if context.payload is not None:
            context.payload["references"] = list(context.references)
        else:
            for name in context.references:
                _give_payload(nodes[context.primary], nodes[name])


def make_primary(bundle: Bundle, node: NodeProto) -> None:
    """Give an EPContext node that has no payload of its own that of its primary.

    Raises:
        InvalidArgument: the model does not say which one that is.
    """
    if is_primary(node):
        return
    primary = find_primary(bundle, node)
    payload = _find_payload(bundle, primary)
    _give_payload(primary, node)
    if payload is not None:
        payload.pop("references", None)
        if payload.get("embedded"):
            bundle.manifest["payloads"].append({**payload, "name": node.name})


def _give_payload(primary: NodeProto, node: NodeProto) -> None:
    """Give a reference the payload of a primary."""
    kept = [each for each in node.attribute if each.name not in _OF_PAYLOAD]
    given = [each for each in primary.attribute if each.name in _OF_PAYLOAD]
    attributes = [each.SerializeToString() for each in (*given, *kept)]
    del node.attribute[:]
    for text in attributes:
        node.attribute.add().ParseFromString(text)
