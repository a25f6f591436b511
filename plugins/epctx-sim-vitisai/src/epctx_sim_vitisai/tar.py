"""Tar archives between memory and memory: no name out of one ever reaches the file
system.

Reads the one form that it writes: regular files of known names in USTAR headers, with
nothing between or behind them. So every change of a byte outside the members' content
is noticed, and links, folders and other names are refused.
"""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BLOCK = 512
END = bytes(2 * BLOCK)
_LONGEST_NAME = 100
_MAGIC_AT = 257
_MAGIC = b"ustar"


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


def members(view: memoryview, names: Sequence[str]) -> Mapping[str, memoryview]:
    """Return the content of each member by name, as views over the archive.

    Args:
        view: the archive.
        names: all of its members, in order.

    Raises:
        BadTarError: truncated, altered, or holding anything but regular files of these
            names.
    """
    views: dict[str, memoryview] = {}
    offset = 0
    for name in names:
        start = offset + BLOCK
        size = _read_size(bytes(view[offset:start]), name, offset)
        offset = start + size + len(padding(size))
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
            f"does not end with two blocks of zeros behind {' and '.join(names)}: it "
            "is truncated, or something follows them"
        )
    return views


def _read_size(block: bytes, name: str, offset: int) -> int:
    """Return the size in a header that is exactly the one written for a member."""
    try:
        size = tarfile.TarInfo.frombuf(block, "ascii", "strict").size
        is_own = header(name, size) == block
    except (tarfile.HeaderError, ValueError) as error:
        raise BadTarError(
            f"is truncated or damaged: at byte {offset} stands no tar header ({error})"
        ) from error
    if not is_own:
        raise BadTarError(
            f"is damaged: the header at byte {offset} is not that of a file {name!r}, "
            "with its size and nothing else"
        )
    return size
