"""Looks into archives as a load does, without a device, and lists every fault where a
load raises the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_sim_sdk.verification import foreign, refused, vendors, verify_nodes

from epctx_core.errors import InvalidGraph
from epctx_core.plugin import Finding, Severity
from epctx_sim_vitisai.archive import is_own
from epctx_sim_vitisai.loading import Members, NodeLoader
from epctx_sim_vitisai.sealing import is_sealed
from epctx_sim_vitisai.settings import EP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.plugin import ContextNode, ContextReader, PayloadView


def verify_archives(
    loader: NodeLoader,
    nodes: Sequence[ContextNode],
    reader: ContextReader,
    *,
    locked: bool,
) -> list[Finding]:
    """Check archives, whether their nodes are complete, and the containers in them.

    Args:
        loader: over a `GraphReader`; nothing was loaded by it.
        nodes: primaries first.
        reader: gives their payloads.
        locked: whether there is no key for encrypted payloads.
    """
    members = Members(reader)
    findings: list[Finding] = []
    shut: set[str | None] = set()
    for node in nodes:
        if not node.main_context:
            continue
        finding = _look(node, reader, loader, members, locked=locked)
        if finding is not None:
            findings.append(finding)
            shut.add(_get_prefix(node))
    # Of an archive that could not be opened, no node can be judged.
    rest = [node for node in nodes if _get_prefix(node) not in shut]
    faults = list(loader.misplaced(rest))
    findings += [refused(error, rest[0]) for error in faults]
    wrong = {error.node for error in faults}
    sound = [
        node for node in rest if node.main_context or _is_whole(node, wrong, members)
    ]
    return findings + verify_nodes(EP, sound, members, loader.loader)


def _is_whole(node: ContextNode, wrong: set[str | None], members: Members) -> bool:
    """Return whether a node without an archive of its own has its place in one that is
    open.
    """
    return node.name not in wrong and (
        node.primary is None or node.primary.name in members.archives
    )


def _look(
    node: ContextNode,
    reader: ContextReader,
    loader: NodeLoader,
    members: Members,
    *,
    locked: bool,
) -> Finding | None:
    """Open the archive of a primary; return why it cannot be."""
    payload = reader.payload(node)
    if is_sealed(payload.view):
        if locked:
            return _report_locked(node, payload)
    elif not is_own(payload.view) and (what := vendors(node, payload)) is not None:
        return foreign(EP, node, payload, what)
    try:
        members.archives[node.name] = loader.open(node, reader)
    except InvalidGraph as error:
        return refused(error, node)
    return None


def _report_locked(node: ContextNode, payload: PayloadView) -> Finding:
    return Finding(
        Severity.INFO,
        "container-not-checked",
        f"the payload {payload.name} of node {node.name!r} is encrypted, and there is "
        "no key to look into it.",
        node=node.name,
        hint="Give the option encryption_key that the model was compiled with.",
    )


def _get_prefix(node: ContextNode) -> str | None:
    """Return by what a node finds its archive; None if what it says is no text."""
    prefix = node.attributes.get("cache_file_prefix")
    return prefix if isinstance(prefix, str) else None
