"""A publication killed at any system call: readers see the old or the new model, the
next one tidies up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

COMMITTING = [
    "into an empty folder",
    "over an older one",
    "without hard links",
    "into sub-folders",
    "without replacing",
    "without replacing or links",
]
TAKEN_BACK = ["into sub-folders, taken back", "taken back", "losing a race"]
RECOVERING = ["finishing", "finishing where a name is taken"]


def played(harness: ModuleType, name: str, parent: Path) -> list[Path]:
    """Play a scenario; return the folders, the one killed first in front, the one not
    killed last.
    """
    count = int(harness.run_program(name, parent, "play"))
    return [parent / str(n) for n in range(1, count + 1)]


def assert_models_load(harness: ModuleType, folder: Path) -> None:
    for name in harness.snapshot(folder):
        if name.endswith(".onnx"):
            assert harness.list_missing_binaries(folder, name) == [], (
                folder.name,
                name,
            )


def tidied(harness: ModuleType, folder: Path) -> dict[str, bytes | None]:
    harness.finish_interrupted(folder)

    assert harness.list_staging(folder) == [], folder.name
    found: dict[str, bytes | None] = harness.snapshot(folder)
    return found


def test_every_scene_is_played(harness: ModuleType) -> None:
    assert sorted(harness.SCENARIOS) == sorted(COMMITTING + TAKEN_BACK + RECOVERING)


@pytest.mark.parametrize("name", COMMITTING)
def test_a_kill_before_the_commit_point_is_discarded_and_after_it_is_finished(
    harness: ModuleType, name: str, tmp_path: Path
) -> None:
    folders = played(harness, name, tmp_path)
    old, new = harness.SCENARIOS[name].ends
    finished = 0

    for folder in folders:
        assert_models_load(harness, folder)
        committed = (
            any(folder.glob(".epctx-*/journal.json")) or harness.snapshot(folder) == new
        )
        finished += committed

        assert tidied(harness, folder) == (new if committed else old), folder.name

    assert 1 < finished < len(folders) - 5


@pytest.mark.parametrize("name", TAKEN_BACK)
def test_a_kill_while_a_publication_is_taken_back_leaves_one_of_the_two_states(
    harness: ModuleType, name: str, tmp_path: Path
) -> None:
    folders = played(harness, name, tmp_path)
    ends = harness.SCENARIOS[name].ends
    seen = []

    for folder in folders:
        assert_models_load(harness, folder)
        seen.append(ends.index(tidied(harness, folder)))

    assert len(folders) > len(harness.NEW)
    assert seen[0] == 0
    assert (
        ends[seen[-1]] != harness.NEW
    )  # the last one was not killed: it was taken back in the end


@pytest.mark.parametrize("name", RECOVERING)
def test_a_recovery_that_is_killed_itself_is_continued_by_the_next_one(
    harness: ModuleType, name: str, tmp_path: Path
) -> None:
    folders = played(harness, name, tmp_path)
    (end,) = harness.SCENARIOS[name].ends

    for folder in folders:
        assert_models_load(harness, folder)

        assert tidied(harness, folder) == end, folder.name

    assert len(folders) > len(harness.NEW)


def test_the_bytes_of_the_old_binary_are_found_until_a_killed_publication_is_finished(
    harness: ModuleType, tmp_path: Path
) -> None:
    harness.run_program("finishing", tmp_path, "prepare")

    copies = [
        path.read_bytes()
        for path in harness.find_interrupted_copies(tmp_path, "./x/../a_qnn.bin")
    ]

    assert (tmp_path / "a_qnn.bin").read_bytes() == harness.NEW["a_qnn.bin"]
    assert (tmp_path / "a_ctx.onnx").read_bytes() == harness.OLD["a_ctx.onnx"]
    assert copies == [harness.OLD["a_qnn.bin"]]

    harness.finish_interrupted(tmp_path)

    assert harness.snapshot(tmp_path) == harness.NEW
    assert list(harness.find_interrupted_copies(tmp_path, "a_qnn.bin")) == []
