"""Which EP loads which EPContext node, before anything of a payload is touched."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidGraph, NotImplementedByProvider, PluginError
from epctx_core.options import Isolation
from epctx_core.registry.lookup import others_of
from epctx_core.registry.records import same_distribution
from epctx_core.sessions.optional import SkippedProvider
from epctx_core.sessions.providers import choose_provider, choose_providers, find_optional

if TYPE_CHECKING:
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.options import SessionOptions
    from epctx_core.plugin import Purpose
    from epctx_core.registry import PluginRecord, Registry

_log = logging.getLogger("epctx.providers")


class Routing:
    """The EPs of a session and the EPContext nodes that each of them loads.

    Where sources decide, the EPs whose kernels ran other nodes when the model was compiled are among them,
    as far as they are there: `kernel_providers`.

    Args:
        nodes: the model's EPContext nodes.
        requested: the host's list, or None to let the nodes' sources decide.
        session: the session's options.
        registry: where EPs are looked up.
        purpose: what the EPs are to do; None if no device is needed.
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
        purpose: Purpose | None,
        manifest: Manifest | None = None,
    ) -> None:
        self.kernel_providers: list[str] = []
        self._registry = registry
        self._makers = manifest.providers if manifest is not None else {}
        self.choices, self._skipped = choose_providers(requested or (), session, registry, purpose)
        self.nodes: dict[str, list[ContextNodeRecord]] = {}
        by_source: dict[str, str] = {}
        for node in nodes:
            if node.source not in by_source:
                by_source[node.source] = self._route(node, requested is not None, session, registry)
            self.nodes.setdefault(by_source[node.source], []).append(node)
        for ep in manifest.kernel_providers if manifest is not None and requested is None and purpose else ():
            self._add_kernel_provider(ep, session, registry, purpose)

    @contextmanager
    def naming_others(self) -> Iterator[None]:
        """Have an EP that refuses what it is given, as another's, name the other distributions of its EP type."""
        try:
            yield
        except InvalidGraph as error:
            # What has a path is wrong with a file, for whichever distribution.
            refused = next(
                (c.record for c in self.choices if c.name == error.ep and error.path is None), None
            )
            if refused is not None:
                error.hint = f"{error.hint or ''}{self.others_of(refused)}".strip() or None
            raise

    def others_of(self, record: PluginRecord) -> str:
        """Return what names the other distributions of an EP type, unless the model says that this one made it."""
        maker = self._makers.get(record.name, {}).get("distribution")
        return others_of(record, self._registry.records(), maker)

    @property
    def settled(self) -> Collection[str]:
        """The EPs for which it was decided when the model was compiled what they compile."""
        return {*self.nodes, *self.kernel_providers}

    def _route(
        self, node: ContextNodeRecord, exhaustive: bool, session: SessionOptions, registry: Registry
    ) -> str:
        """Return the EP type that takes a node's source; only EPs that the host allows are imported."""
        listed = [choice.record for choice in self.choices]
        maker = None if exhaustive else find_maker(node.source, self._makers, registry)
        among = listed if exhaustive else [maker] if maker is not None else None
        record = registry.route(node.source, among=among)
        if record is None:
            skip = next((skip for skip in self._skipped if skip.brings(node.source)), None)
            if skip is not None:
                raise _nobody(node, f"the optional EP {skip.name} was skipped: {skip.reason}", skip.hint)
            raise _nobody(node, *_why(node, [c.name for c in self.choices] if exhaustive else None, registry))
        if all(choice.name != record.name for choice in self.choices):
            self.choices.append(choose_provider(record, {}, session, registry))
        return record.name

    def _add_kernel_provider(
        self, ep: str, session: SessionOptions, registry: Registry, purpose: Purpose | None
    ) -> None:
        """Add an EP whose kernels ran nodes when the model was compiled; found by the rules for sources, or left out."""
        if session.config().isolation is Isolation.ALL and ep not in self.nodes:
            # It would be there for its kernels alone, and functions cannot leave their process.
            found: PluginRecord | SkippedProvider = SkippedProvider(
                name=ep, reason="ep.isolate=all leaves kernels out"
            )
        else:
            found = _find_kernel_provider(ep, registry, purpose)
        if isinstance(found, SkippedProvider):
            _log.warning(
                "kernels of %s ran nodes of this model when it was compiled; the session goes without: %s",
                ep,
                found.reason,
            )
            return
        self.kernel_providers.append(found.name)
        if all(choice.name != found.name for choice in self.choices):
            self.choices.append(choose_provider(found, {}, session, registry))


def find_maker(
    source: str, providers: Mapping[str, Mapping[str, Any]], registry: Registry
) -> PluginRecord | None:
    """Return the one that made a source's contexts, where several distributions have the EP and nobody chose.

    Args:
        source: of an EPContext node.
        providers: what the manifest says of who compiled.
        registry: where EPs are looked up; nothing is imported.
    """
    maker = providers.get(source, {}).get("distribution")
    for record in registry.records() if isinstance(maker, str) else ():
        if record.name == source and record.undecided and same_distribution(record.distribution, maker):
            return registry.resolve(f"{maker}:{record.name}")
    return None


def _find_kernel_provider(
    ep: str, registry: Registry, purpose: Purpose | None
) -> PluginRecord | SkippedProvider:
    try:
        record = registry.route(ep)
    except PluginError as error:
        return SkippedProvider.because(ep, error)
    if record is not None:
        return find_optional(record.name, registry, purpose)
    why, hint = registry.explain_missing(ep)
    return SkippedProvider(name=ep, reason=why, hint=hint)


def _why(node: ContextNodeRecord, listed: Sequence[str] | None, registry: Registry) -> tuple[str, str]:
    """Return why nobody takes a node and what to do about it."""
    if listed is not None and _is_installed(node.source, registry):
        return (
            f"the session's providers are {', '.join(listed) or 'none but the CPU EP'}",
            "Add the EP that takes it to the providers, or give no providers to have it found.",
        )
    if not node.source:
        return "the model does not say which EP made it", "It needs the attribute 'source'."
    return registry.explain_missing(node.source)


def _nobody(node: ContextNodeRecord, why: str, hint: str | None) -> NotImplementedByProvider:
    source = repr(node.source) if node.source else "no source"
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
