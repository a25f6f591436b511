"""Replacement of a whole folder in one step, which a kill at any moment survives.

The new folder is made beside the old one, and the two change names by one call of the
system. So GenAI, which opens file after file by their names, finds the old folder or
the new one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from epctx_files import verify_folder

from epctx_core.errors import EpctxError, Fail, InvalidArgument, quote

_HERE = -100
"""AT_FDCWD: names are relative to the current folder."""
_EXCHANGE = 2
"""RENAME_EXCHANGE of `renameat2`, Linux 3.15."""
_MARK = ".epctx-build-"
DIGEST = "folder.epctx.json"
"""File that every folder has that was built."""
PURPOSE = "onnxruntime-genai: "
"""Beginning of the purpose in that file."""


@contextmanager
def replace_folder(output: Path) -> Iterator[Path]:
    """Yield an empty folder, which takes the place of `output` when the block ends; an
    exception removes it, and leaves `output` as it is.

    What killed ones left beside `output` is removed first.

    Args:
        output: a folder that was built before, an empty one, or none yet.

    Raises:
        InvalidArgument: `output` is a link, or has other files than a build.
        Fail: the folder cannot be made or replaced.
    """
    output = output.absolute()
    require_build(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(output)
        staging, lock = _make_staging(output)
    except OSError as error:
        raise _make_error(output, error) from error

    try:
        yield staging
        _sync(staging)
        require_build(output)
        _put_in_place(staging, output)
    finally:
        # After an exchange, the old folder.
        shutil.rmtree(staging, ignore_errors=True)
        os.close(lock)


def require_build(output: Path) -> None:
    """Raise InvalidArgument for a folder whose files would be lost: only an empty one,
    or one that has the files of a build alone, can be replaced.
    """
    problem = ""
    if os.path.lexists(output) and (output.is_symlink() or not output.is_dir()):
        problem = "is not a folder"
    elif output.exists() and any(output.iterdir()):
        problem = _find_other_files(output)
    if problem:
        raise InvalidArgument(
            f"the output {str(output)!r} {problem}.",
            path=output,
            hint="Give a new folder, or remove this one.",
        )


def _find_other_files(output: Path) -> str:
    """Return what a folder has that no build wrote; empty if that is nothing."""
    report = None
    with suppress(EpctxError):
        report = verify_folder(output)
    if report is None or not report.sealed.purpose.startswith(PURPOSE):
        return "is not a folder that was built"
    others = [each.name for each in report.findings if each.problem == "added"]
    others += [path.name for path in output.iterdir() if path.name.startswith(".")]
    return f"has {others[0]!r}, which no build wrote" if others else ""


def _make_staging(output: Path) -> tuple[Path, int]:
    """Return a new folder, and its descriptor, whose lock says that somebody works on
    it; the lock ends with the process.
    """
    while True:
        staging = Path(
            tempfile.mkdtemp(prefix=f"{_MARK}{output.name}-", dir=output.parent)
        )
        # Another build may take it for an abandoned one until it is locked.
        with suppress(FileNotFoundError):
            lock = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if staging.exists():
                return staging, lock
            os.close(lock)


def _remove_abandoned(output: Path) -> None:
    """Remove the folders of this user that killed processes left beside `output`."""
    # As `mkdtemp` names them.
    is_ours = re.compile(re.escape(f"{_MARK}{output.name}-") + r"[a-z0-9_]{8}")
    for entry in os.scandir(output.parent):
        state = entry.stat(follow_symlinks=False)
        if (
            not is_ours.fullmatch(entry.name)
            or not stat.S_ISDIR(state.st_mode)
            or state.st_uid != os.geteuid()
        ):
            continue
        # Another process may remove it, too.
        with suppress(OSError):
            lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path)
            finally:
                os.close(lock)


def _sync(folder: Path) -> None:
    """Force the files of a folder to the disk: a name that changes before them would
    lead to empty ones after a power failure.
    """
    for parent, _, names in os.walk(folder):
        for name in (*names, "."):
            descriptor = os.open(f"{parent}/{name}", os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _put_in_place(staging: Path, output: Path) -> None:
    """Give a folder the name of another, which gets its name if it exists.

    Raises:
        Fail: the file system cannot exchange them.
    """
    # Private until it is complete.
    mask = os.umask(0)
    os.umask(mask)
    try:
        staging.chmod(0o777 & ~mask)
        if output.exists():
            _exchange(staging, output)
        else:
            staging.rename(output)
    except OSError as error:
        raise _make_error(output, error) from error


def _exchange(first: Path, second: Path) -> None:
    """Exchange the names of two folders, which `os` has no call for.

    Raises:
        OSError: the file system cannot.
    """
    library = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(first), os.fsencode(second))
    if library.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(second))


def _make_error(output: Path, error: OSError) -> Fail:
    return Fail(
        f"the folder {str(output)!r} cannot be written: {quote(error)}.",
        path=output,
        hint="Give a new folder, on a file system of this machine.",
    )
