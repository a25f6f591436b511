"""Receipts of files that were checked whole, so that a machine digests each of them
once.

A receipt is an empty file. Its name is a digest over the state of the file that was
checked (device, inode, size, times of change) and over what it was checked against:
another state, or another expected digest, is another receipt. Nothing in it can be torn
or forged by its content, so it is trusted if nobody else can write into its folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from epctx_core.context.scratch import (
    describe_distrust,
    get_user_folder,
    is_own,
    make_private_folder,
)
from epctx_core.graph.mapping import identify_file

FOLDER_VARIABLE = "EPCTX_RECEIPTS"
LIMIT = 4096
"""Receipts in one folder beyond which the older half is removed, soon."""

_log = logging.getLogger("epctx.context")
_in_memory: dict[str, None] = {}
_logged: set[str] = set()


def make_file_receipt(status: os.stat_result, digest: str) -> str:
    """Return the receipt for a file with a status, checked against a root digest
    (hex).
    """
    state = (*identify_file(status), status.st_ctime_ns)
    return _make_receipt(f"file 1 {state} {digest}")


def make_model_receipt(digest: str) -> str:
    """Return the receipt for all payloads embedded in a model, whose bytes have a
    digest (hex), wherever it lies.
    """
    return _make_receipt(f"model 1 {digest}")


def make_reading_receipt(digest: str, versions: str) -> str:
    """Return the receipt for a model by the digest of its bytes (hex), that native code
    of these versions could read it.
    """
    return _make_receipt(f"reading 1 {digest} {versions}")


def _make_receipt(facts: str) -> str:
    return hashlib.sha256(facts.encode()).hexdigest()


def is_noted(receipt: str) -> bool:
    """Return whether there is a receipt, in the folder or in this process's memory."""
    if receipt in _in_memory:
        return True
    with suppress(OSError):
        status = (_get_trusted_folder() / receipt).lstat()
        return stat.S_ISREG(status.st_mode) and is_own(status)
    return False


def note(receipts: Iterable[str]) -> None:
    """Leave receipts for later loads of this machine; where the folder cannot be used,
    for those of this process.
    """
    names = list(receipts)
    if not names:
        return
    try:
        make_private_folder(_get_folder())
        folder = _get_trusted_folder()
        for name in names:
            with suppress(FileExistsError):
                os.close(
                    os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                )

        # The folder is listed for one digest in 16, those that begin with 0: listing it
        # takes as long as a small load.
        if any(name < "1" for name in names):
            _remove_old_ones(folder)
    except OSError as error:
        _in_memory.update(dict.fromkeys(names))
        for name in list(_in_memory)[:-LIMIT]:
            _in_memory.pop(name, None)
        if (reason := str(error)) not in _logged:
            _logged.add(reason)
            _log.warning(
                (
                    "receipts of checked payloads are kept in this process's memory "
                    "only, as their folder cannot be used: %s. Set %s to a folder "
                    "that only this user can write to."
                ),
                reason,
                FOLDER_VARIABLE,
            )


def _remove_old_ones(folder: Path) -> None:
    """Remove the older half of a folder's receipts, where there are more than
    `LIMIT`.
    """
    receipts = list(folder.glob("[0-9a-f]" * 64))
    if len(receipts) <= LIMIT:
        return

    # One that is missed is removed by another process, which goes on with the rest.
    with suppress(FileNotFoundError):
        by_age = sorted(receipts, key=lambda path: path.lstat().st_mtime_ns)
        for path in by_age[: len(receipts) // 2]:
            path.unlink()


def note_published(
    states: Mapping[str, os.stat_result], digests: Mapping[str, str]
) -> None:
    """Leave receipts for files that this process has just written and digested on the
    way.

    Args:
        states: see `epctx_core.publish.publication.Publication.commit`.
        digests: the root digest (hex) of each file, by the same names; more are
            ignored.
    """
    note(
        make_file_receipt(state, digests[name])
        for name, state in states.items()
        if name in digests
    )


@contextmanager
def keep_receipt(descriptor: int, digest: str | None) -> Iterator[None]:
    """Keep the receipt of an open file, if it has a digest, while the block makes or
    removes a link to it.

    A link changes the file's ctime, and nothing else of it.
    """
    if digest is None:
        yield
        return

    before = os.fstat(descriptor)
    old = make_file_receipt(before, digest)
    noted = is_noted(old)
    yield
    after = os.fstat(descriptor)
    if not noted or not is_same_content(before, after):
        return

    new = make_file_receipt(after, digest)
    note([new])

    # The state before does not come back. Clocks have steps, so it may be the one now.
    if new != old:
        _in_memory.pop(old, None)
        with suppress(OSError):
            (_get_trusted_folder() / old).unlink()


def is_same_content(before: os.stat_result, after: os.stat_result) -> bool:
    """Return whether a file has the content that it had, as far as its status says."""
    return (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


def _get_folder() -> Path:
    """Return the folder for receipts.

    Raises:
        OSError: the user's folders are unknown.
    """
    try:
        if folder_name := os.environ.get(FOLDER_VARIABLE, ""):
            return Path(folder_name).expanduser().absolute()
        return get_user_folder(sys.platform, os.environ) / "receipts"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _get_trusted_folder() -> Path:
    """Return the folder if only this user can put receipts there; what is read in it
    has to be this user's, too.

    Raises:
        OSError: there is no such folder, or others can write into it.
    """
    folder = _get_folder()
    if reason := describe_distrust(folder.lstat()):
        raise OSError(f"{folder} {reason}")
    return folder
