"""The process that cases happen to: takes their numbers over a pipe and says what
became of each.

    python worker.py SEEDS FOLDER [TARGET]

A line in is a number, or the path of a folder whose case is on disk; a line out is
JSON. What the process cannot say itself (that it died, or hangs) the one that started
it sees; `worker:die` and `worker:hang` show that it does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from epctx_cli.arrays import load_inputs, make_inputs, merge_lengths
from fuzz.cases import Case, Seed, case, read_seeds, unpacked
from fuzz.one_operator import make_model
from fuzz.seeds import KERNEL_EP, NPZ
from fuzz.targets import CONTAINER, ENTRY, TARGETS

import epctx_core as epctx
from epctx_core.verify import subject

ADDRESS_SPACE = 4 << 30
"""Bytes that may be mapped beyond what the process has when it is warm."""
MODELS = "models"
"""Target of all that reads models."""
OPERATOR = "operator:"
"""Begins the number of a model of one operator."""
_LARGEST_INPUT = 1 << 16
_SECONDS_OF_A_RUN = 1.0


def attempt(made: Case, folder: Path, target: str = MODELS) -> dict[str, Any]:
    """Do everything that a host does with foreign files, or what a target does; return
    outcomes by action, and what must not be.
    """
    path = folder / made.model
    outcomes: dict[str, str] = {}
    faults: list[str] = []
    actions: dict[str, Callable[[], object]] = {
        "inspect": lambda: json.dumps(epctx.inspect_model(path).as_dict()),
        "verify": lambda: _verify(path, faults),
        "load": lambda: _load_and_run(path, outcomes, faults),
    }
    if made.seed.startswith(OPERATOR):
        # A run of such a model ends or computes for as long as its operator says.
        actions["load"] = lambda: epctx.InferenceSession(path, _options()).close()
    if made.model == NPZ:
        actions = {"npz": lambda: load_inputs(str(path), ())}
    if target != MODELS:
        actions = TARGETS[target].actions(path)
    for name, action in actions.items():
        _watched(name, action, outcomes, faults)
    return {
        "number": made.number,
        "seed": made.seed,
        "outcomes": outcomes,
        "faults": faults,
    }


def _watched(
    name: str, action: Callable[[], object], outcomes: dict[str, str], faults: list[str]
) -> None:
    _forget_peak()
    before = _memory("VmRSS")
    try:
        action()
        outcomes[name] = "ok"
    except epctx.EpctxError as error:
        outcomes[name] = type(error).__name__
        # An EP that stumbles over a file has not looked at it; a verification ends with
        # a report.
        stumbled = isinstance(error, epctx.PluginError) and not isinstance(
            error.__cause__, epctx.EpctxError
        )
        if stumbled or name == "verify" or isinstance(error, epctx.InternalError):
            faults.append(f"{name}: {_story(error)}")
    except BaseException as error:  # noqa: BLE001 - this is what is looked for
        outcomes[name] = type(error).__name__
        faults.append(f"{name}: {_story(error)}")
    grown = _memory("VmHWM") - before
    if name != "run" and grown > 1 << 20:
        faults.append(f"{name}: {grown >> 10} MiB of memory")


def _verify(path: Path, faults: list[str]) -> None:
    report = epctx.verify_model(path, _options())
    json.dumps(report.as_dict())
    faults.extend(
        f"verify: {f.message}" for f in report.findings if f.code == "plugin-broken"
    )


def _load_and_run(path: Path, outcomes: dict[str, str], faults: list[str]) -> None:
    with epctx.InferenceSession(path, _options()) as session:
        inputs = session.get_inputs()
        if any(_elements(value.shape) > _LARGEST_INPUT for value in inputs):
            return
        _watched("run", lambda: _run(session, inputs), outcomes, faults)


class Stopped(epctx.RuntimeException):
    """A run took longer than it may here."""


def _run(session: epctx.InferenceSession, inputs: Any) -> None:
    options = epctx.RunOptions()
    timer = threading.Timer(
        _SECONDS_OF_A_RUN, lambda: setattr(options, "terminate", True)
    )
    timer.start()
    try:
        session.run(None, make_inputs(inputs, merge_lengths(inputs), 0), options)
    except epctx.RuntimeException as error:
        if options.terminate:
            raise Stopped(f"it was stopped after {_SECONDS_OF_A_RUN} s.") from error
        raise
    finally:
        timer.cancel()
        timer.join()


def _elements(shape: Any) -> int:
    count = 1
    for dimension in shape or ():
        count *= abs(dimension) if isinstance(dimension, int) else 1
    return count


def _options() -> epctx.SessionOptions:
    options = epctx.SessionOptions()
    options.intra_op_num_threads = 1
    return options


def _story(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-5))[-1500:]


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _memory(what: str) -> int:
    """Return a size from the system's account of this process, in KiB."""
    with Path("/proc/self/status").open(encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(what))


def _cases(seeds: Path, target: str) -> Iterator[Case]:
    known = read_seeds(seeds)
    change = None if target == MODELS else TARGETS[target].change
    for line in sys.stdin:
        word = line.strip()
        if word == "worker:die":
            os.kill(os.getpid(), signal.SIGSEGV)
        while word == "worker:hang":
            pass
        if word.isdecimal():
            yield case(known, int(word), change)
        elif word.startswith(OPERATOR):
            model = make_model(int(word.removeprefix(OPERATOR)))
            name = f"{OPERATOR}{model.graph.node[0].op_type}"
            files = {"model.onnx": model.SerializeToString()}
            yield Case(number=-1, seed=name, model="model.onnx", files=files)
        elif Path(word).is_file():
            seed = unpacked(Path(word).read_bytes(), Path(word).name)
            yield Case(number=-1, seed=seed.name, model=seed.model, files=seed.files)
        else:
            folder = Path(word)
            files = {p.name: p.read_bytes() for p in folder.iterdir()}
            model = (
                NPZ
                if NPZ in files
                else next((n for n in sorted(files) if n.endswith(".onnx")), None)
                or next(n for n in (CONTAINER, ENTRY, *files) if n in files)
            )
            yield Case(number=-1, seed=folder.name, model=model, files=files)


def prepare(seeds: list[Seed], folder: Path, target: str = MODELS) -> None:
    """Set the process up, have each seed once so that what is imported late is
    imported, and limit its memory.
    """
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    logging.disable(logging.CRITICAL)
    epctx.register_execution_provider(KERNEL_EP)
    # A verification is to survive a model by itself, not by another process.
    subject._require_survival = lambda *_: None
    if target != MODELS:
        TARGETS[target].prepare()
    for seed in seeds:
        attempt(
            put(
                Case(number=-1, seed=seed.name, model=seed.model, files=seed.files),
                folder,
            ),
            folder,
            target,
        )
    limit = (_memory("VmSize") << 10) + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(seeds: Path, folder: Path, target: str = MODELS) -> None:
    """Answer until the pipe ends."""
    prepare(read_seeds(seeds), folder, target)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print("ready", file=out)
    for made in _cases(seeds, target):
        print(json.dumps(attempt(put(made, folder), folder, target)), file=out)


def put(made: Case, folder: Path) -> Case:
    """Write a case's files, and nothing else, into the folder; return the case."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in made.files.items():
        (folder / name).write_bytes(content)
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
