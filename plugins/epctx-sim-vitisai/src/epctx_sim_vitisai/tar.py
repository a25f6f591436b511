"""Tar archives between memory and memory: no name out of one ever reaches the file
system.

Reads the one form that it writes: regular files in USTAR headers, in bounded number,
with nothing between or behind them. So every change of a byte outside the members'
content is noticed.
"""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BLOCK = 512
END = bytes(2 * BLOCK)
MAX_MEMBERS = 16
_LONGEST_NAME = 100
_MAGIC_AT = 257
_MAGIC = b"ustar"
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.DIRTYPE: "a directory",
    tarfile.FIFOTYPE: "a FIFO",
}


class BadTarError(ValueError):
    """The archive is not as this module writes one; the text completes "the payload
    a.bin ".
    """


def header(name: str, size: int) -> bytes:
    """Return the block before a member's content."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def padding(size: int) -> bytes:
    """Return the zero bytes behind a member's content."""
    return bytes(-size % BLOCK)


def looks_like_tar(view: memoryview) -> bool:
    """Return whether the bytes begin as a tar archive does."""
    return bytes(view[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)]) == _MAGIC


def first_name(view: memoryview) -> str:
    """Return the name of the first member, whatever it is."""
    return bytes(view[:_LONGEST_NAME]).split(b"\0", 1)[0].decode("ascii", "replace")


def members(view: memoryview) -> Mapping[str, memoryview]:
    """Return the content of each member by name, as views over the archive.

    Raises:
        BadTarError: truncated, altered, or holding anything but regular files with
            harmless names.
    """
    views: dict[str, memoryview] = {}
    offset = 0
    while (block := bytes(view[offset : offset + BLOCK])) != bytes(BLOCK):
        if len(views) == MAX_MEMBERS:
            raise BadTarError(f"holds more than {MAX_MEMBERS} members")
        name, size = _read_header(block, offset)
        if name in views:
            raise BadTarError(f"holds two members called {name!r}")
        start = offset + BLOCK
        offset = offset + BLOCK + size + len(padding(size))
        if offset > len(view):
            raise BadTarError(
                f"is truncated: its member {name!r} of {size} bytes does not end in it"
            )
        if any(view[start + size : offset]):
            raise BadTarError(
                f"is damaged: what fills the last block of {name!r} is not zero"
            )
        views[name] = view[start : start + size]
    if bytes(view[offset : offset + len(END) + 1]) != END:
        raise BadTarError(
            "does not end with two blocks of zeros: it is truncated, or something "
            "follows them"
        )
    return views


def _read_header(block: bytes, offset: int) -> tuple[str, int]:
    if len(block) < BLOCK:
        raise BadTarError(
            f"is truncated: it ends at byte {offset + len(block)}, in the middle of a "
            "header"
        )
    try:
        info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise BadTarError(
            f"is damaged: at byte {offset} stands no tar header ({error})"
        ) from error
    name = info.name
    if info.type != tarfile.REGTYPE:
        raise BadTarError(
            f"holds {_KINDS.get(info.type, 'something other than a file')} called "
            f"{name!r:.100}"
        )
    if (
        name.startswith(("/", "\\"))
        or ":" in name
        or ".." in name.replace("\\", "/").split("/")
    ):
        raise BadTarError(
            f"holds a member with the name {name!r:.100}, which leads out of it"
        )
    try:
        same = header(name, info.size) == block
    except ValueError as error:
        raise BadTarError(
            f"is damaged: the header at byte {offset} cannot be ({error})"
        ) from error
    if not same:
        raise BadTarError(
            f"is damaged: the header of {name!r:.100} says more than a name and a size"
        )
    return name, info.size
