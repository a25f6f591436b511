"""Primaries and references among the EPContext nodes of a model: which reference needs
which payload, where several models become one or one becomes several.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import NodeProto, helper

from epctx_core.errors import InvalidArgument
from epctx_files.manifests import Manifest, index_payloads
from epctx_files.structure import (
    find_attribute,
    find_file_name,
    is_primary,
)

if TYPE_CHECKING:
    from onnx import AttributeProto

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
    find = make_finder(bundle)
    payloads = index_payloads(bundle.manifest)
    references: dict[str, list[str]] = {}
    for node in nodes:
        if not is_primary(node):
            references.setdefault(find(node).name, []).append(node.name)
    return [
        Context(
            source=_get_source(node),
            primary=node.name,
            references=tuple(references.get(node.name, ())),
            payload=payloads.get(_get_key(node)),
        )
        for node in nodes
        if is_primary(node)
    ]


def _get_source(node: NodeProto) -> bytes:
    source = find_attribute(node, "source")
    return b"" if source is None else source.s


def _get_key(primary: NodeProto) -> tuple[str, bool]:
    """Return the name of a primary's payload in manifests, and whether it is
    embedded.
    """
    cache = find_file_name(primary)
    if cache is None:
        return primary.name, True
    return posixpath.normpath(cache.s.decode()), False


def make_finder(bundle: Bundle) -> Callable[[NodeProto], NodeProto]:
    """Return a function that returns the primary that a reference needs.

    It raises InvalidArgument if the model has none, or several and does not say which
    one.
    """
    payloads = index_payloads(bundle.manifest)
    primaries: dict[bytes, list[NodeProto]] = {}
    stated: dict[tuple[bytes, str], list[NodeProto]] = {}
    for each in filter(is_primary, bundle.parts.contexts):
        source = _get_source(each)
        primaries.setdefault(source, []).append(each)
        for name in payloads.get(_get_key(each), {}).get("references", ()):
            stated.setdefault((source, name), []).append(each)
    # Several of one file are one payload.
    one_file = {
        source
        for source, nodes in primaries.items()
        if len({_get_key(each) for each in nodes if find_file_name(each)}) == 1
    }

    def find(node: NodeProto) -> NodeProto:
        source = _get_source(node)
        found = primaries.get(source, [])
        if len(found) > 1:
            alike = found[:1] if source in one_file else found
            found = stated.get((source, node.name), alike)
        if len(found) != 1:
            raise InvalidArgument(
                f"the EPContext node {node.name!r} of {bundle.path.name} has no "
                f"payload, and {len(found) or 'no'} others of its EP have one.",
                path=bundle.path,
                hint="The manifest of a compile says which one it needs: compile "
                "again.",
            )
        return found[0]

    return find


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
    primary = make_finder(bundle)(node)
    payload = index_payloads(bundle.manifest).get(_get_key(primary))
    _give_payload(primary, node)
    if payload is not None:
        payload.pop("references", None)
        if payload["embedded"]:
            bundle.manifest["payloads"].append({**payload, "name": node.name})


def _give_payload(primary: NodeProto, node: NodeProto) -> None:
    """Give a reference the payload of a primary."""
    given = [each for each in primary.attribute if each.name in _OF_PAYLOAD]
    _replace_attributes(node, _OF_PAYLOAD, given)


def _replace_attributes(
    node: NodeProto, names: Iterable[str], given: Iterable[AttributeProto]
) -> None:
    """Give a node attributes in place of those with some names."""
    kept = [each for each in node.attribute if each.name not in names]
    # As messages: a text that is not UTF-8 can be copied, and not be set.
    copies = NodeProto(attribute=(*given, *kept))
    del node.attribute[:]
    node.attribute.MergeFrom(copies.attribute)


def share_payloads(bundle: Bundle) -> None:
    """Have primaries that name one file share the payload of the first of them, so that
    it is embedded once: the others become references.

    Where an EP has several payloads, only a manifest can say whose they are: without
    one, all stay primaries.
    """
    entries = index_payloads(bundle.manifest)
    groups: dict[bytes, dict[tuple[str, bool], list[NodeProto]]] = {}
    for node in filter(is_primary, bundle.parts.contexts):
        of_source = groups.setdefault(_get_source(node), {})
        of_source.setdefault(_get_key(node), []).append(node)

    for payloads in groups.values():
        for key, (_, *others) in payloads.items():
            known = entries.get(key)
            if len(payloads) > 1 and known is None:
                continue
            for node in others:
                _make_reference(node)
            if len(payloads) > 1 and others and known is not None:
                references = known.setdefault("references", [])
                references += [node.name for node in others]


def _make_reference(node: NodeProto) -> None:
    """Take the payload of an EPContext node away."""
    reference = helper.make_attribute("main_context", 0)
    _replace_attributes(node, ("main_context", "ep_cache_context"), [reference])
