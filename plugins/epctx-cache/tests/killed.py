"""Kills compiles into a cache: `killed.py MODEL CACHE FIRST LAST STEP [OLDER]` prints
one line of JSON a kill; `killed.py MODEL CACHE moments COUNT` does so at moments drawn
over the time of a compile, until COUNT kills have hit, into one cache that is emptied
in between.

A compile, in a fork, kills itself before the n-th change that it makes to a file
system; then others, each in a fork, ask as if nothing had happened. Forks because a
process would take a second to import what is imported here once; nothing that has
threads is called in this process itself. With an older model its entry lies in the
cache before, and one more fork reads all the while: it asks for the older model, and
opens whatever else is an entry.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import onnxruntime  # noqa: F401 - imported once, for all forks
from epctx_cache import content
from epctx_cache.store import EntryStore, collect, verify

import epctx_core as epctx

content.RACY_NS = 0  # what is new enters the index, too
CHANGES = {"os.rename", "os.mkdir", "os.link", "os.remove", "os.rmdir", "os.utime"}
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
_WRITES = os.O_WRONLY | os.O_RDWR


def asked(model, cache):
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    with epctx.load_or_compile(model, options, cache) as session:
        return session.run(None, {"x": X})[0].tolist()


def forked(work, *, seconds=None):
    """Return what work gives in a fork; None if that was killed, as it is after so many
    seconds.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writer, json.dumps(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    if seconds is not None:
        select.select([reader], [], [], seconds)  # it may end sooner
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as file:
        said = file.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return None
    assert status == 0
    return json.loads(said)


def killing(number, work):
    """Return work that ends with SIGKILL before its n-th change."""

    def run():
        seen = 0

        def count(event, args):
            nonlocal seen
            if event in CHANGES or (
                event == "open" and isinstance(args[2], int) and args[2] & _WRITES
            ):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()
        return seen

    return run


def afterwards(cache):
    store = EntryStore(cache)
    collect(store, 1 << 30)
    faults = [fault for _, fault in verify(store) if fault]
    left = [
        path.name
        for name in ("staging", "locks")
        for path in (cache / "v1" / name).glob("*")
    ]
    return {"entries": len(list(store.entries())), "faults": faults, "left": left}


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def watched(work, found):
    """Have a fork do work again and again while the block runs; what it gives, or
    raises, goes to `found`.
    """
    until, ending = os.pipe()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ending)
        seen, began = [], False
        while not (began and select.select([until], [], [], 0.02)[0]):
            try:
                answers = work()
            except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is looked for
                answers = [repr(error)[:300]]
            seen += [answer for answer in answers if answer not in seen]
            if not began:
                os.write(writer, b"\n")
            began = True
        os.write(writer, json.dumps(seen).encode())
        os._exit(0)
    os.close(until)
    os.close(writer)
    with os.fdopen(reader) as file:
        file.readline()
        yield
        os.close(ending)
        found += json.loads(file.read())
    os.waitpid(child, 0)


def read(older, cache):
    """Return the answers of the older model and of every entry, opened as its context
    model.
    """
    answers = [asked(older, cache)]
    for entry in list(EntryStore(cache).entries()):
        with epctx.InferenceSession(
            entry.folder / entry.record.files[-1].path
        ) as session:
            answers.append(session.run(None, {"x": X})[0].tolist())
    return answers


def main(model, cache, first, last, step, older=None):
    for number in range(int(first), int(last), int(step)):
        folder = Path(cache) / str(number)
        work = killing(number, lambda f=folder: asked(model, f))
        before = forked(lambda f=folder: asked(older, f)) if older else None
        found = []
        with (
            watched(lambda f=folder: read(older, f), found) if older else nullcontext()
        ):
            made = forked(work)
            answers = [forked(lambda f=folder: asked(model, f)) for _ in range(2)]
        after = forked(lambda f=folder: afterwards(f))
        said = json.dumps(
            {
                "killed": made is None,
                "answers": answers,
                "older": before,
                "read": found,
                **after,
            }
        )
        say(said)
        if made is not None:
            return


def kill_at_moments(model, cache, count):
    def ask(folder):
        return asked(model, folder)

    forked(lambda: ask(Path(cache) / "first"))
    begun = time.perf_counter()
    forked(lambda: ask(Path(cache) / "whole"))
    whole = time.perf_counter() - begun

    chance = random.Random(int(count))  # noqa: S311 - for a test
    folder = Path(cache) / "killed"
    hits = 0
    while hits < int(count):
        moment = chance.uniform(0, whole)
        made = forked(lambda: ask(folder), seconds=moment)
        hits += made is None
        reached = sorted(
            str(path.relative_to(folder / "v1")).split("/")[0]
            for path in folder.glob("v1/*/*")
        )
        answers = [forked(lambda: ask(folder)) for _ in range(2)]
        after = forked(lambda: afterwards(folder))
        facts = {"killed": made is None, "moment": moment / whole, "reached": reached}
        say(json.dumps({**facts, "answers": answers, **after}))
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[3] == "moments":
        kill_at_moments(*sys.argv[1:3], sys.argv[4])
    else:
        main(*sys.argv[1:])
