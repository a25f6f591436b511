"""Tries plugins in processes of their own, so that one that crashes or hangs harms nobody.

The child is this module's `report`; both sides speak JSON. Knows records, knows no command.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any

from epctx_core.errors import EpctxError
from epctx_core.process_group import ProcessGroup
from epctx_core.registry.records import PluginRecord, PluginState

TIMEOUT = 60.0
"""Seconds that a plugin gets to be imported and to say whether it is available."""
_AT_ONCE = 4
_CHILD = (
    "import json, sys\n"
    "asked = json.load(sys.stdin)\n"
    "sys.path[:] = asked['path']\n"
    "from epctx_cli.plugins.trial import report\n"
    "report(asked)\n"
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of trying one plugin.

    Attributes:
        record: as it is afterwards.
        description: what its class says of itself, see `describe`; empty if it could not be imported.
        availability: purpose to the answer about it, for each that the class was asked.
        traceback: of a failed import, or empty.
    """

    record: PluginRecord
    description: Mapping[str, Any]
    availability: Mapping[str, Mapping[str, Any]]
    traceback: str = ""


def try_all(
    records: Sequence[PluginRecord], *, tell: Callable[[str], None], timeout: float = TIMEOUT
) -> list[Trial]:
    """Try each plugin; those that cannot be used are not tried and stay as they are.

    Args:
        records: all there are.
        tell: gets what a plugin wrote to its standard error.
        timeout: seconds for each.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        outcomes = list(pool.map(lambda r: _try(r, timeout) if r.usable else (_judged(r, {}), ""), records))
    for trial, written in outcomes:
        if written.strip():
            tell(f"{trial.record.label} wrote:\n{written.rstrip()}")
    return [trial for trial, _ in outcomes]


def _try(record: PluginRecord, timeout: float) -> tuple[Trial, str]:
    """Return what came of a trial, and what the child wrote to standard error."""
    asked = {"path": sys.path, "name": record.name, "distribution": record.distribution}
    # Files, not pipes: a child of the child may keep a pipe open long after both are gone.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(json.dumps(asked).encode())
        given.seek(0)
        child = ProcessGroup([sys.executable, "-c", _CHILD], stdin=given, stdout=out, stderr=err)
        in_time = child.wait_and_end(timeout)
        written = _read(err).decode(errors="replace")
        with suppress(ValueError, KeyError, TypeError):
            return _judged(record, json.loads(_read(out))), written
        how = f"its process {child.ending}" if in_time else f"it took longer than {timeout:g} s"
        return _judged(record, {"state": "broken", "reason": _why(how, written)}), written


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _judged(record: PluginRecord, answer: Mapping[str, Any]) -> Trial:
    """Return a trial with what the child answered; nothing for a plugin that was not tried."""
    if answer:
        simulated = answer.get("description", {}).get("simulated", record.simulated)
        record = replace(
            record, state=PluginState(answer["state"]), reason=str(answer["reason"]), simulated=simulated
        )
    return Trial(
        record=record,
        description=answer.get("description", {}),
        availability=answer.get("availability", {}),
        traceback=answer.get("traceback") or record.traceback or "",
    )


def _why(how: str, written: str) -> str:
    last = next((line for line in reversed(written.splitlines()) if line.strip()), "")
    return f"{how} while it was tried" + (f": {last.strip()}" if last else "")


def report(asked: Mapping[str, Any]) -> None:
    """Import one plugin, ask what it is and whether it is available, and print that; what the child does.

    Args:
        asked: `name` and `distribution` of the record.
    """
    from epctx_cli.stdout_guard import reserved_stdout
    from epctx_core.process_group import end_in_any_case

    with reserved_stdout():
        answer = json.dumps(_tried(asked))
    sys.stdout.write(answer)
    sys.stdout.flush()
    end_in_any_case(0)


def _tried(asked: Mapping[str, Any]) -> dict[str, Any]:
    from epctx_cli.plugins.description import describe, described
    from epctx_core.plugin import Purpose
    from epctx_core.registry import default_registry

    def record() -> PluginRecord:
        key = asked["name"], asked["distribution"]
        return next(r for r in default_registry.records() if tuple(r.key) == key)

    answer: dict[str, Any] = {"description": {}, "availability": {}}
    try:
        answer["description"] = describe(default_registry.load(record()))
        for purpose in Purpose:
            said = default_registry.availability(record(), purpose)
            answer["availability"][purpose.value] = described(said)
    except EpctxError as error:
        after = record()
        state = PluginState.BROKEN if after.usable else after.state
        reason = after.reason if not after.usable and after.reason else error.message
        return {**answer, "state": state.value, "reason": reason, "traceback": after.traceback}
    return {**answer, **_standing(answer["availability"])}


def _standing(availability: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return state and reason: unavailable is only what serves no purpose at all."""
    lacking = {purpose: said["reason"] for purpose, said in availability.items() if not said["available"]}
    if not lacking:
        return {"state": PluginState.LOADED.value, "reason": ""}
    state = PluginState.UNAVAILABLE if len(lacking) == len(availability) else PluginState.LOADED
    by_reason: dict[str, list[str]] = {}
    for purpose, reason in lacking.items():
        by_reason.setdefault(reason or "no reason given", []).append(purpose)
    reasons = [f"not available for {' and '.join(purposes)}: {why}" for why, purposes in by_reason.items()]
    return {"state": state.value, "reason": "; ".join(reasons)}
