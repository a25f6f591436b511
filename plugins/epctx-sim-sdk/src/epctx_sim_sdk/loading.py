"""From EPContext nodes to runnables, whoever the vendor.

`provider.SimulatedProvider` calls it from its hook, with the vendor's version rules.
What becomes of partitions is in `session`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from epctx_core.errors import InvalidGraph
from epctx_core.plugin import Compatibility
from epctx_sim_sdk.container import Container, open_container
from epctx_sim_sdk.versions import KIND, LoadPolicy

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from epctx_core.plugin import (
        CompiledPartition,
        ContextNode,
        ContextReader,
        PayloadView,
        ProviderContext,
        TensorType,
        ValueInfo,
    )
    from epctx_sim_sdk.container import GraphEntry
    from epctx_sim_sdk.device import Device

_OPENED = "epctx_sim_sdk.opened"
"""Key of the workspace under which opened payloads leave their graphs."""

_SHOWN_NAMES = 5
_RECOMPILE = (
    "The context model and its binary belong to different compilations; compile again."
)


class ContextLoader:
    """Loads the nodes of one session; payloads stay open between calls.

    Args:
        context: the EP instance's context.
        device: where graphs become runnable.
        policy: the vendor's.
    """

    def __init__(
        self, context: ProviderContext, device: Device, policy: LoadPolicy
    ) -> None:
        self._context = context
        self._device = device
        self._policy = policy
        self._containers: dict[str, Container] = {}
        self._opened: dict[int, tuple[PayloadView, Container]] = {}
        self._accepted: set[Hashable] = set()

    def load(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> list[CompiledPartition]:
        """Return one runnable for each node, in order.

        Raises:
            InvalidGraph: a payload that is damaged, foreign or made for another
                runtime; a graph that is missing, ambiguous, or does not fit its node.
        """
        workspace = self._context.workspace
        workspace.get_or_create(_OPENED, lambda: self._open_first(nodes, reader))
        containers = {} if self._opened else self._take_containers(nodes)
        if len(containers) < len(nodes):
            self._open_all(nodes, reader)
        try:
            return self._load_all(nodes, containers)
        except BaseException:
            # What was not made runnable here is there for another session still.
            for name, container in containers.items():
                workspace.put(name, container)
            raise

    def _open_first(self, nodes: Sequence[ContextNode], reader: ContextReader) -> bool:
        """Open payloads for all sessions that share them; leave the graphs that are not
        for this one.
        """
        self._open_all(nodes, reader)
        partition_names = {node.partition_name for node in nodes}
        for _, container in self._opened.values():
            for name in container.tables.graphs:
                if name not in partition_names:
                    self._context.workspace.put(name, container)
        return True

    def _open_all(self, nodes: Sequence[ContextNode], reader: ContextReader) -> None:
        for node in nodes:
            if node.main_context and node.name not in self._containers:
                self.open(node, reader)

    def _take_containers(self, nodes: Sequence[ContextNode]) -> dict[str, Container]:
        """Return what other sessions left of these nodes' graphs; it is gone from
        there.
        """
        pairs = (
            (n.partition_name, self._context.workspace.take(n.partition_name))
            for n in nodes
        )
        return {
            name: cast("Container", holder)
            for name, holder in pairs
            if holder is not None
        }

    def _load_all(
        self, nodes: Sequence[ContextNode], containers: Mapping[str, Container]
    ) -> list[CompiledPartition]:
        loaded = []
        for done, node in enumerate(nodes):
            self._context.cancel.raise_if_requested()
            self._context.progress("load", done, len(nodes))
            holder = containers.get(node.partition_name)
            container, name = (
                self._find(node) if holder is None else (holder, node.partition_name)
            )
            loaded.append(self._load_one(node, container, name))
        self._context.progress("load", len(nodes), len(nodes))
        return loaded

    def open(self, node: ContextNode, reader: ContextReader) -> Container:
        """Return a primary's container; primaries that name one file share it.

        Raises:
            InvalidGraph: a payload that is damaged, foreign or made for another
                runtime.
        """
        payload = reader.payload(node)
        opened = self._opened.get(id(payload))
        container = (
            opened[1] if opened is not None else self._open(node, payload, reader)
        )
        self._containers[node.name] = container
        return container

    def _open(
        self, node: ContextNode, payload: PayloadView, reader: ContextReader
    ) -> Container:
        container = open_container(
            payload.view,
            ep=self._policy.ep,
            node=node.name,
            name=payload.name,
            source=reader.source_tensor,
            kind=node.attributes.get(KIND),
            verified=payload.verified,
        )
        self._judge(container.tables.made_by, node, container.subject)
        # The payload is kept, so that no other one gets its identity.
        self._opened[id(payload)] = payload, container
        return container

    def _judge(
        self, made_by: Mapping[str, str], node: ContextNode, subject: str
    ) -> None:
        judgement = self._policy.judge(made_by)
        if judgement.verdict is Compatibility.EP_UNSUPPORTED:
            needed = f"{judgement.field} {judgement.needed}"
            raise refused(
                self._policy.ep,
                node,
                f"{subject} has {judgement.field} {judgement.found} "
                f"({judgement.relation.value}), but this simulated runtime needs "
                f"{judgement.needed}.",
                f"Compile the source model again for {needed}, or give the EP the "
                "options that describe the runtime it was made for.",
            )
        if judgement.verdict is Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION:
            self._context.logger.info(
                (
                    "%s: %s was made for %s %s, this runtime has %s; compiling again "
                    "would make it faster."
                ),
                node.name,
                subject,
                judgement.field,
                judgement.found,
                judgement.needed,
            )

    def _load_one(
        self, node: ContextNode, container: Container, name: str
    ) -> CompiledPartition:
        self._judge_claims(node, container)
        try:
            entry = container.graph(name)
            self._check_boundary(node, container, entry)
            return self._device.load(container, entry)
        except InvalidGraph as error:
            error.node = error.node or node.name
            error.ep = error.ep or self._policy.ep
            raise

    def _judge_claims(self, node: ContextNode, container: Container) -> None:
        """Judge what the node itself states; equal statements about one payload are
        judged once.
        """
        values = map(node.attributes.get, self._policy.claims)
        texts = tuple([value if isinstance(value, str) else "" for value in values])
        if (container, texts) in self._accepted:
            return
        made_by = container.tables.made_by
        facts = dict(made_by)
        for text, claim in zip(texts, self._policy.claims.values(), strict=True):
            if text:
                facts[claim.fact] = claim.read(text)
            elif claim.needed:
                facts.pop(claim.fact, None)
        if facts != made_by:
            self._judge(facts, node, "the node")
        self._accepted.add((container, texts))

    def _find(self, node: ContextNode) -> tuple[Container, str]:
        """Return where a node's graph is, and its name: its primary's payload, or the
        one payload that has it.
        """
        primary = node if node.main_context else node.primary
        primary_container = (
            None if primary is None else self._containers.get(primary.name)
        )
        if (
            primary_container is not None
            and node.partition_name in primary_container.tables.graphs
        ):
            return primary_container, node.partition_name
        every = [container for _, container in self._opened.values()]
        if primary is None:
            candidates = every
        else:
            candidates = [] if primary_container is None else [primary_container]
        holders = [c for c in candidates if node.partition_name in c.tables.graphs]
        if len(holders) == 1:
            return holders[0], node.partition_name
        if (
            self._policy.lone_graph_fits
            and len(candidates) == 1
            and len(candidates[0].tables.graphs) == 1
        ):
            # Old writers gave node and graph different names; with one graph there is
            # no doubt.
            return candidates[0], next(iter(candidates[0].tables.graphs))
        raise self._make_error(node, candidates, len(holders))

    def _make_error(
        self, node: ContextNode, candidates: list[Container], hits: int
    ) -> InvalidGraph:
        names = [name for c in candidates for name in c.tables.graphs]
        shown = ", ".join(map(repr, names[:_SHOWN_NAMES])) + (
            ", …" if len(names) > _SHOWN_NAMES else ""
        )
        where = (
            f"{hits} of its {len(candidates)} payloads hold"
            if hits
            else "no payload of this EP holds"
        )
        why = (
            f"{where} a graph {node.partition_name!r}; graphs found: {shown or 'none'}."
        )
        return refused(self._policy.ep, node, why, _RECOMPILE)

    def _check_boundary(
        self, node: ContextNode, container: Container, entry: GraphEntry
    ) -> None:
        for kind, stated, held in (
            ("inputs", node.inputs, entry.inputs),
            ("outputs", node.outputs, entry.outputs),
        ):
            # Most pairs are equal, and comparing costs less than asking.
            pairs = zip(stated, held, strict=False)
            misfits = [
                a for a, b in pairs if a.type != b.type and not _fits(a.type, b.type)
            ]
            if misfits or len(stated) != len(held):
                raise refused(
                    self._policy.ep,
                    node,
                    f"its {kind} are {_show(stated)}, but graph {entry.name!r} in "
                    f"{container.subject} has {_show(held)}.",
                    _RECOMPILE,
                )


def refused(ep: str, node: ContextNode, why: str, hint: str) -> InvalidGraph:
    """Return the error for a node that an EP does not load."""
    return InvalidGraph(
        f"{ep} cannot load node {node.name!r}: {why}", node=node.name, ep=ep, hint=hint
    )


@lru_cache(maxsize=256)
def _fits(stated: TensorType, held: TensorType) -> bool:
    """Return whether a node's value can be a graph's; names may differ, and what is
    unknown fits.
    """
    if stated.elem_type is not None and stated.elem_type != held.elem_type:
        return False
    if stated.shape is None or held.shape is None:
        return True
    if len(stated.shape) != len(held.shape):
        return False

    for a, b in zip(stated.shape, held.shape, strict=True):
        are_lengths = isinstance(a, int) and isinstance(b, int)
        if are_lengths and a != b:
            return False
    return True


def _show(values: Sequence[ValueInfo]) -> str:
    return "(" + ", ".join(str(value.type) for value in values) + ")"
