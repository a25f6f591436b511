"""Receipts of files that were checked whole, so that a machine digests each of them
once; and those checks.

A receipt is an empty file. Its name is a digest over the state of the file that was
checked (device, inode, size, times of change) and over what it was checked against:
another state, or another expected digest, is another receipt. Nothing in it can be torn
or forged by its content, so it is trusted if nobody else can write into its folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from epctx_core.context.manifest import PayloadEntry, Segment, find_damage
from epctx_core.context.scratch import (
    describe_distrust,
    get_user_folder,
    is_own,
    make_private_folder,
)
from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from epctx_core.graph.mapping import MappedFile
    from epctx_core.options import CancellationFlag

FOLDER_VARIABLE = "EPCTX_RECEIPTS"
LIMIT = 4096
"""Receipts in one folder beyond which the older half is removed."""

SETTLED_NS = 2_000_000_000
"""Nanoseconds without a change after which a later change is sure to show in a file's
time: FAT counts in two seconds.
"""

BESIDE_FROM = 1 << 20
"""Bytes from which a payload is digested beside the EP's own loading; less is done
before a thread has started.
"""

_NAME = re.compile("[0-9a-f]{64}")
_POLLED_EVERY = 0.05
_log = logging.getLogger("epctx.context")
_in_memory: dict[str, None] = {}
_logged: set[str] = set()


def make_file_receipt(status: os.stat_result, digest: str) -> str:
    """Return the receipt for a file with a status, checked against a root digest
    (hex).
    """
    state = (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
    return hashlib.sha256(f"file 1 {state} {digest}".encode()).hexdigest()


def make_model_receipt(digest: str) -> str:
    """Return the receipt for all payloads embedded in a model, whose bytes have a
    digest (hex), wherever it lies.
    """
    return hashlib.sha256(f"model 1 {digest}".encode()).hexdigest()


def make_reading_receipt(digest: str, versions: str) -> str:
    """Return the receipt for a model whose bytes have a digest (hex), that native code
    of these versions could read it.
    """
    return hashlib.sha256(f"reading 1 {digest} {versions}".encode()).hexdigest()


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
        kept = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
        ages = []
        for path in kept if len(kept) > LIMIT else ():
            with suppress(FileNotFoundError):
                ages.append((path.lstat().st_mtime_ns, path))
        for _, path in sorted(ages)[: len(ages) // 2]:
            path.unlink(missing_ok=True)
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
                *(reason, FOLDER_VARIABLE),
            )


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
    before = os.fstat(descriptor)
    old = "" if digest is None else make_file_receipt(before, digest)
    noted = digest is not None and is_noted(old)
    yield
    after = os.fstat(descriptor)
    if digest is None or not noted or not _is_same_content(before, after):
        return

    new = make_file_receipt(after, digest)
    note([new])

    # The state before does not come back. Clocks have steps, so it may be the one now.
    if new != old:
        _discard(old)


def _discard(receipt: str) -> None:
    _in_memory.pop(receipt, None)
    with suppress(OSError):
        (_get_trusted_folder() / receipt).unlink()


def _is_same_content(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


def _get_folder() -> Path:
    """Return the folder for receipts.

    Raises:
        OSError: the user's folders are unknown.
    """
    try:
        if named := os.environ.get(FOLDER_VARIABLE, ""):
            return Path(named).expanduser().absolute()
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


class DigestChecks:
    """Context manager: the payloads of one load that are checked the first time a
    machine sees them.

    Those of some size are digested on threads, beside whatever the EPs do with them
    meanwhile. If the load ends in another error, damage that is found goes before it:
    it is the likelier cause.

    Args:
        cancellation: of the host; None if nobody waits with `finish`, so that all is
            checked at once.
    """

    def __init__(self, cancellation: CancellationFlag | None = None) -> None:
        self._cancellation = cancellation
        self._stopped = threading.Event()
        # The first damaged segment, later; the error for it; the receipts without one.
        self._under_way: list[
            tuple[
                Future[Segment | None],
                Callable[[Segment], InvalidGraph],
                Callable[[], list[str]],
            ]
        ] = []
        self._receipts: set[str] = set()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        """Wait for the checks, or stop if the host cancels.

        Raises:
            InvalidGraph: a payload is damaged.
        """
        if error is not None:
            # Not all payloads of the model need have been begun with.
            self._receipts.clear()
        try:
            if error is None or isinstance(error, Exception):
                self.finish()
        except InvalidGraph as damage:
            if damage is not error:
                raise damage from error
        finally:
            self._stopped.set()
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    def is_beside(self, size: int) -> bool:
        """Return whether a payload of that many bytes is checked beside the load."""
        return (
            self._cancellation is not None
            and size >= BESIDE_FROM
            and not self._stopped.is_set()
        )

    def check(
        self,
        view: memoryview,
        file: MappedFile | None,
        entry: PayloadEntry,
        refuse: Callable[[Segment], InvalidGraph],
        *,
        beside: bool,
    ) -> bool:
        """Check a payload that this machine has not seen; return whether it is known to
        be right.

        Args:
            view: the bytes, which the load holds.
            file: the file that they are in; None for bytes in memory.
            entry: its ranges and their digests.
            refuse: makes the error for the first range that is another one.
            beside: whether to check it on a thread, see `is_beside`; `finish` raises
                the error then.

        Raises:
            InvalidGraph: it is damaged.
        """
        begun = time.time_ns()

        def forget(offset: int, length: int) -> None:
            if beside and self._stopped.is_set():
                raise CancelledError
            if file is not None:
                file.forget(offset, length)

        def find_first() -> Segment | None:
            return next(find_damage(view, entry.segments, forget), None)

        def receipts() -> list[str]:
            return [] if file is None else _make_receipts_after(file, entry.root, begun)

        if beside:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(
                    max_workers=1, thread_name_prefix="epctx-check"
                )
            self._under_way.append((self._pool.submit(find_first), refuse, receipts))
            return False

        if (segment := find_first()) is not None:
            raise refuse(segment)
        note(receipts())
        return True

    def note_when_right(self, receipt: str) -> None:
        """Leave a receipt if all checks succeed and somebody waits for them."""
        if self._cancellation is not None:
            self._receipts.add(receipt)

    def finish(self) -> None:
        """Wait for all checks, and leave their receipts; further calls do nothing.

        Raises:
            InvalidGraph: a payload is damaged: the first in the order of `check`.
            ModelLoadCanceled: the host asked to stop.
        """
        checks = self._under_way
        self._under_way = []
        receipts = self._receipts
        self._receipts = set()
        for found, refuse, _ in checks:
            while not found.done():
                if self._cancellation is not None:
                    self._cancellation.raise_if_requested()
                with suppress(TimeoutError):
                    found.exception(_POLLED_EVERY)
            segment = found.result()
            if segment is not None:
                raise refuse(segment)
        note([*receipts, *(receipt for _, _, passed in checks for receipt in passed())])


IN_PLACE = DigestChecks()
"""Checks for reading outside of a load, where nothing is checked beside."""


def _make_receipts_after(content: MappedFile, digest: str, begun: int) -> list[str]:
    """Return the receipt of a file that was right, if every change since the check
    began would show in its times.

    A file that was written to in the same tick of the clock looks as before. So one
    that is as young gets none, and the next load checks it again. A link made
    meanwhile, as for an EP that wants a file, changes the ctime, too.
    """
    before = content.status
    after = os.fstat(content.descriptor)
    untouched = (
        before.st_ctime_ns == after.st_ctime_ns or before.st_nlink != after.st_nlink
    )
    if (
        untouched
        and _is_same_content(before, after)
        # Whoever restores a file's mtime leaves a recent ctime, which links made
        # meanwhile hide.
        and max(before.st_mtime_ns, before.st_ctime_ns) < begun - SETTLED_NS
    ):
        return [make_file_receipt(after, digest)]
    return []
