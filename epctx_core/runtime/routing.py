"""Which EP loads which EPContext node, before anything of a payload is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.compile.providers import ProviderChoice, choose_provider, choose_providers
from epctx_core.errors import NotImplementedByProvider
from epctx_core.registry.records import same_distribution

if TYPE_CHECKING:
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.options import SessionOptions
    from epctx_core.registry import PluginRecord, Registry


class Routing:
    """The EPs of a session and the EPContext nodes that each of them loads.

    Args:
        nodes: the model's EPContext nodes.
        requested: the host's list, or None to let the nodes' sources decide.
        session: the session's options.
        registry: where EPs are looked up.
        manifest: says which distribution made the context, for where several have the EP.

    Raises:
        NotImplementedByProvider: nobody takes a node.
        InvalidArgument, PluginError: see `choose_providers`.
    """

    def __init__(
        self,
        nodes: Sequence[ContextNodeRecord],
        requested: Sequence[tuple[str, Mapping[str, object]]] | None,
        session: SessionOptions,
        registry: Registry,
        manifest: Manifest | None = None,
    ) -> None:
        self._makers = manifest.providers if manifest is not None else {}
        self.choices: list[ProviderChoice] = choose_providers(requested or (), session, registry)
        self.nodes: dict[str, list[ContextNodeRecord]] = {}
        by_source: dict[str, str] = {}
        for node in nodes:
            if node.source not in by_source:
                by_source[node.source] = self._route(node, requested is not None, session, registry)
            self.nodes.setdefault(by_source[node.source], []).append(node)

    def _route(
        self, node: ContextNodeRecord, exhaustive: bool, session: SessionOptions, registry: Registry
    ) -> str:
        """Return the EP type that takes a node's source; only EPs that the host allows are imported."""
        listed = [choice.record for choice in self.choices]
        record = registry.route(node.source, among=listed if exhaustive else self._maker(node, registry))
        if record is None:
            raise _nobody(node, [c.name for c in self.choices] if exhaustive else None, registry)
        if all(choice.name != record.name for choice in self.choices):
            self.choices.append(choose_provider(record, {}, session, registry))
        return record.name

    def _maker(self, node: ContextNodeRecord, registry: Registry) -> list[PluginRecord] | None:
        """Return the one that made the context, where several distributions have its EP and nobody chose."""
        maker = self._makers.get(node.source, {}).get("distribution")
        for record in registry.records() if isinstance(maker, str) else ():
            if (
                record.name == node.source
                and record.undecided
                and same_distribution(record.distribution, maker)
            ):
                return [registry.resolve(f"{maker}:{record.name}")]
        return None


def _nobody(
    node: ContextNodeRecord, listed: Sequence[str] | None, registry: Registry
) -> NotImplementedByProvider:
    source = repr(node.source) if node.source else "no source"
    if listed is not None and _is_installed(node.source, registry):
        why = f"the session's providers are {', '.join(listed) or 'none but the CPU EP'}"
        hint = "Add the EP that takes it to the providers, or give no providers to have it found."
    elif not node.source:
        why, hint = "the model does not say which EP made it", "It needs the attribute 'source'."
    else:
        why, hint = registry.explain_missing(node.source)
    return NotImplementedByProvider(
        f"EPContext node {node.name!r} (source {source}) has no EP to load it: {why.rstrip('.')}.",
        node=node.name,
        hint=hint,
    )


def _is_installed(source: str, registry: Registry) -> bool:
    """Whether an EP with such a source is installed, by names alone: the host named which may be imported."""
    return any(
        record.usable and source.casefold() in {s.casefold() for s in record.sources}
        for record in registry.records()
    )
