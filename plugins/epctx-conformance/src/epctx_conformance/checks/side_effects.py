"""Side effects of an EP in the host's process, on its disk and on the network, and
after its sessions are closed.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_conformance.other_process import observe
from epctx_conformance.table import CheckFailed, CheckFunction, Skipped, check

if TYPE_CHECKING:
    from epctx_conformance.harness import Harness

_IMPORT = ("import",)
_WORK = ("run", "export", "load")
_ROUNDS = 3
_DESCRIPTORS = Path("/proc/self/fd")
_MAPPINGS = Path("/proc/self/maps")


# --- in a process of its own ----------------------------------------------------------


_NO_NETWORK = "Hosts run where there is no network."
_SHARED = "Leave state that all code of a process shares to the host."
_NOT_DONE: tuple[
    tuple[str, tuple[str, ...], tuple[str, ...], str, tuple[str, ...]], ...
] = (
    (
        "importing the EP writes nothing",
        ("write",),
        _IMPORT,
        "A host imports plugins only to list them. Write nothing.",
        (),
    ),
    (
        "importing the EP does not use the network",
        ("network",),
        _IMPORT,
        _NO_NETWORK,
        (),
    ),
    (
        ("importing the EP starts no program and opens no device"),
        ("program", "device"),
        _IMPORT,
        "Do it in `availability`, or when an instance is made.",
        (),
    ),
    ("importing the EP does not change the process", ("change",), _IMPORT, _SHARED, ()),
    (
        ("compiling, loading and running write only with the writer and in scratch()"),
        ("write",),
        _WORK,
        (
            "Use `writer.payload()` for payloads, `context.scratch()` for all other "
            "files."
        ),
        (),
    ),
    (
        "compiling, loading and running do not use the network",
        ("network",),
        _WORK,
        _NO_NETWORK,
        (),
    ),
    (
        "compiling, loading and running start no program",
        ("program",),
        _WORK,
        ("If the compiler is a command, declare it: Requirements(in_process=False)."),
        ("in_process",),
    ),
    (
        "an export opens no device",
        ("device",),
        ("export",),
        ("Under Purpose.EXPORT the machine may have no device; `run` may be None."),
        ("export",),
    ),
    (
        ("compiling, loading and running do not change the process"),
        ("change",),
        _WORK,
        _SHARED,
        (),
    ),
)
"""Title, kinds of side effects, the phases that count, a hint, and the abilities
needed.
"""


def _make_check(
    kinds: tuple[str, ...], phases: tuple[str, ...], hint: str
) -> CheckFunction:
    return lambda harness: observe(harness).expect_none(kinds, phases, hint=hint)


for _title, _kinds, _phases, _hint, _needs in _NOT_DONE:
    check("side_effects", _title, needs=_needs)(_make_check(_kinds, _phases, _hint))


@check("side_effects", "it leaves no file behind")
def check_left_files(harness: Harness) -> None:
    """After all sessions are closed."""
    observe(harness).expect_none((), _WORK, hint="")
    for where, names in observe(harness).left.items():
        if names:
            raise CheckFailed(
                f"the EP leaves {', '.join(names)} in the {where} folder.",
                hint=(
                    "`context.scratch()` is a context manager; leave it when the "
                    "folder is not needed any more."
                ),
            )


@check("side_effects", "it prints nothing to stdout")
def check_stdout(harness: Harness) -> None:
    """Also by native code."""
    printed = observe(harness).stdout
    if printed:
        raise CheckFailed(
            f"the EP prints {printed[:80]!r}.",
            hint="stdout is the host's; use context.logger.",
        )


# --- in this process ------------------------------------------------------------------


def _run_sessions(harness: Harness) -> None:
    """Compile and run; export, load and run."""
    model = harness.network
    harness.run(model, model.feeds())
    if harness.requirements.export:
        harness.run(harness.compile(model), model.feeds())


def _list_growth(harness: Harness, count: Callable[[], set[str]]) -> list[str]:
    """Return what more sessions leave behind, after the first ones left what stays."""
    _run_sessions(harness)
    gc.collect()
    before = count()
    for _ in range(_ROUNDS):
        _run_sessions(harness)
    gc.collect()
    return sorted(count() - before)


@check("side_effects", "a closed session leaves no thread")
def check_threads(harness: Harness) -> None:
    """Daemon threads, too."""
    left = _list_growth(
        harness,
        lambda: {f"{thread.name} ({thread.ident})" for thread in threading.enumerate()},
    )
    if left:
        raise CheckFailed(
            f"{_ROUNDS} more sessions left these threads: {', '.join(left)}.",
            hint="End them in shutdown, and wait for them.",
        )


@check("side_effects", "a closed session leaves no file descriptor")
def check_descriptors(harness: Harness) -> None:
    """Files, sockets, devices."""
    if not _DESCRIPTORS.exists():
        raise Skipped("this system does not list open descriptors")
    left = _list_growth(harness, lambda: {path.name for path in _DESCRIPTORS.iterdir()})
    if len(left) >= _ROUNDS:
        raise CheckFailed(
            f"{_ROUNDS} more sessions left {len(left)} descriptors open.",
            hint="Close them in shutdown.",
        )


@check("side_effects", "a closed session leaves no mapping of a file")
def check_mappings(harness: Harness) -> None:
    """Payloads and other files."""
    if not _MAPPINGS.exists():
        raise Skipped("this system does not list mappings")
    left = _list_growth(harness, _list_mapped_files)
    if left:
        raise CheckFailed(
            f"{_ROUNDS} more sessions left these files mapped: {', '.join(left)}.",
            hint="Release payload views and your own mappings in shutdown.",
        )


def _list_mapped_files() -> set[str]:
    lines = [
        line.split(maxsplit=5)
        for line in _MAPPINGS.read_text("utf-8", errors="replace").splitlines()
    ]
    return {
        f"{fields[5]} ({fields[4]})"
        for fields in lines
        if len(fields) > 5 and fields[5].startswith("/") and ".so" not in fields[5]  # noqa: PLR2004 - the index of the path
    }


@check("side_effects", "a closed session leaves no instance of the EP")
def check_instances(harness: Harness) -> None:
    """With them stays all that they compiled."""
    other, watch = harness.observed()
    _run_sessions(other)
    references = [weakref.ref(instance) for instance in watch.instances]
    watch.instances.clear()
    watch.contexts.clear()
    watch.calls.clear()
    gc.collect()
    alive = sum(reference() is not None for reference in references)
    if alive:
        raise CheckFailed(
            f"{alive} of {len(references)} instances outlive their sessions.",
            hint="Keep instances in no list, cache or class attribute.",
        )
