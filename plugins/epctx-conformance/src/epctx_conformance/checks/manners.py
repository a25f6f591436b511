"""Checks of nothing done behind the host's back: in its process, on its disk, on the network; nothing held on to."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_conformance.table import CheckFailed, CheckFunction, Skipped, check

if TYPE_CHECKING:
    from epctx_conformance.scene import Scene

_IMPORT = ("import",)
_WORK = ("run", "export", "load")
_ROUNDS = 3
_DESCRIPTORS = Path("/proc/self/fd")
_MAPPINGS = Path("/proc/self/maps")


# --- in a process of its own -----------------------------------------------------------------------------


_NO_NETWORK = "Hosts run where there is no network."
_IN_AVAILABILITY = "Do it in `availability`, or when an instance is made."
_NOT_DONE: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str, tuple[str, ...]], ...] = (
    (
        "importing the EP writes nothing", ("write",), _IMPORT,
        "A host imports plugins only to list them. Write nothing.", (),
    ),
    ("importing the EP asks nothing of the network", ("network",), _IMPORT, _NO_NETWORK, ()),
    (
        "importing the EP starts no program and opens no device", ("program", "device"), _IMPORT,
        _IN_AVAILABILITY, (),
    ),
    (
        "compiling, loading and running write only by the writer and into scratch()", ("write",), _WORK,
        "Use `writer.payload()` for what is to stay, `context.scratch()` for the rest.", (),
    ),
    ("compiling, loading and running ask nothing of the network", ("network",), _WORK, _NO_NETWORK, ()),
    (
        "compiling, loading and running start no program", ("program",), _WORK,
        "If the compiler is a command, say so: Requirements(in_process=False).", ("in_process",),
    ),
    (
        "an export opens no device", ("device",), ("export",),
        "Under Purpose.EXPORT the machine may have no device; `run` may be None.", ("export",),
    ),
)  # fmt: skip
"""Title, kinds of what is not done, the phases that count, a hint, and what is needed."""


def _not_done(kinds: tuple[str, ...], phases: tuple[str, ...], hint: str) -> CheckFunction:
    def function(scene: Scene) -> None:
        for kind in kinds:
            scene.watched.expect_none(kind, phases, hint=hint)

    return function


for _title, _kinds, _phases, _hint, _needs in _NOT_DONE:
    check("manners", _title, needs=_needs)(_not_done(_kinds, _phases, _hint))


@check("manners", "importing the EP leaves the process as it was")
def _import_state(scene: Scene) -> None:
    scene.watched.expect_unchanged(_IMPORT, hint="What a process shares is the host's to set.")


@check("manners", "nothing is left in the current folder, beside the model or among temporary files")
def _left(scene: Scene) -> None:
    scene.watched.expect_worked(_WORK)
    for where, names in scene.watched.left.items():
        if names:
            raise CheckFailed(
                f"the EP leaves {', '.join(names)} in the {where} folder.",
                hint="`context.scratch()` is a context manager; leave it when the folder is not needed any more.",
            )


@check("manners", "nothing is printed to stdout")
def _stdout(scene: Scene) -> None:
    if scene.watched.stdout:
        raise CheckFailed(
            f"the EP prints {scene.watched.stdout[:80]!r}.", hint="stdout is the host's; use context.logger."
        )


@check("manners", "compiling, loading and running leave the process as it was")
def _state(scene: Scene) -> None:
    scene.watched.expect_unchanged(_WORK, hint="What a process shares is the host's to set.")


# --- in this process -------------------------------------------------------------------------------------


def _sessions(scene: Scene) -> None:
    """Compile and run; export, load and run."""
    model = scene.network
    scene.run(model, model.feeds())
    if scene.requirements.export:
        scene.run(scene.compile(model).path, model.feeds())


def _growth(scene: Scene, count: Callable[[], set[str]]) -> list[str]:
    """Return what more sessions leave behind when the first ones have left what they keep for good."""
    _sessions(scene)
    gc.collect()
    before = count()
    for _ in range(_ROUNDS):
        _sessions(scene)
    gc.collect()
    return sorted(count() - before)


@check("manners", "a closed session leaves no thread")
def _threads(scene: Scene) -> None:
    left = _growth(scene, lambda: {f"{thread.name} ({thread.ident})" for thread in threading.enumerate()})
    if left:
        raise CheckFailed(
            f"after {_ROUNDS} more sessions there are these threads more: {', '.join(left)}.",
            hint="End them in shutdown, and wait for them.",
        )


@check("manners", "a closed session leaves no file descriptor")
def _descriptors(scene: Scene) -> None:
    if not _DESCRIPTORS.exists():
        raise Skipped("this system does not tell which descriptors are open")
    left = _growth(scene, lambda: {path.name for path in _DESCRIPTORS.iterdir()})
    if len(left) >= _ROUNDS:
        raise CheckFailed(
            f"{_ROUNDS} more sessions left {len(left)} descriptors open.", hint="Close them in shutdown."
        )


@check("manners", "a closed session leaves no mapping of a file")
def _mappings(scene: Scene) -> None:
    if not _MAPPINGS.exists():
        raise Skipped("this system does not tell what is mapped")
    left = _growth(scene, _mapped_files)
    if left:
        raise CheckFailed(
            f"after their sessions were closed, these are still mapped: {', '.join(left)}.",
            hint="Let go of payload views and of mappings of your own in shutdown.",
        )


def _mapped_files() -> set[str]:
    lines = [line.split(maxsplit=5) for line in _MAPPINGS.read_text("utf-8", errors="replace").splitlines()]
    libraries = (".so", ".so.")
    return {
        f"{fields[5]} ({fields[4]})"
        for fields in lines
        if len(fields) > 5 and fields[5].startswith("/") and not any(end in fields[5] for end in libraries)  # noqa: PLR2004 - the place of the path
    }


@check("manners", "a closed session leaves no instance of the EP")
def _instances(scene: Scene) -> None:
    observed, watch = scene.observed()
    with observed:
        _sessions(observed)
    references = [weakref.ref(instance) for instance in watch.instances]
    watch.instances.clear()
    watch.contexts.clear()
    watch.calls.clear()
    gc.collect()
    alive = sum(reference() is not None for reference in references)
    if alive:
        raise CheckFailed(
            f"{alive} of {len(references)} instances are still there after their sessions were closed.",
            hint="Keep instances in no list, cache or class attribute; with them stays all that they compiled.",
        )
