"""Memory that a child shares with its host: a first page with what the child is doing,
then the arrays of a run.

What the child is doing is there when it has crashed, and costs no message. The child
maps the memory; the host reads and writes it like a file, so that nothing that a child
does to it can end the host.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from epctx_core.ext import parse_json

_PAGE = 4096
_ALIGNMENT = 64
_STATE = struct.Struct("<QI")
"""Number of changes, and the length of the JSON that follows."""
_MOST_ENTRIES = 64


def place(sizes: Sequence[int], start: int = 0) -> tuple[list[int], int]:
    """Return aligned offsets for so many bytes each, and the end.

    Args:
        sizes: in bytes.
        start: first offset that is free.
    """
    offsets = []
    for size in sizes:
        start += -start % _ALIGNMENT
        offsets.append(start)
        start += size
    return offsets, start


class HostMemory:
    """Host's side of new shared memory.

    Attributes:
        descriptor: that of the memory, which the child inherits.

    Args:
        limit: most bytes of the results of one run; None for any.

    Raises:
        OSError: the system provides none.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("epctx")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        os.ftruncate(self.descriptor, _PAGE)

    def close(self) -> None:
        """Close the memory, which lives as long as the child."""
        os.close(self.descriptor)

    def read_state(self) -> tuple[int, Mapping[str, Any]]:
        """Return the number of changes, and what the child does as far as it can be
        read.
        """
        page = os.pread(self.descriptor, _PAGE, 0).ljust(_PAGE, b"\0")
        changes, length = _STATE.unpack(page[: _STATE.size])
        try:
            state = parse_json(page[_STATE.size :][:length], _MOST_ENTRIES)
        except (ValueError, RecursionError):
            # Not yet written, half written, or overwritten.
            state = {}
        return changes, state if type(state) is dict else {}

    def write(self, buffers: Sequence[memoryview]) -> None:
        """Write what the child gets with an order, as `place` places it."""
        offsets, _ = place([buffer.nbytes for buffer in buffers])
        for offset, buffer in zip(offsets, buffers, strict=True):
            left = buffer.cast("B")
            while left:
                count = os.pwrite(self.descriptor, left, _PAGE + offset)
                left = left[count:]
                offset += count  # noqa: PLW2901 - of what is left

    def make_reader(self) -> Callable[[int, np.ndarray], None]:
        """Return a function that reads an array from an offset.

        It raises ValueError for what is not there. All arrays together have as many
        bytes as the system gave the memory: what was never written costs a child
        nothing, and arrays may lie over each other.
        """
        left = os.fstat(self.descriptor).st_blocks * 512
        if self._limit is not None:
            left = min(left, self._limit)

        def read_into(offset: int, array: np.ndarray) -> None:
            nonlocal left
            left -= array.nbytes
            if left < 0:
                raise ValueError(
                    f"{array.nbytes:,} bytes, more than allowed or never written"
                )
            rest = array.reshape(-1).view(np.uint8).data
            while rest:
                count = os.preadv(self.descriptor, [rest], _PAGE + offset)
                if not count:
                    raise ValueError(f"{rest.nbytes:,} bytes are missing")
                rest = rest[count:]
                offset += count

        return read_into


class ChildMemory:
    """Child's side of shared memory.

    Attributes:
        used: end of what is there.

    Args:
        descriptor: see `HostMemory`.
    """

    def __init__(self, descriptor: int) -> None:
        self.used = 0
        self._descriptor = descriptor
        self._page = mmap.mmap(descriptor, _PAGE)
        self._view = memoryview(b"")
        self._changes = 0

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Say what this process does from now on, in a few plain values."""
        text = json.dumps(state).encode()[: _PAGE - _STATE.size]
        self._changes += 1
        self._page[_STATE.size : _STATE.size + len(text)] = text
        self._page[: _STATE.size] = _STATE.pack(self._changes, len(text))

    def receive(self, sizes: Sequence[int]) -> list[memoryview]:
        """Return views of what the host has written, which the next run overwrites."""
        self.used = 0
        return [view.toreadonly() for _, view in self.make_room(sizes)]

    def make_room(self, sizes: Sequence[int]) -> list[tuple[int, memoryview]]:
        """Return offsets and views of so many bytes each, behind what is there.

        Raises:
            OSError: the system has no such memory.
        """
        offsets, self.used = place(sizes, self.used)
        if self.used > len(self._view):
            size = _PAGE + self.used
            if size > os.fstat(self._descriptor).st_size:
                os.ftruncate(self._descriptor, size)
            self._view = memoryview(mmap.mmap(self._descriptor, size))[_PAGE:]
        return [
            (offset, self._view[offset : offset + size])
            for offset, size in zip(offsets, sizes, strict=True)
        ]
