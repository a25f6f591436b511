"""EPs that a session goes without: optional ones, those of kernels, and those of EPContext nodes that nobody loads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from epctx_core.errors import EpctxError, InvalidArgument, NotImplementedByProvider, PluginError, suggestion
from epctx_core.sessions.providers import check_availability

if TYPE_CHECKING:
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.plugin import Purpose
    from epctx_core.registry.records import PluginRecord
    from epctx_core.registry.registry import Registry

_SUFFIX = "executionprovider"
_log = logging.getLogger("epctx.providers")
told_names: ContextVar[set[str] | None] = ContextVar("epctx_told", default=None)
"""Optional EPs that were named in the log since the host's call began; see `host_call`."""


@dataclass(frozen=True, kw_only=True)
class SkippedProvider:
    """An optional EP that a session or a compile goes without.

    Attributes:
        name: as the host named it.
        reason: why it cannot be had: not installed, broken, kept out, or unavailable on this machine.
        hint: what to do to have it, or None.
    """

    name: str
    reason: str
    hint: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        return asdict(self)


def tell_skipped(skipped: Iterable[SkippedProvider]) -> None:
    """Log what a host goes without."""
    told = told_names.get()
    for skip in skipped:
        if told is None or _stem(skip.name) not in told:
            _log.warning("the optional EP %s is skipped: %s", skip.name, skip.reason)
        if told is not None:
            told.add(_stem(skip.name))


class OptionalNames:
    """The names in `ep.optional_providers`, checked against the EPs that a host asked for.

    Without EPs asked for, they mean nothing: a model's EPContext nodes need theirs.

    Raises:
        InvalidArgument: an EP is optional that was not asked for: a typo, mostly.
    """

    def __init__(self, names: Iterable[str], requested: Sequence[str]) -> None:
        self._stems = {_stem(name) for name in names}
        asked = {_stem(name) for name in requested}
        for name in names if requested else ():
            if _stem(name) not in asked:
                raise InvalidArgument(
                    f"the session option 'ep.optional_providers' names {name!r}, which is not among the EPs that were asked for."
                    f"{suggestion(name, requested)}",
                    hint=f"They are: {', '.join(requested)}.",
                )

    def __contains__(self, name: str) -> bool:
        """Whether a host can do without the EP that it gave this name."""
        return _stem(name) in self._stems

    @staticmethod
    def find(name: str, registry: Registry, purpose: Purpose | None) -> PluginRecord | SkippedProvider:
        """Return an EP's record if it loads and says that it is available, else why it cannot be had."""
        try:
            record = registry.resolve(name)
            registry.load(record)
            if purpose is not None:
                check_availability(record, purpose, registry)
        except EpctxError as error:
            return SkippedProvider(name=name, reason=error.message, hint=error.hint)
        return record

    def is_option(self, key: str) -> bool:
        """Whether `ep.<name>.<key>` is an option of one of them, which need not be installed."""
        starts = [f"ep.{stem}{end}." for stem in self._stems for end in ("", _SUFFIX)]
        return key.startswith(tuple(starts))


def _stem(name: str) -> str:
    """Return what the names of one EP have in common: `distribution:QNN`, `QNN` and `qnnExecutionProvider`."""
    return name.rpartition(":")[2].casefold().removesuffix(_SUFFIX)


def find_kernel_provider(
    ep: str, registry: Registry, purpose: Purpose | None, *, is_isolated: bool
) -> PluginRecord | None:
    """Return an EP whose kernels ran nodes when a model was compiled, None for one that cannot be had: the log says why.

    Args:
        is_isolated: whether it would be in a process of its own, for its kernels alone: functions cannot leave that.
    """
    if is_isolated:
        reason = "ep.isolate=all leaves kernels out"
    else:
        try:
            record = registry.route(ep)
        except PluginError as error:
            reason = error.message
        else:
            found = None if record is None else OptionalNames.find(record.name, registry, purpose)
            if not isinstance(found, SkippedProvider) and found is not None:
                return found
            reason = registry.explain_missing(ep)[0] if found is None else found.reason
    _log.warning(
        "kernels of %s ran nodes of this model when it was compiled; the session goes without: %s", ep, reason
    )
    return None


def nobody_loads(
    node: ContextNodeRecord,
    listed: Sequence[str] | None,
    skipped: Sequence[SkippedProvider],
    registry: Registry,
) -> NotImplementedByProvider:
    """Return the error for an EPContext node that no EP of a session takes.

    Args:
        node: the node.
        listed: the session's EPs if the host named them, else None.
        skipped: optional EPs that the session goes without.
        registry: where EPs are looked up.
    """
    skip = next((skip for skip in skipped if _stem(skip.name) == _stem(node.source)), None)
    # By names alone: the host named which EPs may be imported.
    known = {s.casefold() for record in registry.records() if record.usable for s in record.sources}
    hint: str | None
    if skip is not None:
        why, hint = f"the optional EP {skip.name} was skipped: {skip.reason}", skip.hint
    elif listed is not None and node.source.casefold() in known:
        why = f"the session's providers are {', '.join(listed) or 'none but the CPU EP'}"
        hint = "Add the EP that takes it to the providers, or give no providers to have it found."
    elif not node.source:
        why, hint = "the model does not say which EP made it", "It needs the attribute 'source'."
    else:
        why, hint = registry.explain_missing(node.source)
    source = repr(node.source) if node.source else "no source"
    return NotImplementedByProvider(
        f"EPContext node {node.name!r} (source {source}) has no EP to load it: {why.rstrip('.')}.",
        node=node.name,
        hint=hint,
    )
