"""Two users who may both write into a folder: what one leaves there has no effect with
the rights of the other.

Only root can become another user, so most of this runs where the suite runs as root.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from compiling.publication.users import ANOTHER, NOBODY, ROOT, acting_as, as_root
from support.small_models import chain, saved

from epctx_core.context.paths import find_interrupted_copies
from epctx_core.publish.publication import Publication

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

pytestmark = pytest.mark.internal

STAGING = ".epctx-0123456789abcdef"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of root that everybody may write into, as /tmp is; pytest's own lets
    nobody else in.
    """
    folder = Path(tempfile.mkdtemp(prefix="epctx-two-users-"))
    folder.chmod(0o1777)
    (folder / "kept").write_bytes(b"kept")
    private = folder / "private"
    private.mkdir(mode=0o700)
    (private / "victim").write_bytes(b"private")
    yield folder
    shutil.rmtree(folder)


BEFORE = {"kept": b"kept", "private": None, "private/victim": b"private"}


def plant(
    folder: Path, order: dict[str, bool], file: str = "journal.json", *staged: str
) -> Path:
    """Leave a staging folder with a journal and staged files, as a killed publication
    does; return it.
    """
    staging = folder / STAGING
    for part in (staging, staging / "new", staging / "old"):
        part.mkdir(mode=0o755)
    for name in staged:
        path = staging / name
        path.parent.mkdir(mode=0o755, exist_ok=True)
        path.write_bytes(b"planted")
    (staging / file).write_text(json.dumps(order))
    return staging


ATTACKS: dict[str, tuple[dict[str, bool], str, tuple[str, ...]]] = {
    "a file is added": ({"x": False}, "journal.json", ("new/x",)),
    "a file is replaced": ({"kept": True}, "journal.json", ("new/kept",)),
    "a file is deleted": ({"kept": False}, "undo.json", ()),
    "a file is restored": ({"kept": True}, "undo.json", ("old/kept",)),
    "one is added to a private folder": (
        {"private/x": False}, "journal.json", ("new/private/x",),
    ),
    "one is replaced in a private folder": (
        {"private/victim": True}, "journal.json", ("new/private/victim",),
    ),
    "one is deleted in a private folder": (
        {"private/victim": False}, "undo.json", (),
    ),
}  # fmt: skip


@as_root
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_another_user_planted_is_neither_followed_nor_removed(
    harness: ModuleType,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    attack: str,
) -> None:
    order, file, staged = ATTACKS[attack]
    with acting_as(NOBODY):
        staging = plant(folder, order, file, *staged)
    planted = sorted(staging.rglob("*"))

    harness.finish_interrupted(folder)

    assert harness.snapshot(folder) == BEFORE
    assert sorted(staging.rglob("*")) == planted
    (warning,) = caplog.messages
    assert f"{STAGING!r} belongs to another user" in warning


@as_root
@pytest.mark.parametrize("victim", [NOBODY, ROOT])
def test_a_publication_beside_a_planted_journal_publishes_its_own_files(
    harness: ModuleType, folder: Path, victim: int
) -> None:
    with acting_as(ANOTHER):
        plant(folder, {"a_ctx.onnx": False}, "journal.json", "new/a_ctx.onnx")
    files = harness.make_files("1", ("a_ctx.onnx",), ("a_qnn.bin",))

    with acting_as(victim):
        harness.put(folder, files)

    assert harness.snapshot(folder) == {**BEFORE, **files}
    assert harness.list_staging(folder) == [STAGING]


@as_root
@pytest.mark.parametrize("user", [NOBODY, ROOT])
def test_a_user_s_own_journal_is_followed(
    harness: ModuleType, folder: Path, user: int
) -> None:
    with acting_as(user):
        plant(folder, {"x": False}, "journal.json", "new/x")

        harness.finish_interrupted(folder)

    assert harness.snapshot(folder) == {**BEFORE, "x": b"planted"}
    assert harness.list_staging(folder) == []


@as_root
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_journal_of_the_folder_s_owner_is_left_to_its_own_next_compile(
    harness: ModuleType, folder: Path, attack: str
) -> None:
    os.chown(folder, NOBODY, NOBODY)
    with acting_as(NOBODY):
        order, file, staged = ATTACKS[attack]
        plant(folder, order, file, *staged)

    harness.finish_interrupted(folder)

    assert harness.snapshot(folder) == BEFORE


def test_a_staging_folder_that_others_may_write_into_is_left_alone(
    harness: ModuleType, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    staging = plant(folder, {"x": False}, "journal.json", "new/x")
    staging.chmod(0o775)

    harness.finish_interrupted(folder)

    assert harness.snapshot(folder) == BEFORE
    assert harness.list_staging(folder) == [STAGING]
    assert f"{STAGING!r} can be written by other users (mode 775)" in caplog.text


@as_root
def test_a_folder_that_another_user_named_like_staging_is_not_removed(
    harness: ModuleType, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.chmod(0o777)  # not sticky: everybody may rename what is in it
    work = folder / "work"
    work.mkdir(mode=0o755)
    (work / "precious").write_bytes(b"precious")
    with acting_as(NOBODY):
        work.rename(folder / STAGING)

    harness.finish_interrupted(folder)

    assert (folder / STAGING / "precious").read_bytes() == b"precious"
    assert f"{STAGING!r} holds other files than an interrupted compile" in caplog.text


@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_nobody_else_may_write_into_a_staging_folder_whatever_the_umask(
    folder: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        with Publication(folder) as publication:
            publication.create("sub/x").write(b"x")
            (staging,) = filter(Path.is_dir, folder.glob(".epctx-*"))
            found = [staging, *(p for p in staging.rglob("*") if p.is_dir())]
            modes = [path.stat().st_mode & 0o777 for path in found]
            publication.commit([])
    finally:
        os.umask(before)

    assert modes == [0o755 & ~umask] * 4
    assert (folder / "sub").stat().st_mode & 0o777 == 0o777 & ~umask


@as_root
def test_bytes_in_the_staging_of_another_user_are_found_for_a_digest(
    folder: Path,
) -> None:
    with acting_as(NOBODY):
        staging = plant(folder, {"x": False}, "journal.json", "new/x")

    assert list(find_interrupted_copies(folder, "x")) == [staging / "new" / "x"]


@as_root
def test_a_report_written_beside_a_planted_journal_changes_no_other_file(
    harness: ModuleType, folder: Path
) -> None:
    model = saved(chain(["Relu"]), folder / "private" / "model.onnx")
    before = harness.snapshot(folder)
    order, _, staged = ATTACKS["one is replaced in a private folder"]
    with acting_as(NOBODY):
        plant(folder, order, "journal.json", *staged)

    said = subprocess.run(
        [sys.executable, "-m", "epctx_core", "report", model, "-o", folder / "page.html"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert said.returncode == 0, said.stderr
    assert f"{STAGING!r} belongs to another user" in said.stderr
    after = harness.snapshot(folder)
    assert after.pop("page.html")
    assert after == before


def test_a_copy_of_a_private_file_that_is_replaced_is_private_while_it_is_written(
    harness: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "kept").chmod(0o600)
    original, modes = shutil.copyfile, []

    def copy(source: Path, target: Path) -> Path:
        copied = original(source, target)
        modes.append(target.stat().st_mode & 0o777)
        return copied

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(shutil, "copyfile", copy)
    harness.put(folder, {"kept": b"new"})

    assert modes == [0o600]
    assert (folder / "kept").read_bytes() == b"new"
