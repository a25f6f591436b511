"""Keeps standard output for the one JSON object, whatever plugins and their libraries print."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

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
    with suppress(OSError, TypeError, AttributeError):  # Windows has no such handle
        ctypes.CDLL(None).fflush(None)
