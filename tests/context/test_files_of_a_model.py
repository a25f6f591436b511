"""Names out of models open files of the model's folder, and nothing else."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest
from context.loading import beside, context_model, loaded, node, payload_of
from hypothesis import given
from hypothesis import strategies as st

from epctx_core.errors import InvalidGraph


@pytest.fixture
def folder(tmp_path):
    """A model's folder with a file, a folder with a file, and a secret outside."""
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    (inside / "a.bin").write_bytes(b"beside")
    (inside / "sub" / "b.bin").write_bytes(b"below")
    (tmp_path / "secret.bin").write_bytes(b"secret")
    return inside


REFUSED = (
    "no file name in ep_cache_context.",
    "which no file system takes.",
    "which is an absolute path.",
    "which leaves the model's folder.",
    "which is a folder.",
)
"""End of a message if nobody looked for the file."""


def naming(name):
    return context_model(node("n", cache=name))


def content(folder, name, model=None):
    """Return what a context model in a folder gets as the file of a name."""
    path = model or folder / "m_ctx.onnx"
    path.write_bytes(naming(name).SerializeToString())
    return payload_of(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.bin", b"beside"),
        ("./a.bin", b"beside"),
        ("sub/b.bin", b"below"),
        ("sub/../a.bin", b"beside"),
        ("./sub//b.bin", b"below"),
        ("sub/../sub/b.bin", b"below"),
        ("missing/../a.bin", b"beside"),
    ],
)
def test_names_that_stay_in_the_folder_are_opened(folder, name, expected):
    assert content(folder, name) == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/etc/passwd", "an absolute path"),
        ("//server/share/a.bin", "an absolute path"),
        ("\\\\server\\share\\a.bin", "an absolute path"),
        ("\\a.bin", "an absolute path"),
        ("C:\\a.bin", "an absolute path"),
        ("c:/a.bin", "an absolute path"),
        ("..", "leaves the model's folder"),
        ("../secret.bin", "leaves the model's folder"),
        ("sub/../../secret.bin", "leaves the model's folder"),
        ("./../model/../secret.bin", "leaves the model's folder"),
        ("..\\secret.bin", "leaves the model's folder"),
        ("sub\\..\\..\\secret.bin", "leaves the model's folder"),
        (".", "a folder"),
        ("sub/", "a folder"),
        ("sub/..", "a folder"),
        ("sub\\", "a folder"),
        ("sub", "not a regular file"),
        ("a\0.bin", "no file system takes"),
        ("n" * 5000, "no file system takes"),
        ("n" * 300, "cannot be opened|missing"),
        ("a.bin/x", "cannot be opened|missing"),
        ("missing.bin", "missing"),
        ("A.bin.not", "missing"),
    ],
)
def test_other_names_are_refused(folder, name, said):
    with pytest.raises(
        InvalidGraph, match=f"^'n' names the context binary .*(?:{said})"
    ) as caught:
        content(folder, name)

    assert caught.value.node == "n"
    assert len(str(caught.value)) < 2000


def test_an_empty_name_is_none(folder):
    with pytest.raises(InvalidGraph, match=r"'n' has .*no file name"):
        content(folder, "")


def test_an_absolute_name_is_refused_even_where_it_stays_inside(folder):
    with pytest.raises(InvalidGraph, match="an absolute path"):
        content(folder, str(folder / "a.bin"))


def test_a_missing_file_is_said_to_belong_beside_the_model(folder):
    with pytest.raises(InvalidGraph, match="which is missing") as caught:
        content(folder, "gone.bin")

    assert caught.value.path == folder / "gone.bin"
    assert str(folder) in caught.value.hint


@pytest.mark.parametrize(
    "target", ["../secret.bin", "../../model/../secret.bin", "absolute"]
)
def test_a_link_that_leaves_is_refused(folder, target):
    outside = folder.parent / "secret.bin"
    (folder / "link.bin").symlink_to(
        outside if target == "absolute" else os.path.relpath(outside, folder)
    )

    with pytest.raises(InvalidGraph, match="a link that leaves the model's folder"):
        content(folder, "link.bin")


def test_a_folder_that_is_a_link_out_is_refused(folder):
    (folder / "out").symlink_to(folder.parent)

    with pytest.raises(InvalidGraph, match="a link that leaves the model's folder"):
        content(folder, "out/secret.bin")


def test_dots_are_resolved_by_name_not_through_a_link(folder):
    (folder / "out").symlink_to(folder.parent)

    assert content(folder, "out/../a.bin") == b"beside"


def test_a_folder_beside_with_the_same_beginning_is_outside(folder):
    other = folder.with_name("model2")
    other.mkdir()
    (other / "a.bin").write_bytes(b"other")
    (folder / "link.bin").symlink_to(other / "a.bin")

    with pytest.raises(InvalidGraph, match="a link that leaves"):
        content(folder, "link.bin")


def test_a_link_inside_the_folder_is_followed(folder):
    (folder / "link.bin").symlink_to("sub/b.bin")

    assert content(folder, "link.bin") == b"below"


def test_a_link_to_itself_is_refused(folder):
    (folder / "loop.bin").symlink_to("loop2.bin")
    (folder / "loop2.bin").symlink_to("loop.bin")

    with pytest.raises(InvalidGraph, match=r"cannot be opened|missing"):
        content(folder, "loop.bin")


def test_a_dangling_link_is_missing(folder):
    (folder / "gone.bin").symlink_to("nothing.bin")

    with pytest.raises(InvalidGraph, match="missing"):
        content(folder, "gone.bin")


@pytest.mark.parametrize(
    ("name", "shut"), [("a.bin", "a.bin"), ("sub/b.bin", "sub")], ids=["file", "folder"]
)
def test_a_file_that_this_user_may_not_read_is_not_one_to_fetch_again(
    folder, name, shut
):
    folder.joinpath("m_ctx.onnx").write_bytes(naming(name).SerializeToString())
    # Folders of the test's own are for its user alone.
    with tempfile.TemporaryDirectory() as copied:
        place = Path(shutil.copytree(folder, copied, dirs_exist_ok=True)).resolve()
        place.chmod(0o755)
        place.joinpath(shut).chmod(0)
        with (
            as_another_user(),
            pytest.raises(InvalidGraph, match="Permission denied") as caught,
        ):
            payload_of(place / "m_ctx.onnx")
        place.joinpath(shut).chmod(0o700)

    assert Path(caught.value.path) == place / name
    assert caught.value.hint == (
        "Let this user read the file and search the folders on its way (chmod), or "
        "give them to this user (chown)."
    )


@contextlib.contextmanager
def as_another_user():
    """Where this is root, who may read anything: be somebody else."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_a_pipe_is_refused_without_waiting_for_a_writer(folder):
    os.mkfifo(folder / "pipe.bin")

    with pytest.raises(InvalidGraph, match="not a regular file"):
        content(folder, "pipe.bin")


def test_a_socket_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s.bin")

        with pytest.raises(InvalidGraph, match=r"cannot be opened|not a regular file"):
            content(folder, "s.bin")


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_refusing_leaves_no_file_open(folder):
    os.mkfifo(folder / "pipe.bin")
    # Files of earlier tests that are garbage may be closed at any time.
    gc.collect()
    before = open_files()

    for name in ("pipe.bin", "sub"):
        with pytest.raises(InvalidGraph):
            content(folder, name)

    assert open_files() == before


def test_a_hard_link_is_a_file_like_any_other(folder):
    os.link(folder / "a.bin", folder / "hard.bin")

    assert content(folder, "hard.bin") == b"beside"


def test_a_model_in_a_cache_of_links_finds_its_files(tmp_path):
    # As in a Hugging Face cache: snapshots hold links into a folder of blobs.
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for name, blob in (("m_ctx.onnx", "111"), ("m_qnn.bin", "222")):
        (blobs / blob).write_bytes(name.encode())
        (snapshot / name).symlink_to(f"../../blobs/{blob}")

    assert content(snapshot, "m_qnn.bin", snapshot / "m_ctx.onnx") == b"m_qnn.bin"


def test_a_model_behind_a_link_finds_files_beside_the_real_one(folder, tmp_path):
    (folder / "m.onnx").write_bytes(b"")
    other_folder = tmp_path / "elsewhere"
    other_folder.mkdir()
    (other_folder / "m.onnx").symlink_to(folder / "m.onnx")

    assert content(other_folder, "a.bin", other_folder / "m.onnx") == b"beside"


def test_a_folder_behind_a_link_is_the_models_folder(folder, tmp_path):
    (tmp_path / "alias").symlink_to(folder)

    assert content(tmp_path / "alias", "sub/b.bin") == b"below"


def test_the_folder_may_be_relative(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)

    assert content(Path("model"), "a.bin") == b"beside"
    monkeypatch.chdir(folder)
    assert content(Path(), "a.bin") == b"beside"


def test_the_root_may_be_a_models_folder():
    with pytest.raises(InvalidGraph, match="missing"):
        payload_of(naming("no-such-file-of-any-model.bin"), beside("/m_ctx.onnx"))


@given(
    st.text(st.characters(codec="utf-8"), max_size=30)
    | st.text("./\\:Cx\0", max_size=8)
)
def test_any_name_is_looked_for_in_the_folder_or_is_refused_by_itself(
    tmp_path_factory, name
):
    inside = tmp_path_factory.mktemp("top") / "model"
    inside.mkdir()

    with pytest.raises(InvalidGraph) as caught:
        content(inside, name)

    if "which is missing" in caught.value.message:
        assert caught.value.path == inside / os.path.normpath(name)
        assert ".." not in Path(caught.value.path).parts
        assert Path(caught.value.path).is_relative_to(inside)
    else:
        assert caught.value.message.endswith(REFUSED)


@given(
    st.lists(
        st.sampled_from(["..", ".", "sub", "a.bin", "link", "\\", "b.bin", "/", "C:"]),
        max_size=5,
    )
)
def test_no_combination_of_parts_reaches_the_secret(tmp_path_factory, parts):
    top = tmp_path_factory.mktemp("top")
    inside = top / "model"
    (inside / "sub").mkdir(parents=True)
    (top / "a.bin").write_bytes(b"secret")
    (top / "b.bin").write_bytes(b"secret")
    (inside / "a.bin").write_bytes(b"open")
    (inside / "sub" / "b.bin").write_bytes(b"open")
    (inside / "link").symlink_to("..")
    try:
        found = content(inside, "/".join(parts))
    except InvalidGraph:
        return

    assert found == b"open"


def exchanging(folder, name, monkeypatch, exchange):
    """Load a name with `os.open` exchanged once, by the time that the EP asks for
    it.
    """
    path = folder / "m_ctx.onnx"
    path.write_bytes(naming(name).SerializeToString())

    def look(given):
        opening = os.open

        def exchanged(*arguments, **keywords):
            monkeypatch.undo()
            return exchange(lambda: opening(*arguments, **keywords))

        monkeypatch.setattr(os, "open", exchanged)
        given.payload()

    with loaded(path, look):
        raise AssertionError("it was opened")


def two_folders(tmp_path):
    inside, outside = tmp_path / "model" / "sub", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
        (folder / "a.bin").write_bytes(b"x")
    return inside, outside


def test_a_file_that_a_link_put_in_between_leads_to_is_not_opened(
    tmp_path, monkeypatch
):
    inside, outside = two_folders(tmp_path)

    def exchange(open_it):
        inside.rename(tmp_path / "gone")
        inside.symlink_to(outside)
        return open_it()

    with pytest.raises(InvalidGraph, match=r"names the context binary 'sub/a\.bin'"):
        exchanging(inside.parent, "sub/a.bin", monkeypatch, exchange)


def test_a_folder_that_is_a_link_for_no_longer_than_the_opening_takes_leads_nowhere(
    tmp_path, monkeypatch
):
    inside, outside = two_folders(tmp_path)

    def exchange(open_it):
        inside.rename(tmp_path / "gone")
        inside.symlink_to(outside)
        try:
            return open_it()
        finally:
            inside.unlink()
            (tmp_path / "gone").rename(inside)

    with pytest.raises(InvalidGraph, match=r"names the context binary 'sub/a\.bin'"):
        exchanging(inside.parent, "sub/a.bin", monkeypatch, exchange)


def test_a_link_that_becomes_a_folder_while_it_is_followed_is_refused(
    tmp_path, monkeypatch
):
    (tmp_path / "sub").symlink_to(tmp_path)
    (tmp_path / "a.bin").write_bytes(b"x")
    (tmp_path / "m_ctx.onnx").write_bytes(naming("sub/a.bin").SerializeToString())

    def look(given):
        def read_too_late(path, **_keywords):
            raise OSError(errno.EINVAL, "Invalid argument", os.fspath(path))

        monkeypatch.setattr(os, "readlink", read_too_late)
        given.payload()

    with (
        pytest.raises(
            InvalidGraph,
            match=r"'sub/a\.bin', which cannot be opened: .*Invalid argument",
        ),
        loaded(tmp_path / "m_ctx.onnx", look),
    ):
        pass
