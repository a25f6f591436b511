"""`--profile FILE`: a profile of what a command compiles, loads and runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.errors import Fail
from epctx_core.ext import import_installed

if TYPE_CHECKING:
    from epctx_bench import Profile

    from epctx_cli.console import Console
    from epctx_core import SessionOptions


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Add `--profile`."""
    meaning = (
        "write a profile of stages, hooks and runs, for https://ui.perfetto.dev (needs "
        "epctx-bench)"
    )
    parser.add_argument("--profile", metavar="FILE.json", help=meaning)


@contextmanager
def profiling(
    arguments: argparse.Namespace, session: SessionOptions, console: Console
) -> Iterator[None]:
    """Record what is done in the block with these session options; write the profile
    at its end, also if it fails.

    Raises:
        PackageMissing: epctx-bench is not installed.
        InvalidArgument, Fail: the file cannot be written.
    """
    if arguments.profile is None:
        yield
        return
    from epctx_cli.arrays import check_writable

    check_writable(arguments.profile)
    module = import_installed("epctx_bench.profile", needed_by="--profile")
    profile = module.Profile()
    session.add_host_plugin(profile)
    try:
        yield
    except BaseException:
        # What went wrong is the error of the command, not of its profile.
        try:
            _write(profile, arguments.profile, console)
        except Fail as unwritten:
            console.warn(unwritten.message)
        raise
    _write(profile, arguments.profile, console)


def _write(profile: Profile, name: str, console: Console) -> None:
    path = Path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.write(path)
    except OSError as error:
        raise Fail(
            f"the profile {name!r} cannot be written: {error.strerror or error}.",
            path=path,
        ) from error
    lost = f"; {profile.lost} events are missing" if profile.lost else ""
    console.note(f"Profile: {name} (open it in ui.perfetto.dev{lost}).")
