"""Compiles pairs again and again, or looks at them all the time: a program that
`test_kills.py` drives.

`in_other_processes.py compile SCENE FOLDER` makes a harness's pairs and says `ready`.
It then reads one order a line and answers each with one:

    time SECONDS WHICH   compile pair WHICH in a child, and kill it so long after it
    begins call N WHICH         the same, but it dies before its N-th changing call of
    the system whole - WHICH        let it finish

The answer is the child's fate (`killed` or `finished`), the seconds, and the changing
calls it made. Children are forked, so that each begins compiling at once; nothing here
makes a thread before.

`in_other_processes.py watch SCENE FOLDER` loads what it finds, says `ready`, and loads
again until its input ends and once after that; then it prints one line of JSON: how
often each state was found, and all that went wrong.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))
from faults.pairs import HARNESSES, OLD
from support.system_calls import CHANGING, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable


def child(work: Callable[[], object], last_call: int, pipe: int) -> None:
    """Work; say on the pipe when that begins and how many changing calls it took; die
    at one of them.
    """
    calls = 0

    def count(_name: str, _arguments: tuple[object, ...]) -> None:
        nonlocal calls
        calls += 1
        if calls == last_call:
            os.kill(os.getpid(), signal.SIGKILL)

    os.write(pipe, b"begin\n")
    with intercepted(count, CHANGING):
        work()
    os.write(pipe, f"{calls}\n".encode())


def in_child(
    work: Callable[[], object], *, after: float | None = None, last_call: int = 0
) -> tuple[str, float, int]:
    """Work in a child that may be killed; return its fate, the seconds it had, and its
    calls.
    """
    readable, writable = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(readable)
        try:
            child(work, last_call, writable)
        finally:
            os._exit(0)
    os.close(writable)
    assert os.read(readable, 6) == b"begin\n"
    begun = time.perf_counter()
    if after is not None:
        select.select(
            [readable], [], [], after
        )  # a child that finishes sooner is not waited for
        os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    seconds = time.perf_counter() - begun
    calls = int(os.read(readable, 20) or 0)
    os.close(readable)
    return (
        ("killed" if os.WIFSIGNALED(status) and not calls else "finished"),
        seconds,
        calls,
    )


def ordered(
    kind: str, amount: str, work: Callable[[], object]
) -> tuple[str, float, int]:
    """Carry out one order that is for a child."""
    if kind == "time":
        return in_child(work, after=float(amount))
    return in_child(work, last_call=int(amount) if kind == "call" else 0)


def tell(*words: object) -> None:
    """Answer with one line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def compile_when_told(harness: str, folder: Path) -> None:
    """Make the pairs, and compile one in a child for each order."""
    pairs = HARNESSES[harness](folder)
    pairs.compile(OLD)  # imports what children would each import
    tell("ready")
    for order in sys.stdin:
        kind, amount, which = order.split()
        tell(*ordered(kind, amount, partial(pairs.compile, int(which))))


def watch(harness: str, folder: Path) -> None:
    """Load until the input ends; say what was found."""
    pairs = HARNESSES[harness](folder)
    found = Counter(map(str, pairs.loaded()))
    problems = []
    tell("ready")
    ended = False
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], 0)[0])
        try:
            found.update(map(str, pairs.loaded()))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is looked for
            problems.append(repr(error)[:500])
    tell(json.dumps({"found": found, "problems": problems}))


if __name__ == "__main__":
    {"compile": compile_when_told, "watch": watch}[sys.argv[1]](
        sys.argv[2], Path(sys.argv[3])
    )
