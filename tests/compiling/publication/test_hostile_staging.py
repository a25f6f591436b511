"""A staging folder is untrusted: it may come with a downloaded model and say what an
attacker wants.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctx_core.context.paths import find_interrupted_copies
from epctx_core.publish.publication import Publication

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

pytestmark = pytest.mark.internal

STAGING = ".epctx-0123456789abcdef"


def plant(folder: Path, *names: str, existed: bool = False) -> dict[str, bool]:
    """Put a staging folder with one new and one old file for each name; return the
    journal.
    """
    for name in names:
        for side in ("new", "old"):
            path = folder / STAGING / side / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(f"{side} {name}".encode())
    return dict.fromkeys(names, existed)


def commit(folder: Path, journal: object, name: str = "journal.json") -> None:
    (folder / STAGING / name).write_text(json.dumps(journal))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a victim outside it and one inside."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "victim").write_bytes(b"outside")
    inside = tmp_path / "folder"
    inside.mkdir()
    (inside / "kept").write_bytes(b"kept")
    return inside


def assert_discarded(
    harness: ModuleType, folder: Path, *, also: dict[str, bytes | None] | None = None
) -> None:
    harness.finish_interrupted(folder)

    assert harness.snapshot(folder) == {"kept": b"kept", **(also or {})}
    assert harness.list_staging(folder) == []
    assert harness.snapshot(folder.parent / "outside") == {"victim": b"outside"}


def test_the_planted_journal_is_one_that_would_be_followed(
    harness: ModuleType, folder: Path
) -> None:
    commit(folder, plant(folder, "x"))

    harness.finish_interrupted(folder)

    assert harness.snapshot(folder) == {"kept": b"kept", "x": b"new x"}


@pytest.mark.parametrize(
    "name",
    ["../outside/victim", "/etc/x", "a/../../x", "", "x/", "./x", STAGING + "/new/x"],
)
@pytest.mark.parametrize("file", ["journal.json", "undo.json"])
def test_a_journal_with_a_name_that_leaves_is_discarded(
    harness: ModuleType, folder: Path, name: str, file: str
) -> None:
    commit(folder, {**plant(folder, "x"), name: True}, file)

    assert_discarded(harness, folder)


BAD_JOURNALS: dict[str, object] = {
    "a number for existed": {"x": 1},
    "a text for existed": {"x": "yes"},
    "nothing for existed": {"x": None},
    "a name that can't be spelled": {"x": False, "\ud800": False},
    "a name in another": {"x": False, "x/y": False},
    "the same the other way round": {"x/y": False, "x": False},
    "two spellings of a name": {"x": False, "y/../x": False},
    "a list of names": ["x"],
    "a list of lists": [["x"]],
    "a text": "x",
    "a number": 1,
    "nothing": None,
}


@pytest.mark.parametrize("what", BAD_JOURNALS)
def test_a_journal_that_no_publication_writes_is_discarded(
    harness: ModuleType, folder: Path, what: str
) -> None:
    plant(folder, "x")
    commit(folder, BAD_JOURNALS[what])

    assert_discarded(harness, folder)


def test_a_journal_cut_anywhere_is_discarded(harness: ModuleType, folder: Path) -> None:
    whole = json.dumps(plant(folder, "x")).encode()

    for length in range(len(whole)):
        plant(folder, "x")
        (folder / STAGING / "journal.json").write_bytes(whole[:length])
        assert_discarded(harness, folder)


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"9" * 100_000, b"\xff\xfe", b'{"a":' * 5000]
)
def test_a_journal_that_breaks_parsers_is_discarded(
    harness: ModuleType, folder: Path, data: bytes
) -> None:
    plant(folder, "x")
    (folder / STAGING / "journal.json").write_bytes(data)

    assert_discarded(harness, folder)


def test_a_journal_of_a_size_that_no_publication_writes_is_not_read(
    harness: ModuleType, folder: Path
) -> None:
    plant(folder, "x")
    with (folder / STAGING / "journal.json").open("wb") as file:
        file.truncate(1 << 40)

    assert_discarded(harness, folder)


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_a_journal_that_is_no_file_is_discarded(
    harness: ModuleType, folder: Path, kind: str
) -> None:
    journal = plant(folder, "x")
    path = folder / STAGING / "journal.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        (folder / STAGING / "journal.tmp").write_text(json.dumps(journal))
        path.symlink_to("journal.tmp")

    assert_discarded(harness, folder)


def test_a_staged_link_is_not_brought_to_a_name(
    harness: ModuleType, folder: Path
) -> None:
    commit(folder, plant(folder, "x"))
    (folder / STAGING / "new" / "x").unlink()
    (folder / STAGING / "new" / "x").symlink_to(folder.parent / "outside" / "victim")

    assert list(find_interrupted_copies(folder, "x")) == [
        folder / STAGING / "old" / "x"
    ]
    assert_discarded(harness, folder)


@pytest.mark.parametrize("side", ["new", "old"])
@pytest.mark.parametrize("file", ["journal.json", "undo.json"])
def test_a_file_is_not_taken_through_a_link_in_staging(
    harness: ModuleType, folder: Path, side: str, file: str
) -> None:
    commit(folder, plant(folder, "a", "victim", existed=True), file)
    (folder / STAGING / side).rename(folder.parent / "aside")
    (folder / STAGING / side).symlink_to(folder.parent / "outside")

    assert side not in {
        path.parent.name for path in find_interrupted_copies(folder, "victim")
    }
    assert_discarded(harness, folder)


@pytest.mark.parametrize("file", ["journal.json", "undo.json"])
def test_a_file_is_not_put_through_a_link_in_the_folder(
    harness: ModuleType, folder: Path, file: str
) -> None:
    commit(folder, plant(folder, "sub/victim", existed=True), file)
    (folder / "sub").symlink_to(folder.parent / "outside")

    harness.finish_interrupted(folder)

    assert (folder.parent / "outside" / "victim").read_bytes() == b"outside"
    assert harness.list_staging(folder) == []


def test_a_name_taken_by_a_folder_is_discarded(
    harness: ModuleType, folder: Path
) -> None:
    commit(folder, plant(folder, "x"))
    (folder / "x").mkdir()

    assert_discarded(harness, folder, also={"x": None})


def test_a_staging_folder_that_is_a_link_is_ignored(
    harness: ModuleType, folder: Path
) -> None:
    away = folder.parent / "outside"
    commit(folder, plant(folder, "x"))
    (folder / STAGING).rename(away / "staging")
    (folder / STAGING).symlink_to(away / "staging")

    with Publication(folder):
        pass

    assert (folder / STAGING).is_symlink()
    assert (away / "staging" / "new" / "x").read_bytes() == b"new x"
    assert list(find_interrupted_copies(folder, "x")) == []
    assert not (folder / "x").exists()


def test_links_in_staging_are_removed_and_not_what_they_lead_to(
    harness: ModuleType, folder: Path
) -> None:
    plant(folder, "x")
    (folder / STAGING / "new" / "out").symlink_to(folder.parent / "outside")

    assert_discarded(harness, folder)


def test_a_staging_folder_nested_deeper_than_the_stack_is_removed(
    harness: ModuleType, folder: Path
) -> None:
    deep = folder / STAGING / "new"
    deep.mkdir(parents=True)
    for _ in range(1500):
        deep /= "d"
        deep.mkdir()

    assert_discarded(harness, folder)


def test_copies_of_a_folder_that_is_not_there_are_none(tmp_path: Path) -> None:
    assert list(find_interrupted_copies(tmp_path / "gone", "x")) == []
    assert list(find_interrupted_copies(tmp_path / "gone" / ".." / "x\0", "x")) == []


def test_copies_that_vanish_while_listing_give_nothing(
    harness: ModuleType, folder: Path
) -> None:
    plant(folder, "x")
    copies = find_interrupted_copies(folder, "x")

    first = next(copies)
    harness.finish_interrupted(folder)

    assert first == folder / STAGING / "old" / "x"
    assert list(copies) == []


@given(st.binary(max_size=300))
def test_bytes_that_are_no_journal_are_discarded(
    harness: ModuleType, tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    plant(folder, "x")
    (folder / STAGING / "journal.json").write_bytes(data)

    harness.finish_interrupted(folder)

    assert harness.snapshot(folder) == {}
    assert harness.list_staging(folder) == []
