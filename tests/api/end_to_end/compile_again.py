"""Compiles over an older pair, again and again, and dies when told: a program that `test_kill.py` drives.

`compile_again.py MODEL_CTX SOURCE SOURCE` reads one order a line and answers each with one line:

    time SECONDS WHICH   compile source WHICH in a child, and kill it so long after it begins
    call N WHICH         the same, but it dies before its N-th changing call of the system
    whole - WHICH        let it finish
    alternate N -        compile the sources in turn, N times, in this process

A SOURCE may be several paths as in PATH: they become a share group.

The answer is what became of it (`killed` or `finished`), the seconds, and the changing calls it made.
Children are forked, so that each begins compiling at once; nothing here makes a thread before.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))
from faults.system_calls import CHANGING, intercepted

import epctx_core as epctx

if TYPE_CHECKING:
    from collections.abc import Callable


def compile_once(source: str, output: str) -> None:
    """Compile with the simulated QNN EP; several models, into a share group in the output's folder."""
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    models = source.split(os.pathsep)
    if len(models) == 1:
        epctx.ModelCompiler(options, source).compile_to_file(output)
        return
    with epctx.ShareGroup(Path(output).parent) as group:
        for model in models:
            group.compile(model, options)


def child(work: Callable[[], object], last_call: int, pipe: int) -> None:
    """Work; say on the pipe when that begins and how many changing calls it took; die at one of them."""
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
    """Work in a child that may be killed; return its fate, the seconds it had, and its calls."""
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
        select.select([readable], [], [], after)  # a child that finishes sooner is not waited for
        os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    seconds = time.perf_counter() - begun
    calls = int(os.read(readable, 20) or 0)
    os.close(readable)
    return ("killed" if os.WIFSIGNALED(status) and not calls else "finished"), seconds, calls


def obey(order: str, output: str, sources: list[str]) -> tuple[str, float, int]:
    """Carry out one order."""
    kind, amount, which = order.split()
    if kind == "alternate":
        for number in range(int(amount)):
            compile_once(sources[number % 2], output)
        return "finished", 0.0, 0
    return ordered(kind, amount, partial(compile_once, sources[int(which)], output))


def ordered(kind: str, amount: str, work: Callable[[], object]) -> tuple[str, float, int]:
    """Carry out one order that is for a child."""
    if kind == "time":
        return in_child(work, after=float(amount))
    return in_child(work, last_call=int(amount) if kind == "call" else 0)


def tell(*words: object) -> None:
    """Answer with one line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(output: str, *sources: str) -> None:
    """Import everything that a compile needs by compiling once, then obey."""
    compile_once(sources[0], output)
    tell("ready")
    for order in sys.stdin:
        tell(*obey(order, output, list(sources)))


if __name__ == "__main__":
    main(*sys.argv[1:])
