"""Settings of the cache, from arguments, environment variables and defaults."""

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
"""Limit of all entries together, in bytes."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """Settings of one use of the cache.

    Attributes:
        folder: of the cache.
        size: limit of all entries together, in bytes.
        trust_stat: True to take a file for unchanged if its size, times of change, inode and device are.
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
    """Return the settings; for an argument that is None, those of the environment or the default.

    Raises:
        InvalidArgument: a value is not valid.
    """
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
        raise InvalidArgument(f"cache_size is {size!r:.80}, not a number of bytes from 0.")
    if trust_stat not in (None, False, True):
        raise InvalidArgument(f"trust_stat is {trust_stat!r:.80}, not True or False.")
    if folder is not None and (
        not isinstance(folder, (str, os.PathLike)) or not isinstance(os.fspath(folder), str)
    ):
        raise InvalidArgument(f"cache_dir is {folder!r:.80}, not a path.")
    named = os.fspath(folder) if folder is not None else environment.get(FOLDER_VARIABLE, "")
    if size is None:
        text = environment.get(SIZE_VARIABLE, "")
        size = parse_size(text) if text.strip() else DEFAULT_SIZE
    if trust_stat is None:
        text = environment.get(TRUST_VARIABLE, "")
        if text not in {"", "0", "1"}:
            raise InvalidArgument(f"{TRUST_VARIABLE} is {text!r:.80}, not 0 or 1.")
        trust_stat = text != "0"
    return CacheSettings(
        folder=Path(named).expanduser().absolute() if named else get_user_folder(sys.platform, environment),
        size=size,
        trust_stat=trust_stat,
    )


def parse_size(text: str) -> int:
    """Return the number of bytes of a text such as `1048576`, `512M` or `10G`.

    Raises:
        InvalidArgument: the text is not a size.
    """
    match = re.fullmatch(r"([0-9]{1,18})\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise InvalidArgument(
            f"{text!r:.80} is not a size.", hint="Write a number of bytes, such as 1048576, 512M or 10G."
        )
    return int(match[1]) * _UNITS[match[2].upper()]
