"""The journal of one publication: its format, and how an untrusted one is read.

Knows names and their order, not how steps are done. A journal in its final place is the commit point.
"""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epctx_core.context.unfinished import (
    JOURNAL,
    NEW,
    OLD,
    canonical,
    folders_of,
    is_file,
    link_free,
    mode_of,
)
from epctx_core.publish import posix

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 2
_MAX_BYTES = 16 << 20
_BINARY = "binary"
_MODEL = "model"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One file to bring to its final name.

    Attributes:
        name: canonical, relative to the folder; the same below `new/` and `old/` in staging.
        model: a context model; else a binary or an external-initializers file.
        existed: the name held a file before, which `old/` keeps.
        claim: the name was free and has to be taken without replacing whatever lies there by now.
    """

    name: str
    model: bool
    existed: bool
    claim: bool


@dataclass(frozen=True, kw_only=True)
class Journal:
    """What a publication does after its commit point.

    Attributes:
        steps: in the order in which they are done: binaries, then models.
        folders: sub-folders that did not exist before, outermost first.
    """

    steps: tuple[Step, ...]
    folders: tuple[str, ...]


def encode(journal: Journal) -> bytes:
    """Return a journal's bytes."""
    steps = [
        {
            "name": step.name,
            "kind": _MODEL if step.model else _BINARY,
            "existed": step.existed,
            "claim": step.claim,
        }
        for step in journal.steps
    ]
    fields = {"version": VERSION, "steps": steps, "folders": list(journal.folders)}
    return json.dumps(fields).encode("ascii")


def decode(data: bytes) -> Journal | None:
    """Return the journal that bytes hold, or None for anything that `encode` would not have written."""
    try:
        fields = json.loads(data)
        steps = [
            Step(name=canonical(s["name"]), model=s["kind"] == _MODEL, existed=s["existed"], claim=s["claim"])
            for s in fields["steps"]
        ]
        journal = Journal(steps=tuple(steps), folders=tuple(map(canonical, fields["folders"])))
        exact = encode(journal) == data
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # InvalidArgument, for a name that leaves the folder, is a ValueError
    return journal if exact and _is_consistent(journal) else None


def _is_consistent(journal: Journal) -> bool:
    """Whether types are right, no name is used twice, none lies in another, and models come last."""
    flags = [flag for step in journal.steps for flag in (step.existed, step.claim)]
    names = [step.name for step in journal.steps]
    folders = {folder for name in names for folder in folders_of(name)}
    kinds = [step.model for step in journal.steps]
    clobbers = any(step.existed and step.claim for step in journal.steps)
    return (
        all(isinstance(flag, bool) for flag in flags)
        and len(set(names)) == len(names)
        and folders.isdisjoint(names)
        and folders.issuperset(journal.folders)
        and kinds == sorted(kinds)
        and not clobbers
    )


def write(staging: Path, journal: Journal) -> None:
    """Put a journal in place durably. When it is there under its final name, the publication is committed.

    Raises:
        OSError: the disk is full or broken.
    """
    draft = staging / "journal.tmp"
    posix.write_durably(draft, encode(journal))
    draft.replace(staging / JOURNAL)
    posix.sync_folder(staging)


def read(folder: Path, staging: Path, file_name: str) -> Journal | None:
    """Return the journal that lies in a staging folder, or None if there is none that can be followed.

    Raises:
        OSError: the journal exists but the disk or its permissions keep us from reading it. That is
            not the same as a bad one: discarding a half-done publication would lose both states.
    """
    data = posix.read_regular(staging / file_name, _MAX_BYTES)
    journal = None if data is None else decode(data)
    if journal is None or not _can_be_followed(folder, staging, journal):
        return None
    return journal


def _can_be_followed(folder: Path, staging: Path, journal: Journal) -> bool:
    """Whether no step would pass through a link, or move anything but a regular file."""
    for step in journal.steps:
        final = link_free(folder, step.name)
        mode = None if final is None else mode_of(final)
        if final is None or (mode is not None and stat.S_ISDIR(mode)):
            return False
        for side in (NEW, OLD):
            path = link_free(staging, f"{side}/{step.name}")
            if path is None or not (is_file(path) or mode_of(path) is None):
                return False
    return True
