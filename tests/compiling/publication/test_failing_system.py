"""Every system call refused one by one: a typed error, and the old or the new state."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epctx_core.errors import EpctxError, Fail
from epctx_core.publish.publication import Publication

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

pytestmark = pytest.mark.internal


def calls_of_one_publication(
    harness: ModuleType, parent: Path, *, replace: bool
) -> int:
    folder = prepared(harness, parent, 0, replace=replace)
    with harness.fail_call(0, errno.EIO, for_ever=False) as count:
        harness.put(folder, harness.NEW, replace=replace)
    return int(count())


def prepared(harness: ModuleType, parent: Path, n: int, *, replace: bool) -> Path:
    folder = parent / str(n)
    folder.mkdir()
    if replace:
        harness.put(folder, harness.OLD)
    else:
        (folder / "a_qnn.bin").write_bytes(harness.OLD["a_qnn.bin"])
    return folder


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_one_refused_call_gives_the_new_state_or_an_error_and_the_old_state(
    harness: ModuleType, tmp_path: Path, code: int, *, replace: bool
) -> None:
    calls = calls_of_one_publication(harness, tmp_path, replace=replace)
    failures = 0

    for n in range(1, calls + 1):
        folder = prepared(harness, tmp_path, n, replace=replace)
        before = harness.snapshot(folder)
        try:
            with harness.fail_call(n, code, for_ever=False):
                harness.put(folder, harness.NEW, replace=replace)
        except Fail as failure:
            failures += 1
            assert isinstance(failure.__cause__, OSError)
            assert failure.__cause__.errno == code
            assert str(folder) in failure.message
            assert failure.hint
            assert harness.snapshot(folder) == before
        else:
            assert harness.snapshot(folder) == harness.NEW
        harness.finish_interrupted(folder)
        assert harness.list_staging(folder) == []

    assert failures > calls / 3


@pytest.mark.parametrize("replace", [True, False])
def test_a_disk_that_dies_during_a_publication_leaves_what_readers_and_the_next_one_can_use(
    harness: ModuleType, tmp_path: Path, *, replace: bool
) -> None:
    calls = calls_of_one_publication(harness, tmp_path, replace=replace)

    for n in range(1, calls + 1):
        folder = prepared(harness, tmp_path, n, replace=replace)
        before = harness.snapshot(folder)
        with (
            pytest.raises(Fail) if n < calls / 2 else _maybe_failing(),
            harness.fail_call(n, errno.EIO, for_ever=True),
        ):
            harness.put(folder, harness.NEW, replace=replace)

        for model in folder.glob("*.onnx"):
            assert harness.list_missing_binaries(folder, model.name) == []
        harness.finish_interrupted(folder)

        assert harness.list_staging(folder) == []
        assert harness.snapshot(folder) in (before, harness.NEW)


@contextmanager
def _maybe_failing() -> Iterator[None]:
    try:
        yield
    except Fail as failure:
        assert failure.hint


def test_the_error_says_what_is_left_when_even_taking_back_fails(
    harness: ModuleType, tmp_path: Path
) -> None:
    harness.put(tmp_path, harness.OLD)
    renames = 0

    def before(name: str, _args: tuple[object, ...]) -> None:
        nonlocal renames
        renames += name == "replace"
        if renames > 2:  # the journal and one binary
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with (
        pytest.raises(Fail, match="bringing the files to their names") as caught,
        harness.intercepted(before, harness.ALL_CALLS),
    ):
        harness.put(tmp_path, harness.NEW)

    assert "the next compile into the folder finishes" in str(caught.value.hint)
    assert harness.list_missing_binaries(tmp_path, "a_ctx.onnx") == []


def test_what_can_not_be_finished_stays_for_a_later_attempt(
    harness: ModuleType, tmp_path: Path
) -> None:
    harness.run_program("finishing", tmp_path, "prepare")
    n = 0

    while harness.list_staging(tmp_path):
        n += 1
        try:
            with harness.fail_call(n, errno.EIO, for_ever=True):
                harness.finish_interrupted(tmp_path)
        except EpctxError as failure:
            assert isinstance(failure, Fail)
        for model in harness.MODELS:
            assert harness.list_missing_binaries(tmp_path, model) == []

    assert n > 10
    assert harness.snapshot(tmp_path) == harness.NEW


def test_a_write_that_the_system_cuts_short_raises_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    with (
        pytest.raises(Fail, match="writing a file") as caught,
        Publication(tmp_path) as publication,
    ):
        file = publication.create("big.bin")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        try:
            file.write(bytes(1 << 20))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert isinstance(caught.value.__cause__, OSError)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_writable_is_named() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)  # root may write anywhere
        try:
            with (
                pytest.raises(Fail, match="Permission denied") as caught,
                Publication(folder),
            ):
                pass
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o755)

    assert str(folder) in caught.value.message
    assert caught.value.path == folder
    assert "writable" in str(caught.value.hint)


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(Fail, match="locking the folder: Not a directory") as caught:
        Publication(tmp_path / "file").__enter__()

    assert caught.value.path == tmp_path / "file"


def test_a_folder_that_is_removed_while_files_are_staged_is_named(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()

    with (
        pytest.raises(Fail, match="No such file") as caught,
        Publication(folder) as publication,
    ):
        shutil.rmtree(folder)
        publication.create("a.bin")

    assert str(folder) in caught.value.message
    assert "folder exists" in str(caught.value.hint)
    assert not folder.exists()


def test_a_folder_that_is_moved_away_before_the_commit_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()

    with (
        pytest.raises(Fail, match=str(folder)) as caught,
        Publication(folder) as publication,
    ):
        publication.create("m.onnx").write(b"y")
        folder.rename(tmp_path / "elsewhere")
        publication.commit(models=["m.onnx"])

    assert caught.value.hint
