"""Campaigns: many cases on many routes, in child processes; results are kept as lines
of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Event, Lock
from typing import TypeAlias

from epctx_isolation import IsolatedFunctions

from epctx_core.errors import Fail, InvalidArgument
from epctx_onnxruntime.checking.child import run_task
from epctx_onnxruntime.checking.result import Result

Task: TypeAlias = tuple[str, str]
"""Names of a case and a route."""

_DIRECT = ".direct"
SECONDS_FOR_A_CASE = 120


def run_all(
    tasks: Sequence[Task],
    kept: Path,
    jobs: int,
    *,
    catalogue: str,
    seconds: float = SECONDS_FOR_A_CASE,
    progress: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Run what is not among the results that are kept already; return those of all
    tasks.

    Args:
        tasks: what to run; those of one case stand together, the direct route first, so
            that its model and data are made once and routes over context models of
            nothing are not taken.
        kept: a file of results, to which lines are added; made if need be.
        jobs: how many children run at a time.
        catalogue: "module:attribute" of the `Catalogue`; children have this process's
            `sys.path`, and a working directory of their own.
        seconds: how long a case may take on one route.
        progress: called with each result that is not known yet.

    Raises:
        InvalidArgument: the file has something else than results, or cannot be read or
            written.
        KeyboardInterrupt: Ctrl-C; children and what they started are ended, and no
            result is made of that.
    """
    done = {(r.case, r.route): r for r in read(kept)}
    _cut_tail(kept)
    left = [task for task in tasks if task not in done]
    lock = Lock()
    is_over = Event()
    children = [IsolatedFunctions(seconds=seconds, max_bytes=None) for _ in range(jobs)]
    idle = [*children]

    def run_case(tasks: Sequence[Task]) -> None:
        child = idle.pop()
        for result in _run_in_child(tasks, catalogue, child, is_over):
            with lock, kept.open("a", encoding="utf-8") as file:
                done[result.case, result.route] = result
                file.write(_format_line(result))
                if progress is not None:
                    progress(result)
        idle.append(child)

    with ExitStack() as stack:
        for child in children:
            stack.callback(child.close)
        with ThreadPoolExecutor(jobs) as pool:
            try:
                cases = [list(tasks) for _, tasks in groupby(left, itemgetter(0))]
                list(pool.map(run_case, cases))
            except BaseException:
                is_over.set()
                for child in children:
                    child.kill()
                raise
    return compared_with_direct([done[task] for task in tasks])


def read(path: Path) -> list[Result]:
    """Return the results in a file; a last line that was cut off is none.

    Raises:
        InvalidArgument: the file cannot be read, or has something else than results.
    """
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise InvalidArgument(
            f"results in {path} cannot be read: {error.strerror}."
        ) from error

    *lines, _cut = content.split(b"\n")
    return [_parse(line, path, number) for number, line in enumerate(lines, 1)]


def _parse(line: bytes, path: Path, number: int) -> Result:
    try:
        return Result(**json.loads(line))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"line {number} of {path} is no result: "
            f"{line[:60].decode(errors='replace')!r}.",
            hint=(
                "Name another file to keep results in; or remove the line, if it is "
                "damaged."
            ),
        ) from error


def _cut_tail(path: Path) -> None:
    """Remove a last line that was cut off; make the file if need be."""
    try:
        with path.open("ab") as file:
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
    except OSError as error:
        raise InvalidArgument(
            f"results cannot be kept in {path}: {error.strerror}."
        ) from error


def _format_line(result: Result) -> str:
    return json.dumps(result.as_dict()) + "\n"


def _run_in_child(
    tasks: Sequence[Task], catalogue: str, child: IsolatedFunctions, is_over: Event
) -> Iterator[Result]:
    """Yield the result of each task; what ends the child is a result, and a new one
    goes on.
    """
    direct = Result(case="", route="", outcome="")
    for case, route in tasks:
        result = _skip(case, route, direct)
        if result is None:
            try:
                result = child.call(run_task, catalogue, case, route, result=Result)
            except Fail as error:
                result = _explain_end(case, route, child.describe_end(), error)
        if is_over.is_set():
            return
        if route.endswith(_DIRECT):
            direct = result
        yield result


def _skip(case: str, route: str, direct: Result) -> Result | None:
    """Return the result of a route over a context model that would have no payload."""
    ran = direct.outcome in {"passed", "wrong", "unclaimed"} and not direct.claimed
    same = case, route.rpartition(".")[0] + _DIRECT
    if ran and not route.endswith(_DIRECT) and (direct.case, direct.route) == same:
        return Result(case=case, route=route, outcome="unclaimed")
    return None


def _explain_end(case: str, route: str, end: str, error: Fail) -> Result:
    if "took longer" in end:
        return Result(case=case, route=route, outcome="hung")
    if not end:
        raise error
    ending = re.search(r"SIG\w+|exit code \d+", end)
    kind = ending.group() if ending else end
    return Result(case=case, route=route, outcome="crashed", reason=kind, kind=kind)


def compared_with_direct(results: Sequence[Result]) -> list[Result]:
    """Have results differ whose bits are not those of the same EPs in a direct
    session.
    """
    direct = {
        (result.case, result.route): result.bits
        for result in results
        if result.route.endswith(_DIRECT)
    }

    def judge(result: Result) -> Result:
        eps = result.route.partition(".")[0]
        bits = direct.get((result.case, f"{eps}.direct"))
        if result.outcome != "passed" or not bits or bits == result.bits:
            return result

        return replace(result, outcome="differs", kind="bits", reason="bits")

    return [judge(result) for result in results]
