"""Imports one EP's class and remembers what a process has imported. Knows no other EP and no registry."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epctx_core.registry.guard import describe
from epctx_core.registry.records import PluginRecord, PluginState
from epctx_core.registry.validation import find_problems

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of an import.

    Attributes:
        record: the EP's record as it stands now.
        cls: its class, or None if it can't be used.
        error: what the plugin raised, if it did.
    """

    record: PluginRecord
    cls: type[ExecutionProvider] | None = None
    error: BaseException | None = None


def import_provider(record: PluginRecord) -> Outcome:
    """Import and check the class that a record's entry point names; raises nothing but KeyboardInterrupt."""
    from epctx_core.registry._metadata import EntryPoint

    try:
        cls = EntryPoint(name=record.name, value=record.entry_point, group="").load()
        problems = find_problems(cls, name=record.name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, SystemExit included
        reason = f"{record.entry_point} failed to import: {describe(error)}"
        text = "".join(traceback.format_exception(error))
        return Outcome(
            record=replace(record, state=PluginState.BROKEN, reason=reason, traceback=text), error=error
        )
    if problems:
        reason = "; ".join(problem.what for problem in problems)
        if problems[0].state is PluginState.BROKEN:
            reason = f"{record.entry_point} breaks the contract: {reason}"
        return Outcome(record=replace(record, state=problems[0].state, reason=reason))
    return Outcome(record=replace(record, state=PluginState.LOADED, reason=""), cls=cls)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What this process has imported of one EP; no refresh can take it back."""

    record: PluginRecord
    cls: type[ExecutionProvider] | None

    @property
    def in_memory(self) -> bool:
        """Whether its module stayed, so that importing again would give the old code."""
        return self.record.entry_point.partition(":")[0] in sys.modules

    def met_again(self, found: PluginRecord) -> tuple[PluginRecord, type[ExecutionProvider] | None]:
        """Return record and class for what a later discovery found under the same name and distribution."""
        if found.state is not PluginState.DISCOVERED:
            return found, None
        if (found.version, found.entry_point) == (self.record.version, self.record.entry_point):
            return (found, None) if self.cls is None else (replace(found, state=PluginState.LOADED), self.cls)
        if self.cls is None and not self.in_memory:
            return found, None
        reason = f"{found.origin} is installed, but this process has imported {self.record.origin}"
        return replace(found, state=PluginState.RESTART_NEEDED, reason=reason), None

    def removed(self) -> PluginRecord:
        """Return the record of an EP whose distribution is not installed any more."""
        reason = f"{self.record.origin} was imported and is not installed any more"
        return replace(self.record, state=PluginState.REMOVED, reason=reason)
