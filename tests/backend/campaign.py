"""Runs cases in child processes, keeps results as lines of JSON, and compares them with the baseline."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from threading import Lock
from typing import Any

from backend.routes import EPS, ROUTES, Result

Task = tuple[str, str]
"""Names of a case and a route."""

HERE = Path(__file__).parent
BASELINE = HERE / "baseline.json"
BATCH = 2_000
OUTCOMES = ("passed", "wrong", "differs", "refused", "raised", "crashed", "hung")
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""Number of nodes that EPs claim; the last digit is for more."""


def sample(baseline: Mapping[str, Any], count: int, seed: int) -> list[Task]:
    """Draw cases of a baseline: each goes through the EPs that claim some of it, in one of the three ways by turns.

    None that is wrong somewhere: at the edge of a tolerance it may depend on the processor on which side.
    """
    wrong = {
        name
        for kinds in baseline["not_passed"].values()
        for what, names in kinds.items()
        for name in names * what.startswith("wrong")
    }
    numbers = [number for number, name in enumerate(baseline["cases"]) if name not in wrong]
    tasks = []
    for turn, number in enumerate(random.Random(seed).sample(numbers, count)):  # noqa: S311 - no secret
        how = ("direct", "file", "embedded")[turn % 3]
        for route in ROUTES:
            claimed = baseline["claimed"][route.eps][number] != "0"
            if route.through == how and (claimed or not EPS[route.eps]):
                tasks.append((baseline["cases"][number], str(route)))
    return tasks


def run_all(tasks: Sequence[Task], kept: Path, jobs: int) -> list[Result]:
    """Run what is not among the results that are kept already; return those of all tasks.

    Args:
        tasks: what to run; those of one case stand together.
        kept: a file of results, to which lines are added; made if need be.
        jobs: how many children run at a time.
    """
    done = {(r.case, r.route): r for r in read(kept)}
    kept.write_text("".join(map(_line, done.values())), "utf-8")
    left = [task for task in tasks if task not in done]
    size = min(BATCH, -(-len(left) // jobs) or 1)
    lock = Lock()

    def batch(start: int) -> None:
        for result in _in_children(left[start : start + size]):
            with lock, kept.open("a", encoding="utf-8") as file:
                done[result.case, result.route] = result
                file.write(_line(result))

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(batch, range(0, len(left), size)))
    return compared_with_direct([done[task] for task in tasks])


def read(path: Path) -> list[Result]:
    """Return the results in a file; a last line that was cut off is none."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [Result(**json.loads(line)) for line in lines if line.endswith("}")]


def _line(result: Result) -> str:
    return json.dumps(result.as_dict()) + "\n"


def _in_children(tasks: Sequence[Task]) -> Iterator[Result]:
    """Yield results of a child for each task; what ends a child is a result, and another one goes on."""
    left = list(tasks)
    while left:
        with tempfile.TemporaryFile("w+") as errors:
            command = [sys.executable, "-W", "ignore", str(HERE), "--child"]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as child:
                child.stdin.write(json.dumps(left))
                child.stdin.close()
                ready = child.stdout.readline()
                for line in child.stdout:
                    yield Result(**json.loads(line))
                    del left[0]
            errors.seek(0)
            said = errors.read()
        if not ready:
            raise RuntimeError(f"a child did not start: {said}")
        if left:
            yield _ended(left.pop(0), child.returncode, said)


def _ended(task: Task, code: int, said: str) -> Result:
    case, route = task
    if "Timeout (" in said:
        return Result(case=case, route=route, outcome="hung")
    how = signal.Signals(-code).name if code < 0 else f"exit {code}"
    return Result(case=case, route=route, outcome="crashed", reason=how, kind=how)


def compared_with_direct(results: Sequence[Result]) -> list[Result]:
    """Have results differ whose bits are not those of the same EPs in a direct session."""
    direct = {(r.case, r.route): r.bits for r in results if r.route.endswith(".direct")}

    def judged(result: Result) -> Result:
        bits = direct.get((result.case, f"{result.route.partition('.')[0]}.direct"), "") or result.bits
        passed = result.outcome == "passed" and bits != result.bits
        return replace(result, outcome="differs", kind="bits", reason="bits") if passed else result

    return [judged(result) for result in results]


def table(results: Iterable[Result]) -> str:
    """Return how many cases ended how, by route."""
    counts = Counter((r.route, what) for r in results for what in (r.outcome, "claimed" * bool(r.claimed)))
    heads = (*OUTCOMES, "claimed")
    lines = [f"{'route':20}" + "".join(f"{head:>9}" for head in heads)]
    routes = dict.fromkeys(route for route, _ in counts)
    lines += [f"{route:20}" + "".join(f"{counts[route, head]:9}" for head in heads) for route in routes]
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """Return what decides on results besides this repository; empty for what is not installed."""
    names = ("onnx", "onnxruntime", "numpy", "pillow")  # with Pillow, `onnx.reference` decodes images
    return {name: next((d.version for d in distributions(name=name)), "") for name in names}


def as_baseline(results: Sequence[Result]) -> dict[str, Any]:
    """Return what is worth keeping of a whole run: what did not pass, and how many nodes were claimed."""
    names = sorted({result.case for result in results})
    claimed: dict[str, dict[str, int]] = {eps: {} for eps in EPS}
    not_passed: dict[str, dict[str, dict[str, list[str]]]] = {}
    for result in sorted(results, key=lambda r: (r.route, r.outcome, r.reason, r.case)):
        counts = claimed[result.route.partition(".")[0]]
        counts[result.case] = max(result.claimed, counts.get(result.case, 0))
        if result.outcome != "passed":
            what = f"{result.outcome}: {result.kind}"
            not_passed.setdefault(result.route, {}).setdefault(what, []).append(result.case)
    return {
        "versions": versions(),
        "cases": names,
        "claimed": {
            eps: "".join(_digit(counts.get(name, 0)) for name in names) for eps, counts in claimed.items()
        },
        "not_passed": not_passed,
    }


def _digit(count: int) -> str:
    return DIGITS[min(count, len(DIGITS) - 1)]


def differences(results: Iterable[Result], baseline: Mapping[str, Any]) -> list[str]:
    """Return how results are not those of the baseline, one line each.

    A case that the baseline does not have is none. What is refused may be so before claims are known.
    """
    number = {name: at for at, name in enumerate(baseline["cases"])}
    before = {
        (name, route): what
        for route, kinds in baseline["not_passed"].items()
        for what, names in kinds.items()
        for name in names
    }
    lines = []
    for result in results:
        if result.case not in number:
            continue
        was = before.get((result.case, result.route), "passed")
        now = "passed" if result.outcome == "passed" else f"{result.outcome}: {result.kind}"
        if was != now:
            lines.append(f"{result.case} {result.route}: {was} -> {now} {result.reason}".rstrip())
        expected = baseline["claimed"][result.route.partition(".")[0]][number[result.case]]
        if result.outcome in {"passed", "wrong", "differs"} and _digit(result.claimed) != expected:
            lines.append(f"{result.case} {result.route}: claims {result.claimed}, not {expected}")
    return lines
