"""Where the cache lies, how large it may be, and what it trusts: arguments, then the environment, then defaults."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from epctx_core.errors import InvalidArgument
from epctx_core.ext import get_user_folder

FOLDER_VARIABLE = "EPCTX_CACHE_DIR"
SIZE_VARIABLE = "EPCTX_CACHE_SIZE"
TRUST_VARIABLE = "EPCTX_CACHE_TRUST_STAT"

DEFAULT_SIZE = 10 << 30
"""Bytes that all entries may have together."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """What one use of the cache goes by.

    Attributes:
        folder: the cache's.
        size: bytes that all entries may have together.
        trust_stat: whether a file whose size, times of change, inode and device are as before is taken for unchanged.
    """

    folder: Path
    size: int
    trust_stat: bool


def cache_settings(
    folder: str | os.PathLike[str] | None = None,
    size: int | None = None,
    trust_stat: bool | None = None,
    environment: Mapping[str, str] = os.environ,
) -> CacheSettings:
    """Return the settings; an argument that is None is left to the environment, and then to the default.

    Raises:
        InvalidArgument: a value that is none.
    """
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
        raise InvalidArgument(f"the size of the cache is a number of bytes from 0 on, not {size!r:.80}.")
    if trust_stat not in (None, False, True):
        raise InvalidArgument(f"trust_stat is {trust_stat!r:.80}, which is neither True nor False.")
    if folder is not None and (
        not isinstance(folder, (str, os.PathLike)) or not isinstance(os.fspath(folder), str)
    ):
        raise InvalidArgument(f"cache_dir is {folder!r:.80}, which is no path.")
    named = os.fspath(folder) if folder is not None else environment.get(FOLDER_VARIABLE, "")
    if size is None:
        text = environment.get(SIZE_VARIABLE, "")
        size = parse_size(text) if text.strip() else DEFAULT_SIZE
    if trust_stat is None:
        text = environment.get(TRUST_VARIABLE, "")
        if text not in {"", "0", "1"}:
            raise InvalidArgument(f"{TRUST_VARIABLE} is {text!r:.80}; allowed is 0 or 1.")
        trust_stat = text != "0"
    return CacheSettings(
        folder=Path(named).expanduser().absolute() if named else get_user_folder(sys.platform, environment),
        size=size,
        trust_stat=trust_stat,
    )


def parse_size(text: str) -> int:
    """Return a number of bytes written as `1048576`, `512M` or `10G`.

    Raises:
        InvalidArgument: it is none.
    """
    match = re.fullmatch(r"([0-9]{1,18})\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise InvalidArgument(
            f"{text!r:.80} is no size of the cache.", hint="Write a number of bytes, or such as 512M or 10G."
        )
    return int(match[1]) * _UNITS[match[2].upper()]
