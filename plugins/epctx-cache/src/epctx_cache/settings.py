"""Settings of the cache, from arguments, environment variables and defaults."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from epctx_core.errors import Fail, InvalidArgument
from epctx_core.ext import get_user_folder

Providers: TypeAlias = Sequence[str | tuple[str, Mapping[str, object]]]
Progress: TypeAlias = Callable[[str, int, int], None]

FOLDER_VARIABLE = "EPCTX_CACHE_DIR"
SIZE_VARIABLE = "EPCTX_CACHE_SIZE"
TRUST_VARIABLE = "EPCTX_CACHE_TRUST_STAT"
SHARED_VARIABLE = "EPCTX_CACHE_SHARED"
PUSH_VARIABLE = "EPCTX_CACHE_PUSH"

DEFAULT_SIZE = 10 << 30
"""Limit of all entries together, in bytes."""

_UNITS = {
    "": 1,
    "K": 1 << 10,
    "M": 1 << 20,
    "G": 1 << 30,
    "T": 1 << 40,
}


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """Settings of one use of the cache.

    Attributes:
        folder: of the cache.
        size: limit of all entries together, in bytes.
        trust_stat: True to take a file for unchanged if its size, times of change,
            inode and device are.
        shared: address of the cache that machines share; empty for none.
        push: True to put there what this machine compiles.
    """

    folder: Path
    size: int
    trust_stat: bool
    shared: str
    push: bool


def cache_settings(
    folder: str | os.PathLike[str] | None = None,
    size: int | None = None,
    trust_stat: bool | None = None,
    shared: str | None = None,
    push: bool | None = None,
    environment: Mapping[str, str] = os.environ,
) -> CacheSettings:
    """Return the settings; for an argument that is None, those of the environment or
    the default.

    Raises:
        InvalidArgument: a value is not valid.
    """
    if size is not None and (
        isinstance(size, bool) or not isinstance(size, int) or size < 0
    ):
        raise InvalidArgument(
            f"cache_size is {size!r:.80}, not a number of bytes from 0."
        )
    named: object = environment.get(FOLDER_VARIABLE, "")
    if folder is not None:
        is_path = isinstance(folder, (str, os.PathLike))
        named = os.fspath(folder) if is_path else None
    if not isinstance(named, str):
        raise InvalidArgument(f"cache_dir is {folder!r:.80}, not a path.")

    if size is None:
        text = environment.get(SIZE_VARIABLE, "")
        size = parse_size(text, SIZE_VARIABLE) if text.strip() else DEFAULT_SIZE
    return CacheSettings(
        folder=_expand(named).absolute()
        if named
        else get_user_folder(sys.platform, environment),
        size=size,
        trust_stat=_choose("trust_stat", trust_stat, TRUST_VARIABLE, environment),
        shared=_choose_address(shared, environment),
        push=_choose("shared_push", push, PUSH_VARIABLE, environment),
    )


def unusable_cache(folder: Path, why: object, setting: str = "cache_dir") -> Fail:
    """Return the error for a folder that cannot be used as a cache.

    Args:
        folder: of the cache.
        why: the reason, without a full stop.
        setting: argument that names another folder.
    """
    return Fail(
        f"the cache in {str(folder)!r} cannot be used: {why}.",
        path=folder,
        hint=(
            f"Set {setting} or {FOLDER_VARIABLE} to a folder that you can read and "
            "write."
        ),
    )


def _choose_address(shared: str | None, environment: Mapping[str, str]) -> str:
    """Return the address of the shared cache, of an argument or of its variable.

    Raises:
        InvalidArgument: it is no text, or would be a folder in that of each process.
    """
    if shared is not None and not isinstance(shared, str):
        raise InvalidArgument(f"shared_cache is {shared!r:.80}, not a text.")
    address = environment.get(SHARED_VARIABLE, "") if shared is None else shared
    if re.match(r"(file|local)://[^/]", address) and sys.platform != "win32":
        # Others that have the same address would have another folder.
        raise InvalidArgument(
            f"the shared cache {address!r:.80} is no whole path.",
            hint="Write three slashes before a path: file:///mnt/team/epctx.",
        )

    # fsspec takes any other text for a path, also an address with a typo.
    path = _expand(address.removeprefix("file:"))
    if address and not re.search("://|::", address) and not path.is_absolute():
        named = SHARED_VARIABLE if shared is None else "shared_cache"
        raise InvalidArgument(
            f"{named} is {address!r:.80}, neither an address nor a whole path.",
            hint="Write it as s3://bucket/folder or file:///mnt/team/epctx.",
        )
    return address


def _expand(path: str) -> Path:
    """Return a path in which `~` is the folder of a user.

    Raises:
        InvalidArgument: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidArgument(
            f"{path!r:.80} is in the folder of a user that is not known: {error}",
            hint="Write the whole path.",
        ) from error


def _choose(
    name: str, value: bool | None, variable: str, environment: Mapping[str, str]
) -> bool:
    """Return the value of an argument, of a variable, or True.

    Raises:
        InvalidArgument: it is neither True nor False.
    """
    if value not in (None, False, True):
        raise InvalidArgument(f"{name} is {value!r:.80}, not True or False.")
    if value is not None:
        return bool(value)
    text = environment.get(variable, "")
    if text not in {"", "0", "1"}:
        raise InvalidArgument(f"{variable} is {text!r:.80}, not 0 or 1.")
    return text != "0"


def parse_size(text: str, variable: str = "") -> int:
    """Return the number of bytes of a text such as `1048576`, `512M` or `10G`.

    Args:
        text: number and unit.
        variable: the environment variable that has it, for the error.

    Raises:
        InvalidArgument: the text is not a size.
    """
    match = re.fullmatch(
        r"([0-9]{1,18})\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII
    )
    if match is None:
        raise InvalidArgument(
            f"{variable} is {text!r:.80}, not a size."
            if variable
            else f"{text!r:.80} is not a size.",
            hint="Write a number of bytes, such as 1048576, 512M or 10G.",
        )
    return int(match[1]) * _UNITS[match[2].upper()]
