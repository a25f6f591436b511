"""Publication: all or none, names, no clobbering, order of durability."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctx_core.context.paths import find_interrupted_copies
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.file_names import normalise_path
from epctx_core.publish.publication import Publication

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

pytestmark = pytest.mark.internal


class StopHere(Exception):
    """Exception of a caller's own code."""


def test_a_commit_brings_every_file_to_its_name_and_leaves_nothing_else(
    harness: ModuleType, tmp_path: Path
) -> None:
    harness.put(tmp_path, harness.OLD)

    harness.put(tmp_path, harness.NEW)

    assert harness.snapshot(tmp_path) == harness.NEW
    assert harness.list_staging(tmp_path) == []


def test_an_exception_before_the_commit_leaves_nothing(
    harness: ModuleType, tmp_path: Path
) -> None:
    harness.put(tmp_path, harness.OLD)

    with pytest.raises(StopHere), Publication(tmp_path) as publication:
        publication.create("a_qnn.bin").write(b"half a bin")
        raise StopHere

    assert harness.snapshot(tmp_path) == harness.OLD
    assert harness.list_staging(tmp_path) == []


def test_leaving_without_a_commit_discards_what_was_staged(tmp_path: Path) -> None:
    with Publication(tmp_path) as publication:
        file = publication.create("bin/x.bin")
        file.write(b"x")

    assert file.closed
    assert list(tmp_path.iterdir()) == []


def test_a_ctrl_c_between_two_renames_restores_the_old_state(
    harness: ModuleType, tmp_path: Path
) -> None:
    harness.put(tmp_path, harness.OLD)

    def interrupt(_path: Path) -> None:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        harness.at_final("replace", "b_ctx.onnx", interrupt),
    ):
        harness.put(tmp_path, harness.NEW)

    assert harness.snapshot(tmp_path) == harness.OLD
    assert harness.list_staging(tmp_path) == []


def test_a_rename_that_fails_restores_the_old_state_and_names_the_reason(
    harness: ModuleType, tmp_path: Path
) -> None:
    with (
        pytest.raises(
            Fail, match="bringing the files to their names: Input/output error"
        ) as caught,
        harness.at_final("link", "a_ctx.onnx", harness.refuse),
    ):
        harness.put(tmp_path, harness.NESTED)

    assert isinstance(caught.value.__cause__, OSError)
    assert list(tmp_path.iterdir()) == []


def test_sub_folders_are_created_and_existing_ones_are_kept(
    harness: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "other").write_bytes(b"other")

    harness.put(tmp_path, harness.NESTED)

    assert harness.snapshot(tmp_path) == {**harness.NESTED_END, "bin/other": b"other"}


def test_a_staged_file_can_be_read_back_and_patched(tmp_path: Path) -> None:
    with Publication(tmp_path) as publication:
        file = publication.create("a.bin")
        file.write(b"0123456789")
        file.seek(3)
        assert file.write(b"") == 0
        file.write(memoryview(bytearray(b"xy")))
        file.seek(0)
        content = file.read()
        publication.commit(models=[])

    assert content == b"012xy56789"
    assert (tmp_path / "a.bin").read_bytes() == content


def test_a_link_to_a_folder_is_published_through(
    harness: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    harness.put(tmp_path / "link", harness.NEW)

    assert (tmp_path / "link").is_symlink()
    assert harness.snapshot(tmp_path / "real") == harness.NEW


def test_a_link_to_a_file_is_replaced_and_what_it_leads_to_is_kept(
    tmp_path: Path,
) -> None:
    outside, folder = tmp_path / "blob", tmp_path / "folder"
    folder.mkdir()
    outside.write_bytes(b"blob")
    (folder / "m.onnx").symlink_to("../blob")

    with Publication(folder) as publication:
        publication.create("m.onnx").write(b"new")
        publication.commit(models=["m.onnx"])

    assert not (folder / "m.onnx").is_symlink()
    assert (folder / "m.onnx").read_bytes() == b"new"
    assert outside.read_bytes() == b"blob"


def test_a_link_that_leads_nowhere_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").symlink_to("nowhere")

    with Publication(tmp_path) as publication:
        publication.create("m.onnx").write(b"new")
        publication.commit(models=["m.onnx"])

    assert not (tmp_path / "m.onnx").is_symlink()
    assert (tmp_path / "m.onnx").read_bytes() == b"new"
    assert not (tmp_path / "nowhere").exists()


# --- no clobbering --------------------------------------------------------------------


def test_without_replace_an_existing_model_is_refused_before_anything_changes(
    harness: ModuleType, tmp_path: Path
) -> None:
    harness.put(tmp_path, harness.OLD)

    with pytest.raises(Fail, match="exists already") as caught:
        harness.put(tmp_path, harness.NEW, replace=False)

    assert caught.value.path == tmp_path / "a_ctx.onnx"
    assert caught.value.hint
    assert harness.snapshot(tmp_path) == harness.OLD


def test_without_replace_a_link_that_leads_nowhere_also_counts_as_existing(
    tmp_path: Path,
) -> None:
    (tmp_path / "m.onnx").symlink_to("nowhere")

    with (
        pytest.raises(Fail, match="exists already"),
        Publication(tmp_path) as publication,
    ):
        publication.create("m.onnx", replace=False)

    assert (tmp_path / "m.onnx").readlink() == Path("nowhere")


def test_without_replace_a_lost_race_takes_the_binaries_back(
    harness: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "a_qnn.bin").write_bytes(b"orphan")

    with (
        pytest.raises(Fail, match=r"b_ctx\.onnx exists already"),
        harness.at_final("link", "b_ctx.onnx", harness.take_name),
    ):
        harness.put(tmp_path, harness.NEW, replace=False)

    assert harness.snapshot(tmp_path) == {
        "a_qnn.bin": b"orphan",
        "b_ctx.onnx": harness.FOREIGN,
    }
    assert harness.list_staging(tmp_path) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_binary_whose_name_was_free_is_not_put_over_what_came_since(
    harness: ModuleType, tmp_path: Path, *, links: bool
) -> None:
    with (
        nullcontext() if links else harness.without_hard_links(),
        pytest.raises(Fail, match=r"a_qnn\.bin exists already") as caught,
        Publication(tmp_path) as publication,
    ):
        for name, data in harness.NEW.items():
            publication.create(name).write(data)
        (tmp_path / "a_qnn.bin").write_bytes(b"a stranger's")
        publication.commit(models=harness.MODELS)

    assert caught.value.hint
    assert harness.snapshot(tmp_path) == {"a_qnn.bin": b"a stranger's"}
    assert harness.list_staging(tmp_path) == []


def test_a_model_that_may_be_replaced_is_put_over_what_came_since(
    tmp_path: Path,
) -> None:
    with Publication(tmp_path) as publication:
        publication.create("m.onnx", replace=True).write(b"ours")
        (tmp_path / "m.onnx").write_bytes(b"a stranger's")
        publication.commit(models=["m.onnx"])

    assert (tmp_path / "m.onnx").read_bytes() == b"ours"


@pytest.mark.parametrize("name", ["a_qnn.bin", "a.data", "a_ctx.onnx", "b_ctx.onnx"])
@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_comes_just_before_it_would_be_replaced_stays_and_all_else_is_taken_back(
    harness: ModuleType, tmp_path: Path, name: str, *, links: bool
) -> None:
    with (
        harness.take_name_last(name, links=links),
        pytest.raises(Fail, match=f"{re.escape(name)} exists already"),
    ):
        harness.put(tmp_path, harness.NEW, replace=False)

    assert harness.snapshot(tmp_path) == {name: harness.FOREIGN}
    assert harness.list_staging(tmp_path) == []


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_a_name_taken_by_something_that_is_no_file_is_refused(
    tmp_path: Path, kind: str
) -> None:
    final = tmp_path / "m.onnx"
    if kind == "folder":
        final.mkdir()
    elif kind == "pipe":
        os.mkfifo(final)
    else:
        final.symlink_to(os.devnull)

    with (
        pytest.raises(Fail, match="not a regular file"),
        Publication(tmp_path) as publication,
    ):
        publication.create("m.onnx")
        publication.commit(models=["m.onnx"])

    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


# --- names and arguments --------------------------------------------------------------

LEAVING = [
    "../x",
    "a/../../x",
    "/etc/x",
    "C:/x",
    "C:\\x",
    "a\\..\\x",
    "",
    ".",
    "..",
    "a/",
    "a\0b",
    "\ud800",
    "n" * 256,
]


@pytest.mark.parametrize("name", [*LEAVING, ".epctx-1/new/x", "a/.EPCTX-1"])
def test_a_name_that_leaves_the_folder_or_enters_staging_is_refused(
    tmp_path: Path, name: str
) -> None:
    with (
        Publication(tmp_path) as publication,
        pytest.raises(InvalidArgument, match="can be published"),
    ):
        publication.create(name)

    assert list(find_interrupted_copies(tmp_path, name)) == []


def test_a_sub_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (folder / "bin").symlink_to(outside)

    with (
        Publication(folder) as publication,
        pytest.raises(InvalidArgument, match="a link or no folder"),
    ):
        publication.create("bin/x.bin")

    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    "names", [("a", "a"), ("a", "x/../a"), ("a", "a/b"), ("a/b", "a")]
)
def test_a_name_can_be_staged_once(tmp_path: Path, names: Sequence[str]) -> None:
    with Publication(tmp_path) as publication:
        publication.create(names[0])

        with pytest.raises(
            Fail, match=r"preparing .*(File exists|Not a directory|Is a directory)"
        ) as caught:
            publication.create(names[1])

        assert caught.value.path == tmp_path
        assert "Remove it" not in str(caught.value.hint)


def test_a_commit_returns_what_the_system_says_of_each_binary(tmp_path: Path) -> None:
    with Publication(tmp_path) as publication:
        publication.create("a.bin").write(b"a")
        publication.create("m.onnx").write(b"m")
        states = publication.commit(models=["m.onnx"])

    assert states == {"a.bin": (tmp_path / "a.bin").stat()}


@pytest.mark.parametrize("change", ["written to", "replaced"])
def test_a_binary_that_was_changed_before_the_commit_returns_is_left_out(
    harness: ModuleType, tmp_path: Path, change: str
) -> None:
    def meddle(_name: str, args: tuple[object, ...]) -> None:
        if Path(str(args[0])).name == "journal.json":
            # It goes when all files have their names.
            binary = tmp_path / "a.bin"
            if change == "replaced":
                binary.rename(tmp_path / "away")
            binary.write_bytes(b"b")
            if change == "replaced":
                shutil.copystat(tmp_path / "away", binary)

    with Publication(tmp_path) as publication, harness.intercepted(meddle, ("unlink",)):
        publication.create("a.bin").write(b"a")
        states = publication.commit(models=[])

    assert states == {}


def test_one_thread_entering_one_folder_twice_is_told_instead_of_waiting_for_itself(
    tmp_path: Path,
) -> None:
    with Publication(tmp_path) as publication:
        with pytest.raises(InvalidArgument, match="already publishing"):
            Publication(tmp_path).__enter__()
        with pytest.raises(InvalidArgument, match="already publishing"):
            publication.__enter__()

    with Publication(tmp_path):
        pass


def test_another_thread_waits_for_its_turn(tmp_path: Path) -> None:
    entered, events = threading.Event(), []

    def second() -> None:
        entered.set()
        with Publication(tmp_path):
            events.append("second")

    with Publication(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        entered.wait()
        thread.join(timeout=0.2)
        waited = thread.is_alive()
        events.append("first")
    thread.join()

    assert waited
    assert events == ["first", "second"]


@given(
    st.text(alphabet=st.sampled_from("ab./\\:\0é"), max_size=12) | st.text(max_size=300)
)
def test_a_canonical_name_stays_in_the_folder_and_has_one_spelling(name: str) -> None:
    try:
        spelled = normalise_path(name)
    except InvalidArgument:
        return

    assert normalise_path(spelled) == spelled
    assert os.path.normpath(f"/folder/{name}") == f"/folder/{spelled}"
    assert os.path.normpath(f"/folder/{spelled}").startswith("/folder/")


# --- durability -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [errno.EINVAL, errno.EIO], ids=["not supported", "broken"]
)
def test_a_folder_that_its_file_system_cannot_sync_is_accepted_and_a_broken_disk_is_not(
    harness: ModuleType, tmp_path: Path, code: int
) -> None:
    def before(_name: str, args: tuple[object, ...]) -> None:
        if Path(f"/proc/self/fd/{args[0]}").readlink() == tmp_path:
            raise OSError(code, os.strerror(code))

    with (
        nullcontext() if code == errno.EINVAL else pytest.raises(Fail),
        harness.intercepted(before, ("fsync",)),
    ):
        harness.put(tmp_path, harness.NEW)

    assert (tmp_path / harness.MODELS[0]).exists() is (code == errno.EINVAL)


def test_everything_is_on_disk_before_the_commit_point_and_before_the_journal_goes(
    harness: ModuleType, tmp_path: Path
) -> None:
    harness.put(tmp_path, harness.OLD)
    calls: list[tuple[str, str]] = []

    def before(name: str, args: tuple[object, ...]) -> None:
        first = args[0]
        path = (
            Path(f"/proc/self/fd/{first}").readlink()
            if isinstance(first, int)
            else Path(str(args[-1]))
        )
        parts = path.relative_to(tmp_path).parts
        calls.append(
            (name, "/".join("staging" if p.startswith(".epctx-") else p for p in parts))
        )

    with harness.intercepted(before, ("fsync", "replace", "unlink")):
        harness.put(tmp_path, harness.NEW)
    commit = calls.index(("replace", "staging/journal.json"))
    synced = {path for call, path in calls[:commit] if call == "fsync"}
    renames = [i for i, (call, _) in enumerate(calls) if call == "replace"]
    gone = calls.index(("unlink", "staging/journal.json"))

    staged = {f"staging/new/{name}" for name in harness.NEW}
    assert synced == {
        *staged,
        "staging/new",
        "staging/old",
        "staging",
        "staging/journal.tmp",
        "",
    }
    assert calls[commit + 1] == ("fsync", "staging")
    assert [calls[i][1] for i in renames[1:]] == [*harness.BINARIES, *harness.MODELS]
    assert ("fsync", "") in calls[renames[-1] : gone]
