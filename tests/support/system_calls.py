"""Every call of the system that this process makes through Python, heard before it is
made. Knows no epctx.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import mmap
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WRITING = (
    "open", "write", "pwrite", "fsync", "fdatasync", "rename", "replace", "link",
    "symlink", "mkdir", "unlink", "remove", "rmdir", "truncate", "ftruncate",
    "copy_file_range", "sendfile", "posix_fallocate", "chmod", "utime",
)  # fmt: skip
READING = (
    "stat",
    "lstat",
    "fstat",
    "scandir",
    "listdir",
    "readlink",
    "pread",
    "read",
    "dup",
)
CHANGING = ("replace", "rename", "link", "mkdir", "unlink", "rmdir", "fsync", "open")
"""Calls of `os` without which nothing changes on a disk but the content of open
files.
"""
_MODULES = (
    (os, (*WRITING, *READING)),
    (fcntl, ("flock",)),
    (mmap, ("mmap",)),
    (io, ("open",)),
    (builtins, ("open",)),
)


@contextmanager
def heard(before: Callable[[str], None]) -> Iterator[None]:
    """Have `before(name)` run before each call, such as `os.fsync`; what it raises is
    what the call raises.
    """
    originals: list[tuple[Any, str, Any]] = []

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            before(name)
            return original(*args, **keywords)

        return call

    for module, names in _MODULES:
        for name in names:
            if hasattr(module, name):
                original = getattr(module, name)
                originals.append((module, name, original))
                setattr(module, name, wrapped(f"{module.__name__}.{name}", original))
    try:
        yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


@contextmanager
def intercepted(
    before: Callable[[str, tuple[object, ...]], None], calls: tuple[str, ...]
) -> Iterator[None]:
    """Have `before(name, arguments)` run before each of these calls of `os`."""
    originals = {name: getattr(os, name) for name in calls}

    def wrapped(name: str) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            before(name, args)
            return originals[name](*args, **kwargs)

        return call

    for name in calls:
        setattr(os, name, wrapped(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


class Failing:
    """Refuses the n-th call with an error of the system, or all from the n-th; n = 0
    only counts.

    Attributes:
        calls: the names of the calls so far.
    """

    def __init__(self, n: int, code: int, *, for_ever: bool = False) -> None:
        self._n, self._code, self._for_ever = n, code, for_ever
        self.calls: list[str] = []

    def __call__(self, name: str) -> None:
        """Count a call, and refuse it if it is one of those to refuse."""
        self.calls.append(name)
        number = len(self.calls)
        if number == self._n or (self._for_ever and 0 < self._n < number):
            raise OSError(self._code, os.strerror(self._code))
