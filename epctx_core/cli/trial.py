"""Tries plugins in processes of their own, so that one that crashes or hangs harms nobody.

The child is this module's `report`; both sides speak JSON. Knows records, knows no command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any

from epctx_core.errors import EpctxError
from epctx_core.registry.records import PluginRecord, PluginState

TIMEOUT = 60.0
"""Seconds that a plugin gets to be imported and to say whether it is available."""
_AT_ONCE = 4
_CHILD = (
    "import json, sys\n"
    "asked = json.load(sys.stdin)\n"
    "sys.path[:] = asked['path']\n"
    "from epctx_core.cli.trial import report\n"
    "report(asked)\n"
)


def try_all(
    records: list[PluginRecord], *, tell: Callable[[str], None], timeout: float = TIMEOUT
) -> list[PluginRecord]:
    """Return the records as they are after a trial; those that cannot be used stay as they are.

    Args:
        records: all there are.
        tell: gets what a plugin wrote to its standard error.
        timeout: seconds for each.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        outcomes = list(pool.map(lambda r: _try(r, timeout) if r.usable else (r, ""), records))
    for record, written in outcomes:
        if written.strip():
            tell(f"{record.label} wrote:\n{written.rstrip()}")
    return [record for record, _ in outcomes]


def _try(record: PluginRecord, timeout: float) -> tuple[PluginRecord, str]:
    """Return a record after its trial, and what the child wrote to standard error."""
    asked = {"path": sys.path, "name": record.name, "distribution": record.distribution}
    # Files, not pipes: a child of the child may keep a pipe open long after both are gone.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(json.dumps(asked).encode())
        given.seek(0)
        child = subprocess.Popen(  # noqa: S603 - our own interpreter and our own text
            [sys.executable, "-c", _CHILD], stdin=given, stdout=out, stderr=err, start_new_session=True
        )
        try:
            code: int | None = child.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
        written = _read(err).decode(errors="replace")
        return _judged(record, code, _read(out), written, timeout), written


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever it started."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _judged(
    record: PluginRecord, code: int | None, output: bytes, written: str, timeout: float
) -> PluginRecord:
    with suppress(ValueError, KeyError, TypeError):
        answer = json.loads(output)
        return replace(record, state=PluginState(answer["state"]), reason=str(answer["reason"]))
    last = next((line for line in reversed(written.splitlines()) if line.strip()), "")
    why = f"{_ending(code, timeout)} while it was tried" + (f": {last.strip()}" if last else "")
    return replace(record, state=PluginState.BROKEN, reason=why)


def _ending(code: int | None, timeout: float) -> str:
    if code is None:
        return f"it took longer than {timeout:g} s"
    if code < 0:
        with suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


def report(asked: Mapping[str, Any]) -> None:
    """Import one plugin, ask whether it is available, and print its record; what the child does.

    Args:
        asked: `name` and `distribution` of the record.
    """
    from epctx_core.cli.stdout_guard import reserved_stdout

    with reserved_stdout():
        record = _tried(asked)
    sys.stdout.write(json.dumps(record.as_dict()))
    sys.stdout.flush()


def _tried(asked: Mapping[str, Any]) -> PluginRecord:
    from epctx_core.plugin import Purpose
    from epctx_core.registry import default_registry

    key = asked["name"], asked["distribution"]
    (record,) = (r for r in default_registry.records() if tuple(r.key) == key)
    try:
        for purpose in Purpose:
            if not default_registry.availability(record, purpose).available:
                break
    except EpctxError as error:
        (after,) = (r for r in default_registry.records() if tuple(r.key) == key)
        reason = after.reason or error.message
        return replace(after, state=PluginState.BROKEN if after.usable else after.state, reason=reason)
    (after,) = (r for r in default_registry.records() if tuple(r.key) == key)
    return after
