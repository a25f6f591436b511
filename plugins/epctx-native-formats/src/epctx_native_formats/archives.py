"""Zip archives of Qualcomm's: DLC files, and context binaries of several SoCs.

onnxruntime-qnn compiles one context model for several SoCs. Its payload is a zip
archive with an entry `htp.cache.<SoC>.<number>` for each of them. The checksums in it
are wrong, so nothing here reads more than its list of entries.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidGraph
from epctx_native_formats.binaries import NativeBinary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_native_formats.binaries import BinaryReader

_MAGIC = b"PK\x03\x04"
_DLC = "dlc.metadata"
"""Entry that each DLC file has, whatever else."""
_CACHE = re.compile(r"htp\.cache\.([A-Za-z0-9_-]{1,32})\.[0-9]+")
_MOST_SOCS = 64
_MOST_PARTS = 1000
_LONGEST_LIST = 4 << 20
"""Bytes of an archive's list of entries that are read at most."""


def matches(head: bytes) -> bool:
    """Return whether a binary begins as a zip archive does."""
    return head.startswith(_MAGIC)


def read(content: memoryview, name: str, _reader: BinaryReader) -> NativeBinary | None:
    """Return the description of an archive by its entries, None if it is not
    Qualcomm's; see `NativeFormat.read`.
    """
    try:
        entries = _list_entries(content)
    except ValueError as error:
        raise InvalidGraph(
            f"{name} is damaged: {error}.", hint="Fetch it again."
        ) from error
    targets = _find_targets(entries)
    is_dlc = any(entry.filename == _DLC for entry in entries)
    if not is_dlc and not targets:
        return None
    title = "context binary of Qualcomm's QNN for several SoCs"
    if is_dlc:
        title = "DLC file of Qualcomm's, which onnxruntime does not load"
    return NativeBinary(
        format="dlc" if is_dlc else "zip",
        title=title,
        bytes=len(content),
        source="QNN" if targets and not is_dlc else "",
        target=f"SoCs {', '.join(targets)}" if targets else "",
        parts={entry.filename: entry.file_size for entry in entries[:_MOST_PARTS]},
    )


def list_targets(content: Path | bytes | memoryview) -> Sequence[str]:
    """Return the names of the SoCs in a context binary of several, such as `sm8750`,
    sorted.

    Raises:
        ValueError: its list of entries cannot be read, or names no SoC or too many; the
            text says which.
    """
    targets = _find_targets(_list_entries(content))
    if not 0 < len(targets) <= _MOST_SOCS:
        raise ValueError(
            f"its list of entries names {len(targets)} SoCs, not 1 to {_MOST_SOCS}"
        )
    return targets


def _find_targets(entries: Sequence[zipfile.ZipInfo]) -> list[str]:
    names = (_CACHE.fullmatch(entry.filename) for entry in entries)
    return sorted({match[1] for match in names if match})


def _list_entries(content: Path | bytes | memoryview) -> Sequence[zipfile.ZipInfo]:
    try:
        with (
            content.open("rb")
            if isinstance(content, Path)
            else _PayloadFile(memoryview(content)) as file,
            zipfile.ZipFile(file) as archive,
        ):
            entries = archive.infolist()
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        OverflowError,
        OSError,
        ValueError,
        struct.error,
    ) as error:
        raise ValueError(f"its list of entries cannot be read ({error})") from error
    if any(entry.header_offset < 0 for entry in entries):
        raise ValueError("its list of entries names some before its beginning")
    return entries


class _PayloadFile(io.BytesIO):
    """Payload of any size as a file for `zipfile`: nothing is copied but what is
    read, and no more than a list of entries may be long.
    """

    def __init__(self, view: memoryview) -> None:
        super().__init__()
        self._view = view
        self._at = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._view.nbytes}
        if (at := start[whence] + offset) < 0:
            raise OSError(f"there is no offset {at}")
        self._at = at
        return at

    def tell(self) -> int:
        """Return the offset."""
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read so many bytes, by default all that follow.

        Raises:
            ValueError: they are more than a list of entries may have.
        """
        rest = max(self._view.nbytes - self._at, 0)
        count = rest if size is None or size < 0 else min(size, rest)
        if count > _LONGEST_LIST:
            raise ValueError(f"it has {count:,} bytes, of {_LONGEST_LIST:,} at most")
        chunk = bytes(self._view[self._at : self._at + count])
        self._at += count
        return chunk
