"""Graph transformers of a host: finding those of packages, and calling each as an EP
that has `optimize_model` alone.
"""

from __future__ import annotations

import logging
import pkgutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.options import Isolation
from epctx_core.plugin import ExecutionProvider, Purpose, hookimpl
from epctx_core.registry.entries import find_entry
from epctx_core.registry.instances import ProviderInstances
from epctx_core.registry.records import make_record
from epctx_core.sessions.isolation import isolate
from epctx_core.sessions.providers import (
    ProviderChoice,
    TransformerReport,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onnx import ModelProto

    from epctx_core.options import SessionOptions
    from epctx_core.plugin import TensorView
    from epctx_core.sessions.providers import ProviderSession
    from epctx_core.sessions.source import OpenModel

GROUP = "epctx.graph_transformers"
"""One entry for each transformer: its value is `module:function`, see
`epctx_core.plugin.GraphTransformer`.
"""
_log = logging.getLogger("epctx.graph")


class TransformerProvider(ExecutionProvider):
    """A graph transformer as an EP with one hook, so that it is called, checked, traced
    and isolated like one.
    """

    name = "graph transformer"

    @hookimpl
    def optimize_model(
        self, model: ModelProto, weights: Mapping[str, TensorView], level: int
    ) -> Any:
        """Return the result of the transformer, which is imported here if it is a
        package's.
        """
        given = self.context.options["transformer"]
        transform = pkgutil.resolve_name(given) if isinstance(given, str) else given
        return transform(model, weights, level)


def choose_transformers(session: SessionOptions) -> list[ProviderChoice]:
    """Return the graph transformers that a host chose, in order; none is imported.

    Raises:
        PackageMissing: there is none of a name.
        InvalidArgument: several packages have one of a name.
    """
    choices = []
    for name, given in session.graph_transformers:
        facts: dict[str, Any] = {
            "name": name,
            "version": str(getattr(given, "version", None) or "") or None,
        }
        options: dict[str, Any] = {"transformer": given}
        if given is None:
            entry = find_entry(GROUP, name, "graph transformer")
            dist: Any = entry.dist
            facts = {
                "name": entry.name,
                "distribution": dist.name,
                "version": dist.version,
            }
            options["transformer"] = entry.value.partition("[")[0].strip()
        record = replace(make_record(TransformerProvider, ()), **facts)
        choices.append(
            ProviderChoice(record=record, cls=TransformerProvider, options=options)
        )
    return choices


def transform(
    model: OpenModel, providers: ProviderSession, change: Callable[..., OpenModel]
) -> OpenModel:
    """Return a model as the host's graph transformers changed it; `providers` gets the
    reports.

    Args:
        model: the model.
        providers: says which transformers; those of packages work in other processes if
            its EPs do.
        change: `change(name, model, instances)` returns the model as the transformer of
            that name changed it.

    Raises:
        PackageMissing, InvalidArgument: see `choose_transformers`.
        ModelLoadCanceled: the host asked to stop.
    """
    config = providers.config
    reports = []
    for choice in choose_transformers(providers.session):
        record = choice.record
        cls = choice.cls
        before = model
        instances = ProviderInstances(providers.instances.host_plugins)
        if config.isolation is not Isolation.NONE and record.distribution is not None:
            cls = isolate(record, cls, config, Purpose.EXPORT)
        context = providers.context_of(
            choice, Purpose.EXPORT, model.identity, CpuEngine(model.policy)
        )
        try:
            instances.add(record, cls, context)
            model = change(record.name, model, instances)
        finally:
            instances.shutdown()
        providers.cancel.raise_if_requested()
        changed = model is not before
        facts = {
            name: getattr(record, name) for name in ("name", "distribution", "version")
        }
        reports.append(TransformerReport(**facts, changed=changed))
        _log.info(
            "graph transformer %s: %s.",
            record.label,
            "changed" if changed else "unchanged",
        )

    providers.transformers = tuple(reports)
    return model
