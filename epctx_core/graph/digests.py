"""Digests of many weights: each is made once, by whoever asks for it or by a thread ahead of that.

Models may make those of a file that they have in common once between them (`ExtentDigests`).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from concurrent.futures import Future

    from epctx_core.graph.mapping import FileIdentity
    from epctx_core.graph.weights import Weight

PARALLEL_FROM = 1 << 20
"""Bytes from which a weight's digest is worth a thread."""

BESIDE_FROM = 16 << 20
"""Bytes from which the digest of a model's file is worth a thread."""

Chunks: TypeAlias = Callable[[], Iterable[memoryview]]
"""Reads the bytes from their start, piece by piece."""


class Digest:
    """The SHA-256 (hex) of bytes that whoever asks can read.

    Args:
        known: the digest, if somebody made it already.
    """

    __slots__ = ("_ahead", "_value")

    def __init__(self, known: str = "") -> None:
        self._value = known
        self._ahead: Future[str] | None = None

    @property
    def known(self) -> str:
        """The digest if it was made already, or else nothing."""
        return self._value

    def of(self, chunks: Chunks) -> str:
        """Return the digest; if a thread is making it, wait for that one, and else make it here."""
        ahead = self._ahead
        if not self._value and ahead is not None and not ahead.cancel():
            self._value = ahead.result()
        if not self._value:
            self._value = _hexdigest(chunks)
        self._ahead = None
        return self._value

    def begin(self, chunks: Chunks, pool: Executor, stopped: Callable[[], bool]) -> None:
        """Have a pool make the digest, unless it is there or on its way."""
        if not self._value and self._ahead is None:
            self._ahead = pool.submit(_hexdigest, chunks, stopped)


class ExtentDigests:
    """Digests by the place of the bytes, for models whose weights lie in the same files.

    A place is a file in one state, as its open descriptor says, with offset and length. Keeps no bytes mapped.
    """

    def __init__(self) -> None:
        self._digests: dict[tuple[FileIdentity, int, int], Digest] = {}

    def share(self, weights: Iterable[Weight]) -> None:
        """Give weights the digests of the same places among those that were here before."""
        for weight in weights:
            if weight.mapping is not None:
                file, offset = weight.mapping
                place = file.identity, offset, weight.nbytes
                weight.lazy_digest = self._digests.setdefault(place, weight.lazy_digest)


def _hexdigest(chunks: Chunks, stopped: Callable[[], bool] = lambda: False) -> str:
    """Return the digest, or nothing if it was stopped before the end."""
    sha = hashlib.sha256()
    for chunk in chunks():
        if stopped():
            return ""
        sha.update(chunk)
    return sha.hexdigest()


@contextmanager
def digests_ahead(weights: Iterable[Weight]) -> Iterator[None]:
    """Make the digests of large weights in this order, several at once, while the block runs.

    Hashing gives up the interpreter's lock, so weights are hashed while earlier ones are written. When the
    block ends, also by an error, the threads stop at their next piece and are waited for.
    """
    large = [weight for weight in weights if weight.nbytes >= PARALLEL_FROM]
    if not large:
        yield
        return
    with _threads(os.cpu_count()) as begin:
        for weight in large:
            begin(weight.lazy_digest, weight.chunks)
        yield


@contextmanager
def digest_beside(data: bytes) -> Iterator[Callable[[], str]]:
    """Have a thread make the digest of a model's bytes while the block works on them; give what returns it."""
    digest = Digest()

    def chunks() -> Iterator[memoryview]:
        view = memoryview(data)
        return (view[start : start + PARALLEL_FROM] for start in range(0, len(view), PARALLEL_FROM))

    if len(data) < BESIDE_FROM:
        yield lambda: digest.of(chunks)
        return
    with _threads(1) as begin:
        begin(digest, chunks)
        yield lambda: digest.of(chunks)


@contextmanager
def _threads(count: int | None) -> Iterator[Callable[[Digest, Chunks], None]]:
    """Give what begins a digest. At the end the threads stop at their next piece and are waited for."""
    stopped = threading.Event()
    pool = ThreadPoolExecutor(max_workers=count, thread_name_prefix="epctx-digest")
    try:
        yield lambda digest, chunks: digest.begin(chunks, pool, stopped.is_set)
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
