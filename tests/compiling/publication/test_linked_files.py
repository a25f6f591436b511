"""Files that a publication links instead of writing them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.folders import TESTS

from epctx_core.errors import Fail, InvalidArgument
from epctx_core.publish.publication import Publication

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.internal


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file elsewhere, with an old time."""
    path = tmp_path / "source" / "big.bin"
    path.parent.mkdir()
    path.write_bytes(b"bytes of another folder")
    os.utime(path, ns=(10**18, 10**18))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder to publish into."""
    path = tmp_path / "folder"
    path.mkdir()
    return path


def publish(folder: Path, source: Path) -> None:
    """Publish a model and its linked binary."""
    with Publication(folder) as publication:
        assert publication.link("a.bin", source)
        publication.create("a.onnx").write(b"new")
        publication.commit(["a.onnx"])


def test_a_linked_file_is_the_same_file_with_its_times(
    harness: ModuleType, folder: Path, source: Path
) -> None:
    before = source.stat().st_mtime_ns

    publish(folder, source)

    assert (folder / "a.bin").samefile(source)
    assert source.stat().st_mtime_ns == before
    assert harness.list_staging(folder) == []


def test_leaving_without_a_commit_links_nothing(folder: Path, source: Path) -> None:
    with Publication(folder) as publication:
        publication.link("a.bin", source)

    assert list(folder.iterdir()) == []
    assert source.stat().st_nlink == 1


def test_a_linked_file_replaces_one_that_has_its_name(
    folder: Path, source: Path
) -> None:
    (folder / "a.bin").write_bytes(b"old")

    publish(folder, source)

    assert (folder / "a.bin").samefile(source)


def test_a_failing_rename_of_the_model_takes_the_link_back(
    harness: ModuleType, folder: Path, source: Path
) -> None:
    (folder / "a.bin").write_bytes(b"old")
    (folder / "a.onnx").write_bytes(b"old")

    with (
        pytest.raises(Fail, match="Input/output error"),
        harness.at_final("replace", "a.onnx", harness.refuse),
    ):
        publish(folder, source)

    assert harness.snapshot(folder) == {"a.bin": b"old", "a.onnx": b"old"}
    assert source.read_bytes() == b"bytes of another folder"
    assert source.stat().st_nlink == 1


def test_a_link_to_the_file_is_followed(folder: Path, source: Path) -> None:
    through = source.with_name("link.bin")
    through.symlink_to(source)

    publish(folder, through)

    assert (folder / "a.bin").samefile(source)
    assert not (folder / "a.bin").is_symlink()


def test_without_hard_links_the_file_can_be_created(
    harness: ModuleType, folder: Path, source: Path
) -> None:
    with harness.without_hard_links(), Publication(folder) as publication:
        assert not publication.link("a.bin", source)
        publication.create("a.bin").write(source.read_bytes())
        publication.create("a.onnx").write(b"new")
        publication.commit(["a.onnx"])

    assert (folder / "a.bin").read_bytes() == source.read_bytes()
    assert not (folder / "a.bin").samefile(source)


def test_a_file_that_is_not_there_is_a_typed_error(folder: Path, source: Path) -> None:
    with pytest.raises(Fail, match="No such file"), Publication(folder) as publication:
        publication.link("a.bin", source.with_name("none.bin"))

    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["../a.bin", "/a.bin"])
def test_a_name_that_leaves_the_folder_is_refused(
    folder: Path, source: Path, name: str
) -> None:
    with pytest.raises(InvalidArgument), Publication(folder) as publication:
        publication.link(name, source)

    assert not (folder.parent / "a.bin").exists()


_KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support import publication as harness
from epctx_core.publish.publication import Publication

folder, source = map(Path, sys.argv[2:4])
with harness.kill_before_call(int(sys.argv[4])), Publication(folder) as publication:
    publication.link("a.bin", source)
    publication.create("a.onnx").write(b"new")
    publication.commit(["a.onnx"])
"""


@pytest.mark.parametrize("call", range(1, 40, 3))
def test_a_kill_at_any_call_leaves_the_old_or_the_new_files(
    harness: ModuleType, folder: Path, source: Path, call: int
) -> None:
    old = {"a.bin": b"old", "a.onnx": b"old"}
    for name, data in old.items():
        (folder / name).write_bytes(data)

    arguments = [str(TESTS), str(folder), str(source), str(call)]
    done = subprocess.run([sys.executable, "-c", _KILLED, *arguments], check=False)
    harness.finish_interrupted(folder)

    new = {"a.bin": source.read_bytes(), "a.onnx": b"new"}
    found = harness.snapshot(folder)
    assert found in ([old, new] if done.returncode else [new])
    assert harness.list_staging(folder) == []
    assert source.read_bytes() == b"bytes of another folder"
