"""Mapped files, bulk copies and digests: bytes move without passing through the heap.

One of the two modules with calls that only POSIX systems have; each has a portable way
beside it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import mmap
import os
import stat
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from epctx_core.errors import InvalidArgument, InvalidGraph, NoSuchFile

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

CHUNK = 8 << 20
"""Bytes handled at once, and so the resident memory of one pass over a large file."""
TOGETHER_NS = 200_000
"""Nanoseconds within which two renames in a row are over, unless their process is
interrupted.
"""
FOLLOWING_NS = 50_000_000
"""Nanoseconds after which an interrupted process has renamed the next file."""
_FORGOTTEN_FROM = 1 << 16
"""Bytes from which releasing pages that were read once is worth a call."""

PathInput: TypeAlias = "str | os.PathLike[str]"
"""Path as a host gives it."""
ModelInput: TypeAlias = "PathInput | bytes"
"""Path or bytes of a model."""


READ_ONLY = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags for `os.open` of a file to read: its bytes as they are, and a named pipe makes
nobody wait for a writer. That no other program inherits it is Python's own default.
"""


@contextmanager
def open_model_file(model: object) -> Iterator[tuple[io.FileIO, Path]]:
    """Open the model file that a host named; give the file and its path.

    Raises:
        InvalidArgument: not a path, not a regular file, or not readable.
        NoSuchFile: there is no such file.
    """
    if not isinstance(model, (str, os.PathLike)) or not os.fspath(model):
        raise InvalidArgument(f"a model is a path or bytes, not {model!r:.80}.")
    path = Path(model)
    try:
        # Checked before, as opening a device may have effects; and after, as the file
        # may have been replaced.
        _check_regular(path, path.stat())
        with io.FileIO(os.open(path, READ_ONLY), "rb") as file:
            _check_regular(path, os.fstat(file.fileno()))
            yield file, path
    except InvalidArgument:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile(f"there is no model file {str(path)!r}.", path=path) from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"the model file {str(path)!r} cannot be read: {error}.",
            path=path,
            hint="Check its permissions and the disk, then try again.",
        ) from error


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        names = {
            stat.S_IFDIR: "a folder",
            stat.S_IFIFO: "a pipe",
            stat.S_IFSOCK: "a socket",
        }
        what = names.get(stat.S_IFMT(status.st_mode), "a device")
        raise InvalidArgument(f"{str(path)!r} is {what}, not a model file.", path=path)


SMALL_FILE = 64 << 20
"""Bytes that a file of settings, records or results may have."""


def read_small_file(path: PathInput, limit: int = SMALL_FILE) -> bytes:
    """Return the content of a file that anybody may have written, such as JSON.

    A named pipe makes nobody wait, and a device or a file with holes takes no memory.

    Args:
        path: of the file.
        limit: bytes that it may have.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger.
    """
    # Before, as opening a device may have effects; after, as it may be replaced.
    status = Path(path).stat()
    if stat.S_ISREG(status.st_mode):
        with io.FileIO(os.open(path, READ_ONLY), "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
                return file.read(status.st_size)
    if stat.S_ISREG(status.st_mode):
        problem = f"it has {status.st_size:,} bytes, and the limit is {limit:,}"
        raise OSError(errno.EFBIG, problem, str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


class OpenedFile(io.FileIO):
    """A file opened by descriptor that still knows its path."""

    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(descriptor, "rb")
        self.path = path


FileIdentity: TypeAlias = "tuple[int, int, int, int]"
"""Device, inode, size and time of change: they identify one state of one file."""


def identify_file(status: os.stat_result) -> FileIdentity:
    """Return the identity of the file that a status is of."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class MappedFile:
    """One read-only mapping of a whole file; views into it keep it alive.

    Attributes:
        path: where the file lay when it was opened; another one may lie there now.
        descriptor: of the mapped file, open as long as this object lives.
        status: its `os.stat_result` at that time.
        size: length in bytes.
        view: the whole file.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self.path = path
        self.descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        self.status = os.fstat(self.descriptor)
        self.size = self.status.st_size
        # An empty file cannot be mapped.
        self._map = (
            mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if self.size else None
        )
        self.view = memoryview(self._map) if self._map is not None else memoryview(b"")

    @property
    def identity(self) -> FileIdentity:
        """Identity of the file in the state in which it was mapped."""
        return identify_file(self.status)

    def check_unchanged(self) -> None:
        """Check that the file was not written to or truncated since it was mapped.

        The bytes copied would differ from those digested, and reading beyond the end
        would kill the process.

        Raises:
            InvalidGraph: size or time of change differ.
        """
        if identify_file(os.fstat(self.descriptor)) != self.identity:
            raise InvalidGraph(
                f"the file {self.path!r} was written to while it was in use.",
                path=self.path,
                hint="Let whatever writes it finish, then start again.",
            )

    def is_at(self, path: Path) -> bool:
        """Return whether a path leads to this file, not to a replacement."""
        try:
            return os.path.samestat(path.stat(), self.status)
        except OSError:
            return False

    def forget(self, offset: int, length: int) -> None:
        """Release the resident pages of a range that was read once.

        Pages read through a mapping count as this process's memory until then.
        """
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            start = offset - offset % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, length + offset - start)


class OpenedFiles:
    """Files that a model is read from: its own, and those that it names.

    Each is compared with the one that its name leads to later. While all are the same,
    they were all in place at one moment, the one after the last was opened: a model and
    the files of another one, published meanwhile, cannot be mixed.

    Attributes:
        model: the model's own file, open while the model is read; None for a model from
            bytes.
        locations: the real paths of files of weights, each with the name that the model
            has for it.
    """

    def __init__(self) -> None:
        self.model: OpenedFile | None = None
        self.locations: dict[str, str] = {}
        self._own: tuple[FileIdentity, Path] | None = None
        self._named: list[tuple[FileIdentity, Callable[[], os.stat_result | None]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        if self.model is not None:
            self.model.close()

    def set_model(self, file: io.FileIO, path: Path) -> None:
        """Set the model's own file, as it was opened under a path."""
        self.model = OpenedFile(os.dup(file.fileno()), str(path))
        self._own = identify_file(os.fstat(file.fileno())), path

    def add(
        self, opened: os.stat_result, look_up: Callable[[], os.stat_result | None]
    ) -> None:
        """Add a file that the model names.

        Args:
            opened: its status.
            look_up: returns the status of the file that the name leads to at the time
                of the call, None without one.
        """
        self._named.append((identify_file(opened), look_up))

    def find_replaced(self) -> bool:
        """Return whether the model's name, or one in it, leads to another file now."""
        return self._find_current() is None

    def settle(self) -> bool:
        """Return whether all files were in place at one moment; those that were need
        not be compared again.

        Files that a publisher renames one after the other are a mixture on disk for a
        moment. One that came much later than another, and just now, may be half of
        that: it is compared again once the rest had time to follow.
        """
        # A model alone is of one moment anyway.
        if not self._named:
            return True
        current = self._find_current()
        if current is None:
            return False
        changes = [status.st_ctime_ns for status in current]
        age = time.time_ns() - max(changes)
        if max(changes) - min(changes) > TOGETHER_NS and 0 <= age < FOLLOWING_NS:
            time.sleep((FOLLOWING_NS - age) / 1e9)
            if self._find_current() is None:
                return False
        self._named.clear()
        return True

    def _find_current(self) -> list[os.stat_result] | None:
        """Return the statuses of all files; None if one is no longer where it was."""
        statuses: list[tuple[FileIdentity, os.stat_result | None]] = [
            (opened, look_up()) for opened, look_up in self._named
        ]
        if self._own is not None:
            opened, path = self._own
            try:
                statuses.append((opened, path.stat()))
            except OSError:
                return None
        current = [
            status
            for opened, status in statuses
            if status is not None and identify_file(status) == opened
        ]
        return current if len(current) == len(statuses) else None


def read_chunks(
    view: memoryview, mapped: MappedFile | None = None, offset: int = 0
) -> Iterator[memoryview]:
    """Yield bytes in chunks of 8 MiB; of a mapping, one chunk is resident at a time.

    Args:
        view: the bytes.
        mapped: the file they lie in, None for bytes in memory.
        offset: where they begin in it.

    Raises:
        InvalidGraph: the file was written to since it was mapped.
    """
    if mapped is not None:
        mapped.check_unchanged()
    for start in range(0, len(view), CHUNK):
        chunk = view[start : start + CHUNK]
        yield chunk
        if mapped is not None and len(view) >= _FORGOTTEN_FROM:
            mapped.forget(offset + start, len(chunk))
    if mapped is not None:
        mapped.check_unchanged()


def copy_range(
    source: int, source_offset: int, target: int, target_offset: int, length: int
) -> None:
    """Copy bytes from one open file into another, in the kernel where it can.

    Write-back of the target starts with each chunk, so that the final fsync has little
    to do.

    Raises:
        OSError: the source ends early, or the target cannot be written.
    """
    done = 0
    while done < length:
        step = min(CHUNK, length - done)
        copied = _copy_chunk(
            source, source_offset + done, target, target_offset + done, step
        )
        if copied == 0:
            raise OSError(f"the source ended {length - done:,} bytes early")
        start_writing_back(target, target_offset + done, copied)
        done += copied


def _copy_chunk(
    source: int, source_offset: int, target: int, target_offset: int, length: int
) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(
                source, target, length, source_offset, target_offset
            )
        except OSError:
            # Not between these two file systems; the portable way below serves all.
            pass
    if hasattr(os, "pread"):
        # The position of a descriptor is shared by all threads.
        data = os.pread(source, length, source_offset)
    else:
        os.lseek(source, source_offset, os.SEEK_SET)
        data = os.read(source, length)
    os.lseek(target, target_offset, os.SEEK_SET)
    return os.write(target, data)


def start_writing_back(target: int, offset: int, length: int) -> None:
    """Start writing a range to disk without waiting; on Linux this is what DONTNEED
    does to dirty pages.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(target, offset, length, os.POSIX_FADV_DONTNEED)


Chunks: TypeAlias = Callable[[], Iterable[memoryview]]
"""Function that reads the bytes from their start in chunks."""


class Digest:
    """SHA-256 (hex) of bytes, computed on first use or ahead by a thread.

    Attributes:
        known: the digest; empty until it is computed or set.
    """

    __slots__ = ("_ahead", "known")

    def __init__(self) -> None:
        self.known = ""
        self._ahead: Future[str] | None = None

    def of(self, chunks: Chunks) -> str:
        """Return the digest; wait for a thread that is computing it, or compute it
        here.
        """
        ahead = self._ahead
        if not self.known and ahead is not None and not ahead.cancel():
            self.known = ahead.result()
        if not self.known:
            self.known = _compute_digest(chunks)
        self._ahead = None
        return self.known

    def begin(
        self, chunks: Chunks, pool: Executor, stopped: Callable[[], bool]
    ) -> None:
        """Have a pool compute the digest, unless it is known or already begun."""
        if not self.known and self._ahead is None:
            self._ahead = pool.submit(_compute_digest, chunks, stopped)


def _compute_digest(chunks: Chunks, stopped: Callable[[], bool] = lambda: False) -> str:
    """Return the digest, or an empty text if stopped before the end."""
    sha = hashlib.sha256()
    for chunk in chunks():
        if stopped():
            return ""
        sha.update(chunk)
    return sha.hexdigest()


ExtentDigests: TypeAlias = "dict[tuple[FileIdentity, int, int], Digest]"
"""Digests by location of the bytes: identity of the open file, offset and length."""


known_digests: ContextVar[ExtentDigests] = ContextVar("epctx_digests")
"""Digests shared by the steps of one call of a host."""
