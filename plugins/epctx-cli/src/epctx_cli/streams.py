"""Writing to the standard streams: a reader that went away is no error, and any other failure is a typed one.

Knows streams, and nothing of what goes out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
