"""Lock of a folder that is published into: who may write there excludes each other, and
nobody else stops them.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from compiling.publication.users import ANOTHER, NOBODY, acting_as, as_root

from epctx_core.errors import Fail
from epctx_core.publish import files
from epctx_core.publish.publication import Publication, settle_death

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

pytestmark = pytest.mark.internal

LOCK = ".epctx-lock"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may read, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="epctx-locks-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@as_root
def test_a_user_who_may_only_read_a_folder_stops_no_publication(
    harness: ModuleType, folder: Path
) -> None:
    with acting_as(NOBODY):
        held = os.open(folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
    publishing = threading.Thread(
        target=harness.put, args=(folder, {"a": b"a"}), daemon=True
    )
    try:
        publishing.start()
        publishing.join(30)
        assert not publishing.is_alive()
    finally:
        os.close(held)
        publishing.join(30)

    assert harness.snapshot(folder) == {"a": b"a"}


@as_root
@pytest.mark.parametrize(
    ("mode", "group", "may"),
    [
        (0o755, 0, False),
        (0o775, 0, False),
        (0o775, NOBODY, True),
        (0o750, NOBODY, False),
        (0o777, 0, True),
        (0o1777, 0, True),
    ],
)
@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_the_lock_is_for_those_who_may_write_into_the_folder(
    folder: Path, mode: int, group: int, may: bool, umask: int
) -> None:
    os.chown(folder, 0, group)
    folder.chmod(mode)
    before = os.umask(umask)
    try:
        with Publication(folder), acting_as(NOBODY):
            if may:
                other = os.open(folder / LOCK, os.O_RDWR)
                with pytest.raises(BlockingIOError):
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.close(other)
            else:
                for flags in (os.O_RDONLY, os.O_RDWR):
                    with pytest.raises(PermissionError):
                        os.open(folder / LOCK, flags)
    finally:
        os.umask(before)

    assert list(folder.iterdir()) == []


@as_root
def test_users_of_one_folder_publish_after_each_other(
    harness: ModuleType, folder: Path
) -> None:
    folder.chmod(0o1777)
    for user in (NOBODY, ANOTHER):
        with acting_as(user):
            harness.put(folder, {f"{user}": b"own"})

    assert len(harness.snapshot(folder)) == 2
    assert not (folder / LOCK).exists()


@as_root
def test_a_lock_file_that_another_user_has_left_in_a_sticky_folder_is_taken(
    harness: ModuleType, folder: Path
) -> None:
    folder.chmod(0o1777)
    with acting_as(ANOTHER):
        (folder / LOCK).touch()
        (folder / LOCK).chmod(0o666)
    with acting_as(NOBODY):
        harness.put(folder, {"a": b"a"})

    assert (folder / "a").read_bytes() == b"a"
    assert (folder / LOCK).stat().st_uid == ANOTHER


def test_a_link_in_place_of_the_lock_is_not_followed(
    harness: ModuleType, folder: Path
) -> None:
    target = folder / "target"
    (folder / LOCK).symlink_to(target)

    with pytest.raises(Fail, match=r"locking the folder.*\.epctx-lock"):
        harness.put(folder, {"a": b"a"})

    assert not target.exists()


def test_a_second_name_of_a_file_in_place_of_the_lock_changes_nothing_of_it(
    harness: ModuleType, folder: Path
) -> None:
    kept = folder / "kept"
    kept.write_bytes(b"kept")
    kept.chmod(0o640)
    (folder / LOCK).hardlink_to(kept)

    harness.put(folder, {"a": b"a"})

    assert kept.read_bytes() == b"kept"
    assert kept.stat().st_mode & 0o777 == 0o640
    assert not (folder / LOCK).exists()


def test_the_lock_of_a_killed_process_is_taken_and_removed(
    harness: ModuleType, folder: Path
) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from epctx_core.publish.publication import Publication\n"
        "with Publication(Path(sys.argv[1])):\n    os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, folder], timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert (folder / LOCK).exists()

    harness.put(folder, {"a": b"a"})

    assert sorted(path.name for path in folder.iterdir()) == ["a"]


def test_who_waits_for_long_is_told_which_process_holds_the_lock(
    harness: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = threading.Event()
    words = []

    class Tells(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words.append(record.getMessage())
            said.set()

    handler = Tells(logging.WARNING)
    logging.getLogger("epctx.publish").addHandler(handler)
    monkeypatch.setattr(files, "WARNED_AFTER", 0.0)
    waiting = threading.Thread(
        target=harness.put, args=(folder, {"a": b"a"}), daemon=True
    )
    try:
        with Publication(folder):
            waiting.start()
            assert said.wait(60)
        waiting.join(60)
    finally:
        logging.getLogger("epctx.publish").removeHandler(handler)

    assert words == [
        f"waiting for process {os.getpid()}, which publishes into {folder}"
    ]
    assert harness.snapshot(folder) == {"a": b"a"}


@pytest.mark.parametrize("error", [FileExistsError, FileNotFoundError, BlockingIOError])
def test_an_error_of_the_work_under_the_lock_is_passed_on(tmp_path, error):
    with pytest.raises(error), files.folder_lock(tmp_path):
        raise error

    assert list(tmp_path.iterdir()) == []


def end_by_death(folder: Path) -> None:
    """Have work in a folder end by the death of the process that did it."""
    with pytest.raises(EOFError), settle_death(folder):
        raise EOFError


def test_what_a_dead_process_left_is_settled_unless_another_publishes_there(
    folder: Path,
) -> None:
    staging = folder / ".epctx-0123456789abcdef"
    staging.mkdir()
    end_by_death(folder)
    # Nobody has begun to publish.
    assert staging.exists()

    held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    end_by_death(folder)
    assert staging.exists()

    os.close(held)
    end_by_death(folder)
    assert list(folder.iterdir()) == []
