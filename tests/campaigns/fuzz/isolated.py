"""Gives cases to the worker, sees that it dies or hangs, and starts another one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from support.folders import CAMPAIGNS, TESTS

LONGEST = 5.0
"""Seconds of processor time that a case may take."""
_PATIENCE = 60.0
"""Seconds by the clock; the machine may have other work."""
_STARTING = 300.0


@dataclass(kw_only=True)
class Results:
    """Outcomes of cases.

    Attributes:
        outcomes: how often, by action and outcome.
        faults: what must not be, with the case's number and seed.
    """

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Worker:
    """The long-lived child process; use as a context manager.

    Args:
        seeds: their folder.
        folder: for the files of one case at a time.
        target: what to do with them; as for models without.
    """

    def __init__(self, seeds: Path, folder: Path, *target: str) -> None:
        self._arguments = [
            sys.executable,
            str(CAMPAIGNS / "fuzz" / "worker.py"),
            str(seeds),
            str(folder),
            *target,
        ]
        self._errors = folder.with_name(f"{folder.name}.errors")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(
        self, cases: Iterable[int | str | Path], results: Results | None = None
    ) -> Results:
        """Run cases by number or name, or from the folders they lie in; count them in `results`
        as they end, if given.
        """
        results = Results() if results is None else results
        for which in cases:
            answer = self._answer(which)
            results.cases += 1
            results.outcomes.update(
                f"{name} {outcome}" for name, outcome in answer["outcomes"].items()
            )
            results.faults.extend(
                f"case {which} ({answer['seed']}): {fault}"
                for fault in answer["faults"]
            )
        return results

    def _answer(self, which: int | str | Path) -> dict[str, Any]:
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(f"{which}\n")
        process.stdin.flush()
        line = self._line(process, LONGEST, _PATIENCE)
        if line:
            return json.loads(line)
        what = (
            "hangs"
            if process.poll() is None
            else f"ends the process ({process.wait()})"
        )
        self._stop()
        return {
            "seed": "?",
            "outcomes": {"process": what},
            "faults": [f"{what}; {self._last_words()}"],
        }

    def _start(self) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(CAMPAIGNS), str(TESTS), os.environ.get("PYTHONPATH", "")]
            ),
            # Each arena of glibc would count against the limit with 64 MiB of
            # addresses.
            "MALLOC_ARENA_MAX": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                self._arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, env=environment,
            )  # fmt: skip
        line = self._line(self._process, _STARTING, _STARTING)
        assert line == "ready\n", self._last_words()
        return self._process

    def _line(
        self, process: subprocess.Popen[str], processor: float, clock: float
    ) -> str:
        """Return a line of the worker's; nothing when it ended or takes too long."""
        assert process.stdout is not None
        begun, used = time.monotonic(), _processor_time(process.pid)
        while not select.select([process.stdout], [], [], 1.0)[0]:
            if (
                time.monotonic() - begun > clock
                or _processor_time(process.pid) - used > processor
            ):
                return ""
        line = process.stdout.readline()
        if not line:
            process.wait(timeout=_PATIENCE)
        return line

    def _last_words(self) -> str:
        return self._errors.read_text(errors="replace")[-1500:]

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _processor_time(process: int) -> float:
    """Return the seconds of processor time that a process used."""
    try:
        words = (
            Path(f"/proc/{process}/stat")
            .read_text(encoding="ascii")
            .rpartition(")")[2]
            .split()
        )
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
