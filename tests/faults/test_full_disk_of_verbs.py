"""A disk without room for what a verb writes: one error that names the file and the
reason, and the older result stays.
"""

from __future__ import annotations

import os

import pytest
from faults.disks import small_disk
from faults.verbs import (
    DAILY,
    LARGE,
    SMALL,
    VERBS,
    begin,
    list_litter,
    read_files,
)

SIZE = "1500k"
FILLER = "filler"


@pytest.fixture
def disk(tmp_path):
    """A small file system, where this process may make one."""
    with small_disk(tmp_path / "disk", SIZE) as folder:
        yield folder


def fill(folder, room):
    """Write a file that leaves a disk with so much room."""
    status = os.statvfs(folder)
    size = status.f_bavail * status.f_frsize - room
    (folder / FILLER).write_bytes(bytes(size))


def ended(name, source, out):
    process = begin(name, source, out)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


@pytest.mark.parametrize(
    "name",
    [
        name if name in DAILY else pytest.param(name, marks=pytest.mark.stress)
        for name in VERBS
        if name != "cache"
    ],
)
def test_a_verb_without_room_for_its_result_names_the_file_and_keeps_the_older_one(
    name, sources, disk
):
    verb = VERBS[name]
    verb.before(sources / SMALL, disk)
    code, said = ended(name, sources / SMALL, disk)
    assert code == 0, said
    fill(disk, verb.room)
    before = read_files(disk)

    if name == "batch":  # its model is a link
        (disk / "m.onnx").unlink()
        (disk / "m.onnx").symlink_to(sources / LARGE / "m.onnx")
        before = read_files(disk)
    code, said = ended(name, sources / LARGE, disk)

    assert code == (1 if name == "batch" else 2), said
    assert verb.reason in said
    assert str(disk) in said
    assert "Traceback" not in said
    assert list_litter(disk) == []
    if verb.is_rewritten:
        assert read_files(disk) == before
    (disk / FILLER).unlink()
    assert ended(name, sources / SMALL, disk)[0] == 0
