"""Standard streams: write to them, and reserve standard output for the JSON object.

A closed pipe is not an error; any other failure is a typed one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO


class UnwritableError(Exception):
    """A stream cannot be written; the text is the reason."""


def send(stream: TextIO | None, words: str) -> None:
    """Write and flush; characters that the stream's encoding lacks are written as
    escapes.

    Raises:
        UnwritableError: it cannot be written, or was closed before this process began.
    """
    if stream is None:
        raise UnwritableError("it is closed")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with failures_of(stream):
        stream.write(words.encode(encoding, "backslashreplace").decode(encoding))
    flush(stream)


def flush(stream: TextIO | None) -> None:
    """Flush a stream.

    Raises:
        UnwritableError: it cannot be written.
    """
    if stream is not None:
        # ValueError: it was closed.
        with failures_of(stream), suppress(ValueError):
            stream.flush()


@contextmanager
def failures_of(stream: TextIO) -> Iterator[None]:
    """Raise a failure of a stream in the block as `UnwritableError`, but ignore a
    closed pipe.

    Raises:
        UnwritableError: it cannot be written.
    """
    try:
        yield
    except BrokenPipeError:  # `epctx ... | head`
        _discard(stream)
    except OSError as error:
        _discard(stream)
        raise UnwritableError(error.strerror or str(error)) from error


def _discard(stream: TextIO) -> None:
    """Redirect a stream to the null device: Python flushes again at its end, and would
    report an error.
    """
    with suppress(OSError, ValueError):  # a stream of a caller's own has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


_STDOUT = 1
_STDERR = 2


@contextmanager
def reserved_stdout() -> Iterator[None]:
    """Redirect output in the block to standard error: of Python, native libraries and
    child processes.
    """
    with redirect_stdout(sys.stderr):
        try:
            saved = os.dup(_STDOUT)
        except OSError:  # no such descriptor, so no output either
            yield
            return
        try:
            with suppress(OSError):
                os.dup2(_STDERR, _STDOUT)
            yield
        finally:
            import ctypes

            # The C library's buffers, which are written to a pipe only when the process
            # ends.
            with suppress(
                OSError, TypeError, AttributeError
            ):  # Windows has no such handle
                ctypes.CDLL(None).fflush(None)
            os.dup2(saved, _STDOUT)
            os.close(saved)
