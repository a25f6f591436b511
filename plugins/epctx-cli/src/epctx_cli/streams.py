"""The standard streams: writing to them, and keeping standard output for the one JSON object.

A reader that went away is no error, and any other failure is a typed one. Knows nothing of what goes out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO


class UnwritableError(Exception):
    """A stream cannot be written; says why."""


def send(stream: TextIO | None, words: str) -> None:
    """Write at once; what the stream's encoding lacks goes out as an escape.

    Raises:
        UnwritableError: nothing can be written, or the stream was closed before this process began.
    """
    if stream is None:
        raise UnwritableError("it is closed")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with failures_of(stream):
        stream.write(words.encode(encoding, "backslashreplace").decode(encoding))
    flush(stream)


def flush(stream: TextIO | None) -> None:
    """See that nothing is left in a buffer.

    Raises:
        UnwritableError: it cannot be written.
    """
    if stream is not None:
        # ValueError: closed by somebody else.
        with failures_of(stream), suppress(ValueError):
            stream.flush()


@contextmanager
def failures_of(stream: TextIO) -> Iterator[None]:
    """Turn what a stream raises in the block into an `UnwritableError`, but let go who has read enough.

    Raises:
        UnwritableError: it cannot be written.
    """
    try:
        yield
    except BrokenPipeError:  # `epctx ... | head`
        _let_go(stream)
    except OSError as error:
        _let_go(stream)
        raise UnwritableError(error.strerror or str(error)) from error


def _let_go(stream: TextIO) -> None:
    """Let a stream end in nothing: Python flushes again at its end, and would complain."""
    with suppress(OSError, ValueError):  # a stream of a caller's own has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


_STDOUT, _STDERR = 1, 2


@contextmanager
def reserved_stdout() -> Iterator[None]:
    """Send to standard error what is printed inside: by Python, by native libraries and by child processes."""
    with redirect_stdout(sys.stderr):
        try:
            saved = os.dup(_STDOUT)
        except OSError:  # no such descriptor, so nobody can print to it
            yield
            return
        try:
            with suppress(OSError):
                os.dup2(_STDERR, _STDOUT)
            yield
        finally:
            _flush_native()
            os.dup2(saved, _STDOUT)
            os.close(saved)


def _flush_native() -> None:
    """Empty the C library's buffers: into a pipe it would write only when the process ends."""
    import ctypes

    with suppress(OSError, TypeError, AttributeError):  # Windows has no such handle
        ctypes.CDLL(None).fflush(None)
