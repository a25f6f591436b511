"""Folders to publish into, and ways to stop the process at its n-th call of the system.

Also a program, since a test process with threads should not fork:
`publication.py SCENARIO FOLDER play` plays a scenario again and again, each time in a
folder of its own and killed one call later, until a run ends by itself, and prints how
many folders there are; `publication.py SCENARIO FOLDER prepare` only prepares.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.system_calls import CHANGING, intercepted

from epctx_core.context.paths import find_interrupted_copies
from epctx_core.errors import EpctxError
from epctx_core.publish.publication import Publication

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ALL_CALLS = (*CHANGING, "lstat", "scandir")

Files = dict[str, bytes]


# --- files: a model names the digests of its binaries ---------------------------------


def make_files(
    version: str, models: tuple[str, ...], binaries: tuple[str, ...]
) -> Files:
    """Make the files of one publication, which differ from those of other versions."""
    data = {name: f"{name} of {version}\n".encode() * 50 for name in binaries}
    digests = {name: hashlib.sha256(blob).hexdigest() for name, blob in data.items()}
    for name in models:
        data[name] = json.dumps(
            {"model": name, "version": version, "binaries": digests}
        ).encode()
    return data


def put(folder: Path, files: Files, *, replace: bool = True) -> None:
    """Publish files; `.onnx` ones are the models."""
    with Publication(folder) as publication:
        for name, data in files.items():
            publication.create(
                name, replace=replace or not name.endswith(".onnx")
            ).write(data)
        publication.commit(models=[name for name in files if name.endswith(".onnx")])


def finish_interrupted(folder: Path) -> None:
    """Finish or discard killed publications, as the next compile does."""
    with Publication(folder):
        pass


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Return all files and sub-folders (None) outside of staging."""
    found = (
        p
        for p in sorted(folder.rglob("*"))
        if not p.relative_to(folder).parts[0].startswith(".epctx-")
    )
    return {
        str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes()
        for p in found
    }


def list_staging(folder: Path) -> list[str]:
    """Return the names of the staging folders in a folder."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".epctx-")]


def list_missing_binaries(folder: Path, model: str) -> list[str]:
    """Read a model as a loader does; return the binaries whose bytes are nowhere to be
    found.
    """
    fields = json.loads((folder / model).read_bytes())
    return [
        name
        for name, digest in fields["binaries"].items()
        if not _is_found(folder, name, digest)
    ]


def _is_found(folder: Path, name: str, digest: str) -> bool:
    for path in _candidates(folder, name):
        with suppress(OSError):
            if hashlib.sha256(path.read_bytes()).hexdigest() == digest:
                return True
    return False


def _candidates(folder: Path, name: str) -> Iterator[Path]:
    yield folder / name
    yield from find_interrupted_copies(folder, name)


# --- stopping or disturbing the process -----------------------------------------------


@contextmanager
def kill_before_call(n: int) -> Iterator[None]:
    """Kill this process, without any chance to clean up, before its n-th changing
    call.
    """
    seen = 0

    def before(_name: str, _args: tuple[object, ...]) -> None:
        nonlocal seen
        seen += 1
        if seen == n:
            os.kill(os.getpid(), signal.SIGKILL)

    with intercepted(before, CHANGING):
        yield


@contextmanager
def fail_call(n: int, code: int, *, for_ever: bool) -> Iterator[Callable[[], int]]:
    """Make the n-th call fail, or all from the n-th; gives a function that returns the
    number of calls.
    """
    seen = 0

    def before(name: str, _args: tuple[object, ...]) -> None:
        nonlocal seen
        seen += 1
        if seen == n or (for_ever and seen > n):
            raise OSError(code, os.strerror(code), name)

    with intercepted(before, ALL_CALLS):
        yield lambda: seen


@contextmanager
def without_hard_links() -> Iterator[None]:
    """Refuse hard links, as some file systems do."""

    def before(_name: str, _args: tuple[object, ...]) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    with intercepted(before, ("link",)):
        yield


@contextmanager
def at_final(call: str, name: str, act: Callable[[Path], None]) -> Iterator[None]:
    """Run `act(final)` before `call` brings a staged file to its final name, the first
    time only.
    """
    pending = [act]

    def before(_name: str, args: tuple[object, ...]) -> None:
        source, target = Path(str(args[0])), Path(str(args[1]))
        if target.name == name and "new" in source.parts and pending:
            pending.pop()(target)

    with intercepted(before, (call,)):
        yield


@contextmanager
def take_name_last(name: str, *, links: bool) -> Iterator[None]:
    """Have a stranger take a name at the last moment before a staged file would get
    it.
    """

    def before(_name: str, args: tuple[object, ...]) -> None:
        target = Path(str(args[1]))
        if target.name == name and "new" in Path(str(args[0])).parts:
            take_name(target)
        if not links:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    with intercepted(before, ("link",)):
        yield


def refuse(path: Path) -> None:
    """Refuse a call as a broken disk does."""
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def take_name(path: Path) -> None:
    """Write a foreign model under a name first."""
    path.write_bytes(FOREIGN)


def is_child_killed(work: Callable[[], None]) -> bool:
    """Do work in a child process; return whether it was killed."""
    child = os.fork()
    if child == 0:
        with suppress(EpctxError):
            work()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WIFSIGNALED(status)


# --- harness --------------------------------------------------------------------------

MODELS = ("a_ctx.onnx", "b_ctx.onnx")
BINARIES = ("a_qnn.bin", "a.data")
OLD = make_files("old", MODELS, BINARIES)
NEW = make_files("new", MODELS, BINARIES)
FOREIGN = json.dumps({"model": "foreign", "binaries": {}}).encode()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """State of a folder and an action in it that is stopped.

    `ends` are the states that the folder may have after the next publication.
    """

    before: Callable[[Path], None]
    act: Callable[[Path], None]
    ends: tuple[Mapping[str, bytes | None], ...]


def _nothing(_folder: Path) -> None:
    pass


def _old(folder: Path) -> None:
    put(folder, OLD)


def _orphan(folder: Path) -> None:
    (folder / "a_qnn.bin").write_bytes(OLD["a_qnn.bin"])


ORPHAN = {"a_qnn.bin": OLD["a_qnn.bin"]}
NESTED = make_files("new", ("out/deep/a_ctx.onnx",), ("bin/x/a_qnn.bin",))
NESTED_END = {**NESTED, "bin": None, "bin/x": None, "out": None, "out/deep": None}


def _publish_new(folder: Path) -> None:
    put(folder, NEW)


def _publish_new_by_copies(folder: Path) -> None:
    with without_hard_links():
        put(folder, NEW)


def _publish_nested(folder: Path) -> None:
    put(folder, NESTED)


def _publish_nested_onto_broken_disk(folder: Path) -> None:
    with at_final("link", "a_ctx.onnx", refuse):
        put(folder, NESTED)


def _publish_unless_there(folder: Path) -> None:
    put(folder, NEW, replace=False)


def _publish_unless_there_by_copies(folder: Path) -> None:
    with without_hard_links():
        put(folder, NEW, replace=False)


def _publish_onto_broken_disk(folder: Path) -> None:
    with at_final("replace", MODELS[1], refuse):
        put(folder, NEW)


def _lose_the_race(folder: Path) -> None:
    with at_final("link", MODELS[1], take_name):
        put(folder, NEW, replace=False)


def _left_half_done(folder: Path) -> None:
    _old(folder)

    def work() -> None:
        with at_final(
            "replace", MODELS[0], lambda _path: os.kill(os.getpid(), signal.SIGKILL)
        ):
            put(folder, NEW)

    assert is_child_killed(work)


def _left_half_done_and_name_taken(folder: Path) -> None:
    _orphan(folder)

    def work() -> None:
        with at_final(
            "link", MODELS[1], lambda _path: os.kill(os.getpid(), signal.SIGKILL)
        ):
            put(folder, NEW, replace=False)

    assert is_child_killed(work)
    take_name(folder / MODELS[1])


SCENARIOS = {
    "into an empty folder": Scenario(before=_nothing, act=_publish_new, ends=({}, NEW)),
    "over an older one": Scenario(before=_old, act=_publish_new, ends=(OLD, NEW)),
    "without hard links": Scenario(
        before=_old, act=_publish_new_by_copies, ends=(OLD, NEW)
    ),
    "into sub-folders": Scenario(
        before=_nothing, act=_publish_nested, ends=({}, NESTED_END)
    ),
    "into sub-folders, taken back": Scenario(
        before=_nothing, act=_publish_nested_onto_broken_disk, ends=({}, NESTED_END)
    ),
    "without replacing": Scenario(
        before=_orphan, act=_publish_unless_there, ends=(ORPHAN, NEW)
    ),
    "without replacing or links": Scenario(
        before=_orphan, act=_publish_unless_there_by_copies, ends=(ORPHAN, NEW)
    ),
    "taken back": Scenario(before=_old, act=_publish_onto_broken_disk, ends=(OLD, NEW)),
    "losing a race": Scenario(
        before=_orphan,
        act=_lose_the_race,
        ends=(ORPHAN, {**ORPHAN, MODELS[1]: FOREIGN}, NEW),
    ),
    "finishing": Scenario(before=_left_half_done, act=finish_interrupted, ends=(NEW,)),
    "finishing where a name is taken": Scenario(
        before=_left_half_done_and_name_taken,
        act=finish_interrupted,
        ends=({**ORPHAN, MODELS[1]: FOREIGN},),
    ),
}


def play(scenario: Scenario, parent: Path) -> int:
    """Play a scenario in folders `1`, `2`, … below parent, killed at that call; return
    how many there are.
    """
    n, killed = 0, True
    while killed:
        n += 1
        folder = parent / str(n)
        folder.mkdir()
        scenario.before(folder)

        def work(folder: Path = folder, n: int = n) -> None:
            with kill_before_call(n):
                scenario.act(folder)

        killed = is_child_killed(work)
    return n


def run_program(name: str, folder: Path, what: str) -> str:
    """Run this file as a program; return what it prints."""
    command = [sys.executable, __file__, name, str(folder), what]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    chosen, place = SCENARIOS[sys.argv[1]], Path(sys.argv[2])
    if sys.argv[3] == "play":
        sys.stdout.write(f"{play(chosen, place)}\n")
    else:
        chosen.before(place)
