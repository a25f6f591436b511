"""Looks into containers as a load does, without a device, and lists every fault where a
load raises the first.

Which payloads a vendor's EP opens, and what it demands of nodes, is the vendor's; it
hands in its loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidGraph
from epctx_core.plugin import Finding, Severity
from epctx_sim_sdk.container import MAGIC
from epctx_sim_sdk.foreign import is_file_name, recognise
from epctx_sim_sdk.versions import KIND, RESTORE

if TYPE_CHECKING:
    from epctx_core.plugin import ContextNode, ContextReader, PayloadView
    from epctx_sim_sdk.container import Container
    from epctx_sim_sdk.loading import ContextLoader

_SHOWN_WEIGHTS = 5
_SIMULATED = "sim-"
"""Prefix of versions of the simulated SDK."""


def refused(error: InvalidGraph, node: ContextNode) -> Finding:
    """Return what a load would raise as a finding."""
    return Finding(
        Severity.ERROR,
        "container-refused",
        error.message,
        node=error.node or node.name,
        hint=error.hint or "",
    )


def vendors(node: ContextNode, payload: PayloadView) -> str | None:
    """Return what a payload of a vendor's own is; None for one that is to be had from
    the simulated SDK.
    """
    claims_simulated = any(
        str(value).startswith(_SIMULATED) for value in node.attributes.values()
    )
    kind = node.attributes.get(KIND)
    return (
        None
        if claims_simulated or is_file_name(payload.view)
        else recognise(payload.view, kind)
    )


def foreign(ep: str, node: ContextNode, payload: PayloadView, what: str) -> Finding:
    """Return the finding for a payload of a vendor's own, of which a simulated EP
    cannot say whether it is right.
    """
    return Finding(
        Severity.INFO,
        "container-not-checked",
        f"the payload {payload.name} of node {node.name!r} is {what}; this {ep} is "
        "simulated and does not load it.",
        node=node.name,
        hint="Verify and load it where the vendor's own EP is installed.",
    )


def verify_nodes(
    ep: str, nodes: Sequence[ContextNode], reader: ContextReader, loader: ContextLoader
) -> list[Finding]:
    """Check containers and each node's graph in them.

    Args:
        ep: the EP name, for messages.
        nodes: primaries first.
        reader: gives their payloads.
        loader: over a `GraphReader`; nothing was loaded by it.
    """
    findings: list[Finding] = []
    shut: set[int] = set()
    holders = [node for node in nodes if node.main_context]
    # Several primaries may name one file.
    for payload, node in {
        id(p): (p, n) for n in reversed(holders) for p in [reader.payload(n)]
    }.values():
        faults = list(_find_faults(ep, payload, node, reader, loader))
        findings += faults
        if faults:
            shut.add(id(payload))
    for node in nodes:
        owners = (
            [node]
            if node.main_context
            else holders
            if node.primary is None
            else [node.primary]
        )
        if not any(id(reader.payload(owner)) in shut for owner in owners):
            findings += _try_load(node, reader, loader)
    return findings


def _find_faults(
    ep: str,
    payload: PayloadView,
    node: ContextNode,
    reader: ContextReader,
    loader: ContextLoader,
) -> Iterable[Finding]:
    """Yield what keeps a payload from being used at all."""
    what = (
        None if bytes(payload.view[: len(MAGIC)]) == MAGIC else vendors(node, payload)
    )
    if what is not None:
        yield foreign(ep, node, payload, what)
        return
    try:
        container = loader.open(node, reader)
        # Where the model has a manifest, all bytes were digested before.
        if payload.digest is None:
            _check_weights(container, node)
    except InvalidGraph as error:
        yield refused(error, node)


def _check_weights(container: Container, node: ContextNode) -> None:
    damaged = container.damaged_weights()
    if damaged:
        more = ", ..." if len(damaged) > _SHOWN_WEIGHTS else ""
        raise InvalidGraph(
            f"{container.subject} is damaged: {len(damaged)} of its "
            f"{len(container.tables.weights)} weights do not have the digest that its "
            "tables say, by place: "
            f"{', '.join(map(str, damaged[:_SHOWN_WEIGHTS]))}{more}.",
            node=node.name,
            hint=RESTORE,
        )


def _try_load(
    node: ContextNode, reader: ContextReader, loader: ContextLoader
) -> list[Finding]:
    try:
        loader.load([node], reader)
    except InvalidGraph as error:
        return [refused(error, node)]
    return []
