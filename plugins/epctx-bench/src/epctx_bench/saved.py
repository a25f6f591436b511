"""Saved reports of measurements: their form, and files of them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from epctx_core.errors import EpctxError, Fail, InvalidArgument, NoSuchFile, quote
from epctx_core.ext import Publication, parse_json, read_small_file

Report: TypeAlias = Mapping[str, Any]

SCHEMA = 1
"""Version of the JSON; keys are added, never changed."""


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise if a report cannot be written to a file, before anything is measured for
    it; a missing folder will be created.

    Raises:
        InvalidArgument: the path names a folder, or its own folder is not one.
        Fail: its folder is not writable.
    """
    target = Path(path)
    if target.is_dir() or os.fspath(path).endswith("/"):
        raise InvalidArgument(
            f"{os.fspath(path)!r} is a folder, not a file.",
            path=target,
            hint="Name a file for the report, such as report.json in it.",
        )
    Publication.check_folder(target.parent)


def save_report(report: Report, path: str | os.PathLike[str]) -> None:
    """Write a report to a file, which has the old or the new content at any moment; a
    missing folder is created.

    Raises:
        Fail: the file cannot be written.
    """
    text = json.dumps(report, indent=2, allow_nan=False)
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with Publication(target.parent) as publication:
            publication.create(target.name).write(f"{text}\n".encode())
            publication.commit([target.name])
    except (OSError, EpctxError) as error:
        raise Fail(
            f"the report cannot be written to {target}: {quote(error)}.",
            path=target,
            hint="Give a file in a folder that you may write to.",
        ) from error


def load_report(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the report in a file.

    Raises:
        NoSuchFile: the file does not exist.
        InvalidArgument: it is not JSON, or not a report of schema 1.
        Fail: it cannot be read.
    """
    source = Path(path)
    try:
        report = parse_json(read_small_file(source))
    except FileNotFoundError as error:
        raise NoSuchFile(
            f"the saved report {source} does not exist.",
            path=source,
            hint="Save one first, by a measurement of the version to compare with.",
        ) from error
    except OSError as error:
        raise Fail(
            f"the saved report {source} cannot be read: {quote(error)}.", path=source
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"the saved report {source} is not JSON: {quote(error)}.",
            path=source,
            hint="Give a file that a measurement saved.",
        ) from error

    check_report(report, f"the saved report {source}")
    return dict(report)


def check_report(report: object, name: str) -> None:
    """Check the form of a report.

    Args:
        report: the report.
        name: what an error calls it.

    Raises:
        InvalidArgument: it is not of schema 1.
    """
    facts = report if isinstance(report, Mapping) else {}
    schema = facts.get("schema")
    # True equals 1 in Python.
    if schema is True or schema != SCHEMA:
        raise InvalidArgument(
            f"{name} has the schema {schema!r}, expected {SCHEMA}.",
            hint="Measure and save it again with this version of epctx-bench.",
        )

    for part in ("machine", "noise", "settings"):
        if not isinstance(facts.get(part) or {}, Mapping):
            raise InvalidArgument(f"{name} has {part} that is not an object.")

    columns = facts.get("columns")
    if not isinstance(columns, list) or not all(map(_is_column, columns)):
        raise InvalidArgument(
            f"{name} has no list of columns with a name and rows of samples.",
            hint="Measure and save it again; a report is not to be edited.",
        )
    for twice, count in Counter(column["name"] for column in columns).items():
        if count > 1:
            raise InvalidArgument(f"{name} has two columns named {twice!r}.")


def _is_column(column: object) -> bool:
    """Return whether a value has a column's form."""
    match column:
        # Without a peer, the key may be missing too.
        case {"peer": peer} if not isinstance(peer, str | None):
            return False
        case {"name": str(), "rows": {**rows}}:
            return all(map(_is_row, rows.values()))
    return False


def _is_row(row: object) -> bool:
    """Return whether a value has a row's form."""
    match row:
        case {"unit": str(), "samples": list(samples)}:
            # A truth value is an integer in Python.
            return all(type(sample) in {int, float} for sample in samples)
    return False
