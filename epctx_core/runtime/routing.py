"""Which EP loads which EPContext node, before anything of a payload is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.compile.providers import ProviderChoice, choose_provider, choose_providers
from epctx_core.context.compatibility import compatibility_info
from epctx_core.errors import Fail, InvalidGraph, NotImplementedByProvider
from epctx_core.plugin import Compatibility
from epctx_core.registry.guard import blame

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.options import SessionOptions
    from epctx_core.registry import Registry


class Routing:
    """The EPs of a session and the EPContext nodes that each of them loads.

    Args:
        requested: the host's list, or None to let the nodes' sources decide.

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
    ) -> None:
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
        record = registry.route(node.source, among=listed if exhaustive else None)
        if record is None:
            raise _nobody(node, [c.name for c in self.choices] if exhaustive else None, registry)
        if all(choice.name != record.name for choice in self.choices):
            self.choices.append(choose_provider(record, {}, session, registry))
        return record.name


def _nobody(
    node: ContextNodeRecord, listed: Sequence[str] | None, registry: Registry
) -> NotImplementedByProvider:
    source = repr(node.source) if node.source else "no source"
    if listed is not None and registry.route(node.source) is not None:
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


def check_compatibility(model: ModelProto, routing: Routing, *, fail_on_suboptimal: bool) -> list[str]:
    """Ask each EP to judge what it once wrote about the model; return warnings.

    Raises:
        InvalidGraph: an EP says that it cannot run the model any more.
        Fail: an EP would rather compile again, and the host wants that to be an error.
    """
    infos = compatibility_info(model)
    warnings = []
    for choice in routing.choices:
        if choice.name not in infos or choice.name not in routing.nodes:
            continue
        with blame(choice.record, "validate_compatibility"):
            verdict = choice.cls.validate_compatibility(infos[choice.name], choice.options)
        said = f"the model was compiled for {infos[choice.name]!r}"
        if verdict == Compatibility.EP_UNSUPPORTED:
            raise InvalidGraph(
                f"{choice.name} does not support this compiled model: {said}.",
                ep=choice.name,
                hint="Compile the source model again with the EP that is installed here.",
            )
        if verdict == Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION:
            message = f"{choice.name} runs this compiled model less well than a new one: {said}."
            if fail_on_suboptimal:
                raise Fail(message, ep=choice.name, hint="Compile the source model again.")
            warnings.append(message)
    return warnings
