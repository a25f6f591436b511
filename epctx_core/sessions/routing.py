"""EPs of EPContext nodes by their sources, and what they say about a compiled model.

The text under `ep_compatibility_info.<EP name>` in the model's metadata is the EP's
own; only that EP validates it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    NotImplementedByProvider,
    one_line,
)
from epctx_core.plugin import Compatibility, Purpose
from epctx_core.registry.records import is_same_distribution
from epctx_core.sessions.providers import (
    check_availability,
    stem,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.context.manifest import ProviderFacts
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.registry import PluginRecord, Registry
    from epctx_core.sessions.providers import (
        ProviderChoice,
        SkippedProvider,
    )

_log = logging.getLogger("epctx.session")

_UNSUPPORTED_HINT = (
    "Compile the source model again with the EP that is installed here, or give the "
    "options that describe the device it was compiled for."
)


def find_maker(
    source: str, providers: ProviderFacts, registry: Registry
) -> PluginRecord | None:
    """Return the distribution that made a source's contexts, where several have the EP
    and the host did not choose.

    Args:
        source: of an EPContext node.
        providers: the manifest's record of the compilers.
        registry: the registry of EPs; nothing is imported.
    """
    maker = providers.get(source, {}).get("distribution")
    for record in registry.records() if isinstance(maker, str) else ():
        if (
            record.name == source
            and record.undecided
            and is_same_distribution(record.distribution, maker)
        ):
            return registry.resolve(f"{maker}:{record.name}")
    return None


def find_other_maker(providers: ProviderFacts, record: PluginRecord) -> str:
    """Return the distribution that made the payloads of an EP where that is not a
    record's; empty if it is the same, or nobody knows.
    """
    maker = providers.get(record.name, {}).get("distribution")
    # A manifest may have anything there.
    if not isinstance(maker, str) or is_same_distribution(record.distribution, maker):
        return ""
    return maker


def find_keeper(ep: str, registry: Registry, purpose: Purpose) -> PluginRecord | None:
    """Return an EP that kept nodes in a model when it was compiled; None, with a
    warning, for one that cannot be had.
    """
    try:
        record = registry.route(ep)
        if record is not None:
            registry.load(record)
            check_availability(record, purpose, registry)
            return record
        reason = registry.explain_missing(ep)[0]
    except InvalidArgument:  # of the host
        raise
    except EpctxError as error:
        reason = error.message

    text = (
        "%s took nodes that this model kept when it was compiled; the session runs "
        "without it: %s"
    )
    _log.warning(text, ep, reason)
    return None


def no_provider_error(
    node: ContextNodeRecord,
    listed: Sequence[str],
    skipped: Sequence[SkippedProvider],
    registry: Registry,
) -> NotImplementedByProvider:
    """Return the error for an EPContext node that no EP takes of those listed;
    `skipped` could not be had.
    """
    skip = next(
        (skip for skip in skipped if stem(skip.name) == stem(node.source)), None
    )
    if skip is not None:
        why = f"The optional EP {skip.name} was skipped: {skip.reason}"
        hint = skip.hint
    else:
        why, hint = registry.explain_missing(node.source, listed)
    source = repr(node.source) if node.source else "no source"
    return NotImplementedByProvider(
        f"EPContext node {node.name!r} (source {source}) has no EP to load it. "
        f"{why.rstrip('.')}.",
        node=node.name,
        hint=hint,
    )


def accept(choice: ProviderChoice, info: str, registry: Registry) -> str:
    """Return the reason for which an EP recommends to compile a model again, by its
    text about the model; an empty text for another one that it supports.

    Raises:
        InvalidGraph: it does not support the model any more.
        NotImplementedByProvider: nor is it available, so that this is no fault of the
            model.
        PluginError: see `ProviderChoice.validate`.
    """
    verdict = Compatibility.EP_UNSUPPORTED
    try:
        verdict = choice.validate(info)
    finally:
        # A validator may ask for a driver that is not there.
        if verdict == Compatibility.EP_UNSUPPORTED:
            check_availability(choice.record, Purpose.LOAD, registry)

    reason = one_line(verdict.reason).rstrip(".")
    why = f"the model was compiled for {info!r}{reason and '; '}{reason}."
    if verdict == Compatibility.EP_UNSUPPORTED:
        raise InvalidGraph(
            f"{choice.name} does not support this compiled model: {why}",
            ep=choice.name,
            hint=_UNSUPPORTED_HINT,
        )
    if verdict == Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION:
        return f"{choice.name} runs this compiled model less well than a new one: {why}"
    return ""
