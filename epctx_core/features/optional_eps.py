"""Optional EPs: those of the host's list that cannot be had are skipped.

They are among the EPs that the host asked for: a model's EPContext nodes need theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from epctx_core.errors import EpctxError, InvalidArgument, suggestion
from epctx_core.sessions.routing import (
    SkippedProvider,
    check_availability,
    logged_names,
    stem,
)
from epctx_core.sessions.stages import Request, Stages

if TYPE_CHECKING:
    from epctx_core.plugin import Purpose
    from epctx_core.registry.records import PluginRecord
    from epctx_core.sessions.routing import Outcome

_log = logging.getLogger("epctx.providers")


class OptionalProviders(Stages):
    """Stages that skip optional EPs."""

    def check_options(self, request: Request) -> Sequence[str]:
        """Refuse an optional EP that was not asked for: a typo, mostly; return all.

        Raises:
            InvalidArgument: there is one.
        """
        names = request.config.optional_providers
        asked = [name for name, _ in request.requested or ()]
        for name in names if asked else ():
            if stem(name) not in map(stem, asked):
                raise InvalidArgument(
                    f"the session option 'ep.optional_providers' names {name!r}, which "
                    "is not among the EPs that were asked for."
                    f"{suggestion(name, asked)}",
                    hint=f"They are: {', '.join(asked)}.",
                )
        return (*super().check_options(request), *names)

    def find(self, request: Request, name: str) -> PluginRecord | SkippedProvider:
        """Skip an EP that is not installed, or broken."""
        try:
            record = super().find(request, name)
            if _is_optional(request, name) and not isinstance(record, SkippedProvider):
                request.registry.load(record)
        except EpctxError as error:
            if not _is_optional(request, name):
                raise
            return _skip(name, error)
        return record

    def admit(
        self, request: Request, outcomes: Sequence[Outcome], purpose: Purpose | None
    ) -> Sequence[Outcome]:
        """Skip an EP that is not available on this machine; the log names each that is
        skipped for a purpose.
        """
        outcomes = super().admit(request, outcomes, purpose)
        if purpose is None:
            return outcomes

        admitted = [_check(request, outcome, purpose) for outcome in outcomes]
        logged = logged_names.get(set())
        for skipped in admitted:
            if (
                isinstance(skipped, SkippedProvider)
                and stem(skipped.name) not in logged
            ):
                logged.add(stem(skipped.name))
                _log.warning(
                    "the optional EP %s is skipped: %s", skipped.name, skipped.reason
                )
        return admitted


def _is_optional(request: Request, name: str) -> bool:
    return stem(name) in map(stem, request.config.optional_providers)


def _check(request: Request, outcome: Outcome, purpose: Purpose) -> Outcome:
    if isinstance(outcome, SkippedProvider) or not _is_optional(
        request, outcome.requested
    ):
        return outcome
    try:
        check_availability(outcome.record, purpose, request.registry)
    except EpctxError as error:
        return _skip(outcome.requested, error)
    return outcome


def _skip(name: str, error: EpctxError) -> SkippedProvider:
    return SkippedProvider(name=name, reason=error.message, hint=error.hint)
