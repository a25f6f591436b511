"""Digests of a payload or of a file of weights, and checks against them.

Digests are SHA-256: one a segment (each weight; other bytes in blocks of at most 1
MiB), one root over the list of them. What this machine has checked has a receipt and is
not digested again.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar

from epctx_core.context.receipts import (
    is_noted,
    is_same_content,
    make_file_receipt,
    note,
)
from epctx_core.errors import InvalidGraph
from epctx_core.frozen import dataclass
from epctx_core.graph.mapping import CHUNK, MappedFile
from epctx_core.options import Verification

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor
    from io import FileIO

    from epctx_core.options import CancellationFlag

_T = TypeVar("_T")
Content: TypeAlias = "memoryview | MappedFile"
"""Bytes as they were found: in memory, or in a file."""
Blame: TypeAlias = Callable[[], AbstractContextManager[None]]
Forget: TypeAlias = Callable[[int, int], None]
"""Function called with offset and length of bytes that need not stay in memory."""

BLOCK = 1 << 20
"""Bytes between weights are digested in blocks of this size."""
SETTLED_NS = 2_000_000_000
"""Nanoseconds without a change after which a later change is sure to show in a file's
time: FAT counts in two seconds.
"""
CONCURRENT_FROM = 1 << 20
"""Bytes from which a payload is digested concurrently with the EP's loading; less is
done before a thread has started.
"""

_HEX_DIGEST = re.compile("[0-9a-f]{64}")
_BLOCKS_CHECKED = 8
"""Number of segments that a check of the head digests: a header, and blocks of at most
1 MiB between weights.
"""
_POLLED_EVERY = 0.05
"""Seconds between two checks of the host's flag while a load waits."""
_OTHER_FILE = (
    "The file does not belong to this model or was altered; fetch both again, or "
    "compile again."
)


class ReplacedBinaryError(InvalidGraph):
    """Payload or file of weights that is not the one that the model was written with.

    A load that gets it checks whether a publication was under way before it gives up.
    """


class Segment(NamedTuple):
    """A range of a payload with its digest (hex)."""

    offset: int
    length: int
    digest: str
    is_weight: bool = False


def compute_digest(
    view: memoryview, segment: Segment, forget: Forget | None = None
) -> str:
    """Return the digest (hex) of a range of a payload."""
    sha = hashlib.sha256()
    end = segment.offset + segment.length
    for start in range(segment.offset, end, CHUNK):
        chunk = view[start : min(end, start + CHUNK)]
        sha.update(chunk)
        if forget is not None:
            forget(start, len(chunk))
    return sha.hexdigest()


def _group_segments(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yield segments in groups large enough that handing one to a thread costs nothing
    beside digesting it.
    """
    batch: list[Segment] = []
    size = 0
    for segment in segments:
        batch.append(segment)
        size += segment.length
        if size >= BLOCK:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def read_segments(data: Sequence[Sequence[Any]]) -> tuple[Segment, ...]:
    """Return segments out of their JSON form; see `dump_segments`.

    Raises:
        ValueError, TypeError: they are damaged.
    """
    segments = []
    offset = 0
    for length, digest, *weight in data:
        if (
            not isinstance(length, int)
            or length < 0
            or not _HEX_DIGEST.fullmatch(digest)
        ):
            raise ValueError("a segment is not a length and a digest")
        segments.append(Segment(offset, length, digest, bool(weight)))
        offset += length
    return tuple(segments)


def dump_segments(segments: Sequence[Segment]) -> list[list[int | str]]:
    """Return the JSON form of segments that follow each other; a third entry marks a
    weight.
    """
    return [
        [s.length, s.digest, 1] if s.is_weight else [s.length, s.digest]
        for s in segments
    ]


@dataclass(frozen=True, kw_only=True)
class PayloadEntry:
    """Entry of the manifest about one payload, or that of the file for initializers.

    Attributes:
        name: the file's name relative to the model, or the node's name for an embedded
            payload.
        embedded: which of the two.
        size: length in bytes.
        segments: ranges and digests, in order, covering all bytes.
        references: names of the nodes without a payload of their own whose graphs this
            one holds; said only where the model has several payloads of one EP.
        is_weights_file: True for the file for initializers: its last segment is the
            checksum, all others are weights.
    """

    name: str
    embedded: bool
    size: int
    segments: tuple[Segment, ...]
    references: tuple[str, ...] = ()
    is_weights_file: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        view: memoryview,
        forget: Forget | None = None,
        *,
        embedded: bool = False,
    ) -> Self:
        """Return the entry of a payload, computed from its bytes."""
        blocks = [
            Segment(start, min(BLOCK, len(view) - start), "")
            for start in range(0, len(view), BLOCK)
        ]
        segments = [
            block._replace(digest=compute_digest(view, block, forget))
            for block in blocks
        ]
        return cls(
            name=name, embedded=embedded, size=len(view), segments=tuple(segments)
        )

    @classmethod
    def of_file(cls, name: str, file: FileIO, expected: str = "") -> Self:
        """Return the entry of an open file as one segment.

        A file is not read if this machine has a receipt for it and the expected digest
        (hex). Else it goes through a small buffer, not a mapping: truncating it ends no
        process.
        """
        status = os.fstat(file.fileno())
        begun = time.time_ns()
        segment = Segment(0, status.st_size, expected)
        entry = cls(name=name, embedded=False, size=segment.length, segments=(segment,))
        if expected and is_noted(make_file_receipt(status, entry.root)):
            return entry

        segment = segment._replace(
            digest=hashlib.file_digest(file, "sha256").hexdigest()
        )
        entry = cls(name=name, embedded=False, size=segment.length, segments=(segment,))
        note(_make_receipts_after(status, file.fileno(), entry.root, begun))
        return entry

    @cached_property
    def root(self) -> str:
        """One digest (hex) over the list of segments."""
        sha = hashlib.sha256()
        for segment in self.segments:
            sha.update(f"{segment.offset} {segment.length} {segment.digest}\n".encode())
        return sha.hexdigest()

    def check_head(self, view: memoryview) -> None:
        """Check the size, the first segment and some blocks, which finds truncated and
        swapped payloads.

        The first segment does where a payload has a header of its own. For formats
        without one, a few blocks spread over the payload are checked too. Weights are
        not read, unless one is the first segment of a payload.

        Raises:
            ReplacedBinaryError: they differ.
        """
        self.check_size(view)

        # A weight without elements is a segment of no bytes, which proves nothing.
        filled = [s for s in self.segments if s.length]
        first = [] if self.is_weights_file else filled[:1]
        blocks = [s for s in filled[len(first) :] if not s.is_weight]
        step = max(1, -(-len(blocks) // (_BLOCKS_CHECKED - 1)))

        # From the end, so that the last block is always among them.
        for segment in (*first, *blocks[::-step]):
            if compute_digest(view, segment) != segment.digest:
                raise self.mismatch_error(segment)

    def check_whole(self, view: memoryview, forget: Forget | None = None) -> None:
        """Check the size and every segment, several at once.

        Args:
            view: the payload.
            forget: called with offset and length of bytes that need not stay in memory.

        Raises:
            ReplacedBinaryError: they differ.
        """
        self.check_size(view)
        if (segment := self.find_damage(view, forget)) is not None:
            raise self.mismatch_error(segment)

    def find_damage(
        self, view: memoryview, forget: Forget | None = None
    ) -> Segment | None:
        """Return the first segment that differs, None for none; see `check_whole`."""

        def find_first(batch: Sequence[Segment]) -> Segment | None:
            differing = (
                s for s in batch if compute_digest(view, s, forget) != s.digest
            )
            return next(differing, None)

        batches = list(_group_segments(self.segments))
        if len(batches) <= 1:
            return next(map(find_first, batches), None)
        # Imported where there is something to share: that takes milliseconds.
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(
            max_workers=os.cpu_count(), thread_name_prefix="epctx-digest"
        )
        try:
            return next(filter(None, pool.map(find_first, batches)), None)
        finally:
            pool.shutdown(cancel_futures=True)

    def check_size(self, view: memoryview) -> None:
        """Raise ReplacedBinaryError if a payload has another size."""
        if len(view) != self.size:
            raise self._make_error(f"it has {len(view):,} bytes, not {self.size:,}")

    def mismatch_error(self, segment: Segment) -> ReplacedBinaryError:
        """Return the error for a range that is another one."""
        end = segment.offset + segment.length
        return self._make_error(
            f"its bytes {segment.offset:,} to {end:,} have another digest"
        )

    def _make_error(self, difference: str) -> ReplacedBinaryError:
        role = "weights file" if self.is_weights_file else "context binary"
        return ReplacedBinaryError(
            f"the {role} {self.name!r} is not the one that the model was written with: "
            f"{difference}.",
            hint=_OTHER_FILE,
        )


def get_view(content: Content) -> memoryview:
    """Return all bytes of a content."""
    return content.view if isinstance(content, MappedFile) else content


@contextmanager
def blame_file(
    *, path: str | None, node: str | None = None, ep: str | None = None
) -> Iterator[None]:
    """Complete an error about a file that is another one, which the block raises."""
    try:
        yield
    except ReplacedBinaryError as error:
        error.path = path
        error.node = node
        error.ep = ep
        raise


def find_matching(
    content: _T, copies: Iterable[_T], check: Callable[[_T], object]
) -> _T:
    """Return a content that passes a check, or else the first of its copies that does.

    Args:
        content: lies where it belongs.
        copies: those that an unfinished publication has.
        check: raises if one is another one, and closes it then.

    Raises:
        ReplacedBinaryError: that of the content, if no copy matches either.
    """
    try:
        check(content)
    except ReplacedBinaryError:
        for copy in copies:
            with suppress(OSError, InvalidGraph):
                check(copy)
                return copy
        raise
    return content


class DigestChecks:
    """Context manager: the checks of one load, as far as the host wants them.

    What a machine sees for the first time and is of some size is digested on a thread,
    concurrently with whatever the EPs do with it. If the load ends in another error,
    damage that is found goes before it: it is the likelier cause.

    Args:
        cancellation: of the host; None if nobody waits with `finish`, so that all is
            checked at once.
    """

    def __init__(self, cancellation: CancellationFlag | None = None) -> None:
        self._cancellation = cancellation
        self._stopped = threading.Event()
        # The first damaged segment, later; and what is to be done with it.
        self._under_way: list[
            tuple[Future[Segment | None], Callable[[Segment | None], list[str]]]
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

    def check(
        self,
        entry: PayloadEntry,
        content: Content,
        mode: Verification,
        *,
        may_wait: Callable[[], bool] = lambda: False,
        receipt: str = "",
        blame: Blame = nullcontext,
    ) -> bool:
        """Check a content as far as a mode says; return whether every byte of it is
        known to be right.

        Args:
            entry: its size, ranges and digests.
            content: the bytes, which the load holds.
            mode: how far; ONCE skips what this machine has a receipt for, and leaves
                one.
            may_wait: whether the load may use it before it is checked, asked in mode
                ONCE: it is then digested on a thread, and `finish` raises the error.
            receipt: that of bytes in memory, left if all checks of the load succeed;
                a file has its own.
            blame: makes the block in which an error is completed; see `blame_file`.

        Raises:
            ReplacedBinaryError: it is another one.
        """
        view = get_view(content)
        file = content if isinstance(content, MappedFile) else None
        if mode is Verification.HEAD:
            with blame():
                entry.check_head(view)
            return False

        if mode is not Verification.ONCE:
            with blame():
                entry.check_whole(view, None if file is None else file.forget)
            return True

        name = receipt if file is None else make_file_receipt(file.status, entry.root)
        if name and is_noted(name):
            return True
        is_concurrent = (
            self._cancellation is not None
            and entry.size >= CONCURRENT_FROM
            and not self._stopped.is_set()
            and may_wait()
        )
        with blame():
            (entry.check_head if is_concurrent else entry.check_size)(view)
        self._check_once(entry, view, file, blame, is_concurrent=is_concurrent)
        if file is None and name and self._cancellation is not None:
            self._receipts.add(name)
        return not is_concurrent

    def _check_once(
        self,
        entry: PayloadEntry,
        view: memoryview,
        file: MappedFile | None,
        blame: Blame,
        *,
        is_concurrent: bool,
    ) -> None:
        """Check every byte, now or on a thread, and leave the receipt of a file."""
        begun = time.time_ns()

        def forget(offset: int, length: int) -> None:
            if is_concurrent and self._stopped.is_set():
                from concurrent.futures import CancelledError

                raise CancelledError
            if file is not None:
                file.forget(offset, length)

        # The error is made where it is raised: one of a thread would hold the frames of
        # the check, and with them the content.
        def settle(segment: Segment | None) -> list[str]:
            if segment is not None:
                with blame():
                    raise entry.mismatch_error(segment)
            if file is None:
                return []
            return _make_receipts_after(file.status, file.descriptor, entry.root, begun)

        find = partial(entry.find_damage, view, forget)
        if not is_concurrent:
            note(settle(find()))
            return
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(
                max_workers=1, thread_name_prefix="epctx-check"
            )
        self._under_way.append((self._pool.submit(find), settle))

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
        for damage, _ in checks:
            while not damage.done():
                if self._cancellation is not None:
                    self._cancellation.raise_if_requested()
                with suppress(TimeoutError):
                    damage.exception(_POLLED_EVERY)

        # At the end, as links that were made meanwhile belong to a file's state.
        for damage, settle in checks:
            receipts.update(settle(damage.result()))
        note(receipts)


IN_PLACE = DigestChecks()
"""Checks for reading outside of a load, where nothing is checked concurrently."""


def _make_receipts_after(
    before: os.stat_result, descriptor: int, digest: str, begun: int
) -> list[str]:
    """Return the receipt of a file that was right, if every change since the check
    began would show in its times.

    A file that was written to in the same tick of the clock looks as before. So one
    that is as young gets none, and the next load checks it again. A link made
    meanwhile, as for an EP that wants a file, changes the ctime, too.
    """
    after = os.fstat(descriptor)
    untouched = (
        before.st_ctime_ns == after.st_ctime_ns or before.st_nlink != after.st_nlink
    )
    if (
        untouched
        and is_same_content(before, after)
        # Whoever restores a file's mtime leaves a recent ctime, which links made
        # meanwhile hide.
        and max(before.st_mtime_ns, before.st_ctime_ns) < begun - SETTLED_NS
    ):
        return [make_file_receipt(after, digest)]
    return []
