"""Runs of a program's script by onnxruntime and by epctx in its place."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hosts import compiling, counting
from hosts.answers import count_values, find_differences

if TYPE_CHECKING:
    from hosts.scripts import Host

ONNXRUNTIME = "onnxruntime"
DROP_IN = "epctx_onnxruntime"
QUIET = {"PYTHONHASHSEED": "0", "OLIVE_DISABLE_TELEMETRY": "1"}
LAST = 12
"""Lines of a failed process that are shown."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a script.

    Attributes:
        answers: what it wrote; None if it failed.
        sessions: the EPs of each session that it made.
        failure: the last lines of a process that failed.
    """

    answers: Any = None
    sessions: Sequence[Sequence[str]] = ()
    failure: str = ""


@dataclass(kw_only=True)
class Outcome:
    """Answers of epctx beside those of onnxruntime.

    Attributes:
        values: texts and numbers that the script answers.
        sessions: those that it makes.
        problems: failures and differences, by the way on which they were found.
        context_nodes: EPContext nodes by network, where the networks were compiled.
        loaded: sessions that had the compiler's EP.
    """

    values: int = 0
    sessions: int = 0
    problems: dict[str, list[str]] = field(default_factory=dict)
    context_nodes: dict[str, int] = field(default_factory=dict)
    loaded: int = 0


def run(host: Host, python: Path, runtime: str, folder: Path, ep: str = "") -> Run:
    """Run a script by a runtime.

    Args:
        host: the program.
        python: interpreter of its environment.
        runtime: `ONNXRUNTIME` or `DROP_IN`.
        folder: for what is written.
        ep: given by `--ep`.
    """
    answers, sessions = folder / "answers.json", folder / "sessions.json"
    answers.unlink(missing_ok=True)
    done = subprocess.run(
        [python, counting.__file__, sessions, ep, runtime, host.script, answers],
        cwd=folder,
        env=_environ(folder),
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-LAST:])
        return Run(failure=f"ended with {done.returncode}:\n{last}")
    return Run(
        answers=json.loads(answers.read_text("utf-8")),
        sessions=json.loads(sessions.read_text("utf-8")),
    )


def compile_networks(
    host: Host, python: Path, networks: Sequence[Path], folder: Path
) -> dict[str, int]:
    """Put context models in the places of networks; return the EPContext nodes of each.

    Raises:
        subprocess.CalledProcessError: a compile failed.
    """
    done = subprocess.run(
        [python, compiling.__file__, host.compiler, *networks],
        cwd=folder,
        env=_environ(folder),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def _environ(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return kept | QUIET | {"EPCTX_RECEIPTS": str(folder / "receipts")}


def compare(
    host: Host,
    python: Path,
    networks: Sequence[Path],
    folder: Path,
    *,
    through_contexts: bool = True,
) -> Outcome:
    """Run a script by onnxruntime, by the drop-in, and by the drop-in on context models
    of its networks if it names a compiler.

    Args:
        host: the program.
        python: interpreter of its environment.
        networks: its networks there.
        folder: for what is written.
        through_contexts: False leaves the context models out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    compiling.put_back(list(networks))
    real = run(host, python, ONNXRUNTIME, folder)
    if real.failure:
        return Outcome(problems={ONNXRUNTIME: [real.failure]})
    outcome = Outcome(values=count_values(real.answers), sessions=len(real.sessions))
    outcome.problems[DROP_IN] = _find_problems(real, run(host, python, DROP_IN, folder))
    if host.compiler and through_contexts:
        try:
            outcome.context_nodes = compile_networks(host, python, networks, folder)
            found = run(host, python, DROP_IN, folder, host.compiler)
        finally:
            compiling.put_back(list(networks))
        outcome.loaded = sum(host.compiler in eps for eps in found.sessions)
        outcome.problems[host.compiler] = _find_problems(real, found)
        if not outcome.loaded:
            outcome.problems[host.compiler].append("no session had the EP")
    return outcome


def _find_problems(real: Run, found: Run) -> list[str]:
    if found.failure:
        return [found.failure]
    problems = list(find_differences(real.answers, found.answers))
    if len(real.sessions) != len(found.sessions):
        problems.append(f"{len(real.sessions)} and {len(found.sessions)} sessions")
    return problems
