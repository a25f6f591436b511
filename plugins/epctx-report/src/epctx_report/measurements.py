"""Files with measurements of a model, which other commands wrote as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidArgument, NoSuchFile
from epctx_core.ext import parse_json, read_small_file

if TYPE_CHECKING:
    from os import PathLike

_MOST_BYTES = 512 << 20
_MOST_ENTRIES = 1 << 25
"""Limits of a file: `epctx run --profile` writes a million events at most."""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Files with measurements to show.

    Attributes:
        traces: profiles of `epctx run --profile` and `epctx compile --profile`, of the
            model, or of the first one in a folder.
        bench: a file with the JSON of `epctx bench`, or None.
        errors: a file with the JSON of `epctx compare --by-partition`, of the model, or
            of the first one in a folder; or None.
    """

    traces: Sequence[str | PathLike[str]] = ()
    bench: str | PathLike[str] | None = None
    errors: str | PathLike[str] | None = None


def read_json(path: Path, expected: str) -> Any:
    """Return the content of a file.

    Args:
        path: the file.
        expected: the command that writes such files.

    Raises:
        NoSuchFile, InvalidArgument: there is no such file, or it is no JSON.
    """
    try:
        return parse_json(read_small_file(path, _MOST_BYTES), _MOST_ENTRIES)
    except FileNotFoundError as error:
        raise NoSuchFile(f"there is no file {str(path)!r}.", path=path) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{str(path)!r} cannot be read as JSON: {error}.",
            path=path,
            hint=f"Give a file that {expected} wrote.",
        ) from error


def refuse(path: Path, expected: str) -> InvalidArgument:
    """Return the error of a file that another command wrote."""
    return InvalidArgument(
        f"{str(path)!r} is not of the form that {expected} writes.",
        path=path,
        hint=f"Give a file that {expected} wrote.",
    )
