"""Imports one EP's class, asks it what it needs, remembers what a process has imported.

Knows no other EP and no registry.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epctx_core.errors import EpctxError
from epctx_core.plugin import Availability
from epctx_core.registry.guard import blame, broken_by, describe, plugin_error
from epctx_core.registry.places import find_top_level
from epctx_core.registry.records import PluginRecord, PluginState, same_distribution, simulates
from epctx_core.registry.validation import find_problems

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider, Purpose


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
    return import_class(record, name=record.name)


def import_class(record: PluginRecord, *, name: str | None) -> Outcome:
    """Import and check a class.

    Args:
        record: says where it is.
        name: the EP type it has to have; None if only the class knows.
    """
    from epctx_core.registry._metadata import EntryPoint

    try:
        find_top_level(record.entry_point, record.place if record.distribution else "")
        cls = EntryPoint(name=record.name, value=record.entry_point, group="").load()
        problems = find_problems(cls, name=name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, SystemExit included
        return Outcome(record=broken_by(record, error, f"{record.entry_point} failed to import"), error=error)
    if problems:
        reason = "; ".join(problem.what for problem in problems)
        if problems[0].state is PluginState.BROKEN:
            # Its author reads this, too, who can do what the hints say.
            hints = " ".join(dict.fromkeys(problem.hint for problem in problems)).rstrip(".")
            reason = f"{record.entry_point} breaks the contract: {reason}. {hints}"
        return Outcome(record=replace(record, state=problems[0].state, reason=reason))
    loaded = replace(
        record, name=cls.name, vendor=cls.vendor or None, simulated=simulates(cls), availability={}
    )
    if record.state is not PluginState.RESTART_NEEDED:
        loaded = replace(loaded, state=PluginState.LOADED, reason="")
    return Outcome(record=loaded, cls=cls)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of asking a class about this machine.

    Attributes:
        said: its answer; no, where it raised.
        error: to be raised for what it raised.
        traceback: of what it raised.
    """

    said: Availability
    error: EpctxError | None = None
    traceback: str | None = None


def ask_availability(record: PluginRecord, cls: type[ExecutionProvider], purpose: Purpose) -> Answer:
    """Ask a class whether this machine has what a purpose needs; raises nothing but KeyboardInterrupt."""
    try:
        return Answer(said=_availability(record, cls, purpose))
    except EpctxError as error:
        raised = error.__cause__ or error
        reason = f"its availability failed: {describe(raised).splitlines()[0]}"
        text = "".join(traceback.format_exception(raised))
        return Answer(said=Availability(False, reason=reason), error=error, traceback=text)


def _availability(record: PluginRecord, cls: type[ExecutionProvider], purpose: Purpose) -> Availability:
    with blame(record, "availability"):
        answer = cls.availability(purpose)
    if isinstance(answer, Availability):
        return answer
    raise plugin_error(
        f"{record.label} returned {type(answer).__name__} from availability, not an Availability.",
        record,
        hook="availability",
        hint="Return Availability(True), or Availability(False, reason=…, hint=…).",
    )


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What this process has imported of one EP; no refresh can take it back."""

    record: PluginRecord
    cls: type[ExecutionProvider] | None

    @property
    def in_memory(self) -> bool:
        """Whether its module stayed, so that importing again would give the old code."""
        return _in_memory(self.record)

    def met_again(self, found: PluginRecord) -> tuple[PluginRecord, type[ExecutionProvider] | None]:
        """Return record and class for what a later discovery found under the same name and distribution.

        A class that was loaded stays, with the record of what it was loaded from.
        """
        mine, discovered = self.record, found.state is PluginState.DISCOVERED
        same = (found.version, found.entry_point, found.place) == (mine.version, mine.entry_point, mine.place)
        if self.cls is not None and same:
            known = replace(found, vendor=mine.vendor, simulated=mine.simulated)
            return replace(known, state=PluginState.LOADED), self.cls
        if self.cls is None and (same or not discovered or not self.in_memory):
            return found, None
        reason = self._differs(found)
        if self.cls is None:
            reason = f"{mine.reason}; {reason}: restart it"
            return replace(mine, state=PluginState.BROKEN, reason=reason), None
        if not discovered:
            reason = f"{reason}, and what is installed can't be used: {found.reason}"
        return replace(mine, state=PluginState.RESTART_NEEDED, reason=reason), self.cls

    def _differs(self, found: PluginRecord) -> str:
        return f"{found.origin} is installed, but this process has imported {self.record.origin}"

    def met_beside(self, found: PluginRecord) -> PluginRecord | None:
        """Return the record of another EP whose module another version has left in memory; None where none has.

        Its class can only come from that module: it is that version's, or not there at all.
        """
        mine = self.record
        if found.state is not PluginState.DISCOVERED or not _in_memory(found):
            return None
        if not same_distribution(found.distribution, mine.distribution) or found.origin == mine.origin:
            return None
        reason = self._differs(found)
        module, _, attribute = found.entry_point.partition(":")
        if attribute.partition(".")[0] not in getattr(sys.modules.get(module), "__dict__", {}):
            return replace(found, state=PluginState.BROKEN, reason=f"{reason}: restart it")
        return replace(
            found, version=mine.version, place=mine.place, state=PluginState.RESTART_NEEDED, reason=reason
        )


def _in_memory(record: PluginRecord) -> bool:
    return record.entry_point.partition(":")[0] in sys.modules


def removed(record: PluginRecord, *, imported: bool, instead: PluginRecord | None = None) -> PluginRecord:
    """Return the record of an EP that nothing installed brings any more.

    Args:
        record: as it was found or imported.
        imported: whether it was.
        instead: another EP that its distribution brings now.
    """
    gone = (
        f"{instead.origin}, which is installed now, does not bring it"
        if instead
        else "is not installed any more"
    )
    known = f"{record.origin} was {'imported' if imported else 'found earlier'}"
    return replace(record, state=PluginState.REMOVED, reason=f"{known}{'; ' if instead else ' and '}{gone}")
