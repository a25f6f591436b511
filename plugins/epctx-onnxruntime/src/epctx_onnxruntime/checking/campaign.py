"""Campaigns: many cases on many routes, in child processes; results are kept as lines
of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.errors import InvalidArgument
from epctx_onnxruntime.checking.result import Result

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case

Task: TypeAlias = tuple[str, str]
"""Names of a case and a route."""

BATCH = 10_000
SECONDS_FOR_A_CASE = 120


class Catalogue:
    """Cases and routes by name, for children to find; an attribute of a module.

    Args:
        suites: functions that give cases by name; called when one of theirs, or one of
            a later suite, is first looked for. No two suites have a case of one name.
        routes: all routes, each with its EPs' name `eps`, the way `through` and
            `str`, which is both, such as "qnn.file".
        run: runs a case on a route.
    """

    def __init__(
        self,
        suites: Mapping[str, Callable[[], Mapping[str, Case]]],
        routes: Iterable[Any],
        run: Callable[[Case, Any], Result],
    ) -> None:
        self.suites = {name: cache(load) for name, load in suites.items()}
        self.routes = {str(route): route for route in routes}
        self.run = run

    def find(self, name: str) -> Case:
        """Return a case.

        Raises:
            KeyError: no suite has it.
        """
        for load in self.suites.values():
            if case := load().get(name):
                return case
        raise KeyError(name)


def load_catalogue(name: str) -> Catalogue:
    """Import a catalogue by "module:attribute"."""
    module, _, attribute = name.partition(":")
    catalogue = getattr(importlib.import_module(module), attribute)
    if not isinstance(catalogue, Catalogue):
        raise TypeError(f"{name} is no Catalogue: {catalogue!r:.80}")
    return catalogue


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
    children = _Children()

    def run_batch(batch: Sequence[Task]) -> None:
        for result in _run_in_children(batch, catalogue, seconds, children):
            with lock, kept.open("a", encoding="utf-8") as file:
                done[result.case, result.route] = result
                file.write(_format_line(result))
                if progress is not None:
                    progress(result)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(
                pool.map(
                    run_batch, _make_batches(left, min(BATCH, -(-len(left) // jobs)))
                )
            )
        except BaseException:
            children.end()
            raise
    return compared_with_direct([done[task] for task in tasks])


def _make_batches(tasks: Sequence[Task], size: int) -> Iterator[list[Task]]:
    """Yield batches of about a size, none of which ends within a case."""
    batch: list[Task] = []
    for task in tasks:
        if len(batch) >= size:
            last_case = batch[-1][0]
            if task[0] != last_case:
                yield batch
                batch = []
        batch.append(task)
    if batch:
        yield batch


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


class _Children:
    """Children that run, and whether any more may."""

    def __init__(self) -> None:
        self.are_ended = False
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = Lock()

    @contextmanager
    def started(self, child: subprocess.Popen[str]) -> Iterator[None]:
        """Have a child ended by `end` as long as it is used."""
        with self._lock:
            self._running.add(child)
        if self.are_ended:
            _kill(child)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(child)

    def end(self) -> None:
        """End them all with what they started."""
        self.are_ended = True
        with self._lock:
            for child in self._running:
                _kill(child)


def _kill(child: subprocess.Popen[str]) -> None:
    with suppress(OSError):  # it has ended
        if sys.platform == "win32":
            child.kill()
        else:
            os.killpg(child.pid, signal.SIGKILL)


def _run_in_children(
    tasks: Sequence[Task], catalogue: str, seconds: float, children: _Children
) -> Iterator[Result]:
    """Yield results of a child for each task; what ends a child is a result, and
    another one goes on.
    """
    left = list(tasks)
    command = [sys.executable, "-W", "ignore", "-m", "epctx_onnxruntime.checking.child"]
    while left and not children.are_ended:
        asked = {
            "path": [str(Path(each).absolute()) for each in sys.path],
            "catalogue": catalogue,
            "seconds": seconds,
            "tasks": left,
        }
        with (
            tempfile.TemporaryFile("w+") as errors,
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ):
            with (
                subprocess.Popen(  # noqa: S603 - this package's own module
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env={"ORT_DISABLE_TELEMETRY": "1", **os.environ, "TMPDIR": folder},
                    cwd=folder,  # some EPs write into it
                    # Ctrl-C is for this process, which ends them
                    start_new_session=True,
                ) as child,
                children.started(child),
            ):
                assert child.stdin is not None  # noqa: S101 - both are pipes
                assert child.stdout is not None  # noqa: S101
                child.stdin.write(json.dumps(asked))
                child.stdin.close()
                ready = child.stdout.readline()
                for line in child.stdout:
                    if not line.endswith("\n"):  # it ended while it wrote
                        break
                    yield Result(**json.loads(line))
                    del left[0]
            errors.seek(0)
            error_output = errors.read()
        if children.are_ended:
            return
        if not ready:
            raise RuntimeError(f"a child did not start: {error_output}")
        if left:
            yield _explain_end(left.pop(0), child.returncode, error_output)


def _explain_end(task: Task, code: int, error_output: str) -> Result:
    case, route = task
    if "Timeout (" in error_output:
        return Result(case=case, route=route, outcome="hung")
    how = signal.Signals(-code).name if code < 0 else f"exit {code}"
    return Result(case=case, route=route, outcome="crashed", reason=how, kind=how)


def compared_with_direct(results: Sequence[Result]) -> list[Result]:
    """Have results differ whose bits are not those of the same EPs in a direct
    session.
    """
    direct = {
        (result.case, result.route): result.bits
        for result in results
        if result.route.endswith(".direct")
    }

    def judge(result: Result) -> Result:
        eps = result.route.partition(".")[0]
        bits = direct.get((result.case, f"{eps}.direct"))
        if result.outcome != "passed" or not bits or bits == result.bits:
            return result

        return replace(result, outcome="differs", kind="bits", reason="bits")

    return [judge(result) for result in results]
