"""A publication killed at any system call: readers see the old or the new model, the next one tidies up."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from epctx_core.publish import Publication, finish_interrupted

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

SCENES = [
    "into an empty folder",
    "over an older one",
    "without hard links",
    "into sub-folders",
    "into sub-folders, taken back",
    "without replacing",
    "without replacing or links",
    "taken back",
    "losing a race",
    "finishing",
    "finishing where a name is taken",
]


def test_every_scene_is_played(scenes: ModuleType) -> None:
    assert list(scenes.SCENES) == SCENES


@pytest.mark.parametrize("name", SCENES)
def test_a_kill_at_any_call_leaves_the_old_or_the_new_state(
    scenes: ModuleType, name: str, tmp_path: Path
) -> None:
    played = subprocess.run(
        [sys.executable, str(scenes.__file__), name, tmp_path], check=True, capture_output=True, text=True
    )
    folders = [tmp_path / str(n) for n in range(1, int(played.stdout) + 1)]
    ends = scenes.SCENES[name].ends
    seen = []

    for folder in folders:
        for model in folder.rglob("*.onnx"):
            if ".epctx-" not in str(model):
                assert scenes.broken_names(folder, str(model.relative_to(folder))) == [], folder.name

        with Publication(folder):
            pass
        assert scenes.staging_left(folder) == [], folder.name
        seen.append(ends.index(scenes.snapshot(folder)))

    assert len(folders) > 5
    if not name.startswith("finishing"):
        assert seen[0] == 0
        assert set(seen) <= {0, 1, 2}


@pytest.mark.parametrize("name", ["into an empty folder", "over an older one", "into sub-folders"])
def test_a_kill_before_the_commit_point_is_discarded_and_after_it_is_finished(
    scenes: ModuleType, name: str, tmp_path: Path
) -> None:
    played = subprocess.run(
        [sys.executable, str(scenes.__file__), name, tmp_path], check=True, capture_output=True, text=True
    )
    old, new = scenes.SCENES[name].ends

    for n in range(1, int(played.stdout)):
        folder = tmp_path / str(n)
        committed = any(folder.glob(".epctx-*/journal.json")) or scenes.snapshot(folder) == new
        finish_interrupted(folder)

        assert scenes.snapshot(folder) == (new if committed else old)
        assert scenes.staging_left(folder) == []


def test_the_bytes_of_the_old_binary_are_found_while_a_killed_publication_waits(
    scenes: ModuleType, tmp_path: Path
) -> None:
    half_done = subprocess.run(
        [sys.executable, str(scenes.__file__), "finishing", tmp_path],
        check=True,
        capture_output=True,
        text=True,
    )
    folder = tmp_path / "1"  # killed before its first step: as the killed publication left it

    copies = [path.read_bytes() for path in scenes.interrupted_copies(folder, "./x/../a_qnn.bin")]

    assert int(half_done.stdout) > 1
    assert (folder / "a_qnn.bin").read_bytes() == scenes.NEW["a_qnn.bin"]
    assert (folder / "a_ctx.onnx").read_bytes() == scenes.OLD["a_ctx.onnx"]
    assert copies == [scenes.OLD["a_qnn.bin"]]
