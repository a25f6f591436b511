"""From EPContext nodes to runnables: which payload, which graph, and whether versions allow it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from epctx_sim_sdk.container import Container, open_container
from epctx_sim_sdk.versions import judge, refuse_unsupported

from epctx_core.errors import InvalidGraph
from epctx_core.plugin import Compatibility
from epctx_sim_qnn import settings
from epctx_sim_qnn.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from epctx_sim_sdk.device import Device
    from epctx_sim_sdk.tables import GraphEntry

    from epctx_core.plugin import (
        CompiledPartition,
        ContextNode,
        ContextReader,
        ProviderContext,
        TensorType,
        ValueInfo,
    )

_SHOWN_NAMES = 5


class ContextLoader:
    """Loads the nodes of one session; payloads stay open between calls.

    Args:
        context: the EP instance's context.
        device: where graphs become runnable.
    """

    def __init__(self, context: ProviderContext, device: Device) -> None:
        self._context = context
        self._device = device
        self._runtime = settings.runtime_facts(context.options, context.target)
        self._containers: dict[str, Container] = {}
        self._accepted: set[Hashable] = set()

    def load(self, nodes: Sequence[ContextNode], reader: ContextReader) -> list[CompiledPartition]:
        """Return one runnable for each node, in order.

        Raises:
            InvalidGraph: a payload that is damaged, foreign or made for another runtime; a graph that
                is missing, ambiguous, or does not fit its node.
        """
        for node in nodes:
            if node.main_context and node.name not in self._containers:
                self._containers[node.name] = self._open(node, reader)
        loaded = []
        for done, node in enumerate(nodes):
            self._context.cancel.raise_if_requested()
            self._context.progress("load", done, len(nodes))
            loaded.append(self._load_one(node))
        self._context.progress("load", len(nodes), len(nodes))
        return loaded

    def _open(self, node: ContextNode, reader: ContextReader) -> Container:
        payload = reader.payload(node)
        container = open_container(payload.view, ep=settings.EP, node=node.name, name=payload.name)
        self._judge(container.tables.made_by, node, container.subject)
        return container

    def _judge(self, made_by: Mapping[str, str], node: ContextNode, subject: str) -> None:
        judgement = judge(RULES, made_by, self._runtime)
        refuse_unsupported(judgement, ep=settings.EP, node=node.name, subject=subject)
        if judgement.verdict is Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION:
            self._context.logger.info(
                "%s: %s was made for %s %s, this runtime has %s; compiling again would make it faster.",
                node.name, subject, judgement.field, judgement.found, judgement.needed,
            )  # fmt: skip

    def _load_one(self, node: ContextNode) -> CompiledPartition:
        container, entry = self._find(node)
        self._judge_claims(node, container)
        _check_boundary(node, container, entry)
        try:
            return self._device.load(container, entry)
        except InvalidGraph as error:
            error.node, error.ep = error.node or node.name, error.ep or settings.EP
            raise

    def _judge_claims(self, node: ContextNode, container: Container) -> None:
        """Judge what the node itself states: it must be as acceptable as what the payload does."""
        stated = node.attributes.get("ep_sdk_version"), node.attributes.get("hardware_architecture")
        if (container, *stated) in self._accepted:
            return
        claims, made_by = _claims(*stated), container.tables.made_by
        if claims.items() <= made_by.items():
            self._accepted.add((container, *stated))
        else:
            self._judge({**made_by, **claims}, node, "the node")

    def _find(self, node: ContextNode) -> tuple[Container, GraphEntry]:
        """Return the graph of a node: in its primary's payload, or in the one payload that has it."""
        primary = node if node.main_context else node.primary
        if primary is not None and primary.name in self._containers:
            container = self._containers[primary.name]
            entry = container.tables.graphs.get(node.partition_name)
            if entry is not None:
                return container, entry
        if primary is not None:
            candidates = [self._containers[primary.name]] if primary.name in self._containers else []
        else:
            candidates = list(self._containers.values())
        found = [c for c in candidates if node.partition_name in c.tables.graphs]
        if len(found) == 1:
            return found[0], found[0].tables.graphs[node.partition_name]
        if len(candidates) == 1 and len(candidates[0].tables.graphs) == 1:
            # Old writers gave node and graph different names; with one graph there is no doubt.
            return candidates[0], next(iter(candidates[0].tables.graphs.values()))
        raise self._not_found(node, candidates, len(found))

    def _not_found(self, node: ContextNode, candidates: list[Container], hits: int) -> InvalidGraph:
        names = [name for c in candidates for name in c.tables.graphs]
        shown = ", ".join(map(repr, names[:_SHOWN_NAMES])) + (", …" if len(names) > _SHOWN_NAMES else "")
        where = f"{hits} of its {len(candidates)} payloads hold" if hits else "no payload of this EP holds"
        return InvalidGraph(
            f"{settings.EP} cannot load node {node.name!r}: {where} a graph {node.partition_name!r};"
            f" graphs found: {shown or 'none'}.",
            node=node.name,
            ep=settings.EP,
            hint="The context model and its binary belong to different compilations; compile again.",
        )


def _claims(sdk: object, hardware: object) -> dict[str, str]:
    """Return the facts that a node states."""
    claims = {}
    if isinstance(sdk, str) and sdk:
        claims["sdk"] = sdk
    if isinstance(hardware, str) and hardware:
        claims["htp_arch"] = settings.read_hardware_architecture(hardware)
    return claims


def _check_boundary(node: ContextNode, container: Container, entry: GraphEntry) -> None:
    for kind, stated, held in (
        ("inputs", node.inputs, entry.inputs),
        ("outputs", node.outputs, entry.outputs),
    ):
        if len(stated) != len(held) or not all(
            a.type == b.type or _fits(a.type, b.type) for a, b in zip(stated, held, strict=True)
        ):
            raise InvalidGraph(
                f"{settings.EP} cannot load node {node.name!r}: its {kind} are {_shown(stated)}, but graph"
                f" {entry.name!r} in {container.subject} has {_shown(held)}.",
                node=node.name,
                ep=settings.EP,
                hint="The context model and its binary belong to different compilations; compile again.",
            )


@lru_cache(maxsize=256)
def _fits(stated: TensorType, held: TensorType) -> bool:
    """Whether a node's value can be a graph's; names may differ, and what is unknown fits."""
    if stated.elem_type is not None and stated.elem_type != held.elem_type:
        return False
    if stated.shape is None or held.shape is None:
        return True
    return len(stated.shape) == len(held.shape) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int)
        for a, b in zip(stated.shape, held.shape, strict=True)
    )


def _shown(values: Sequence[ValueInfo]) -> str:
    return "(" + ", ".join(str(value.type) for value in values) + ")"
