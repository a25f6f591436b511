"""Publication as a host meets it that compiles into folders: what is on disk, what is
left, what the system refuses.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support.engine_eps import scripted
from support.routes import compile_with, session_with
from support.small_models import chain, example, finished, saved, snapshot, tensor

import epctx_core as epctx
from epctx_core import Fail, InvalidArgument, InvalidGraph, ModelLoadCanceled
from epctx_core.plugin import CompiledPartition, EPContextNode, hookimpl

WEIGHTS = "weights/of/m.data"
WEIGHT = example(1, (1 << 12,))


@pytest.fixture
def source(tmp_path):
    """A model of which one weight stays with the context model; outside the folder that
    is compiled into.
    """
    return saved(chain(["Relu", "Add", "Mul", "Add"]), tmp_path / "m.onnx")


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "out"
    made.mkdir()
    return made


@contextmanager
def before_calls(act, *names):
    """Run `act(name, arguments)` before each of these calls of the system; what it
    raises is what they raise.
    """

    def heard(name, original, *args, **keywords):
        act(name, args)
        return original(*args, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(os, name, partial(heard, name, getattr(os, name)))
        yield


def refusing(code, name, *, times=-1):
    """Have the system refuse a call with an error, always or the first times only."""
    left = [times]

    def refuse(_name, args):
        left[0] -= 1
        if left[0] != -1:
            raise OSError(code, os.strerror(code), *map(str, args[:1]))

    return before_calls(refuse, name)


def history(folder, act):
    """Return the calls that bring files to disk and to their names while `act` runs,
    with paths below the folder.
    """
    calls = []

    def note(name, args):
        given = args[-1] if name in {"replace", "link"} else args[0]
        path = (
            Path(f"/proc/self/fd/{given}").readlink()
            if isinstance(given, int)
            else Path(given)
        )
        parts = Path(os.path.relpath(path, folder)).parts
        calls.append(
            (name, "/".join("staging" if p.startswith(".epctx-") else p for p in parts))
        )

    with before_calls(note, "fsync", "replace", "link", "unlink", "mkdir"):
        act()
    return calls


def synced(calls):
    return {path for name, path in calls if name == "fsync"}


def compiled(source, folder, *, ep=None, **arguments):
    return compile_with(ep or scripted(), source, folder / "m_ctx.onnx", **arguments)


def result(model):
    with session_with(scripted(), model) as session:
        return session.run(None, {"x": example()})[0]


# --- on disk --------------------------------------------------------------------------


def test_sub_folders_are_on_disk_before_the_commit_and_what_lies_in_them_before_its_journal_goes(
    source, folder
):
    calls = history(
        folder,
        lambda: compiled(
            source,
            folder,
            external_initializers_file_path=WEIGHTS,
            external_initializers_size_threshold=0,
        ),
    )

    commit = calls.index(("replace", "staging/journal.json"))
    gone = calls.index(("unlink", "staging/journal.json"))
    renamed = calls.index(("link", "m_ctx.onnx"))
    assert synced(calls[:commit]) >= {
        f"staging/{side}{folder}"
        for side in ("new", "old")
        for folder in ("", "/weights", "/weights/of")
    }
    assert synced(calls[renamed:gone]) >= {"", "weights", "weights/of"}


def test_what_was_taken_back_is_on_disk_before_the_order_to_undo_goes(source, folder):
    compiled(source, folder)
    before = snapshot(folder)

    def publish():
        with (
            pytest.raises(Fail, match="bringing the files to their names"),
            refusing_last_rename(),
        ):
            compiled(saved(chain(["Add", "Mul"], seed=1), source), folder)

    calls = history(folder, publish)

    undo = calls.index(("replace", "staging/undo.json"))
    gone = calls.index(("unlink", "staging/undo.json"))
    restored = calls.index(("replace", "m_scripted.bin"), undo)
    assert "" in synced(calls[restored:gone])
    assert snapshot(folder) == before


def refusing_last_rename():
    """Have the system refuse to bring a staged context model to its name."""

    def refuse(_name, args):
        if Path(args[1]).name == "m_ctx.onnx" and "new" in Path(args[0]).parts:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return before_calls(refuse, "replace")


def test_missing_folders_are_made_and_each_is_on_disk_in_the_one_above(source, folder):
    calls = history(folder, lambda: compiled(source, folder / "a" / "b"))

    assert (folder / "a" / "b" / "m_ctx.onnx").exists()
    for made, above in (("a", ""), ("a/b", "a")):
        assert ("fsync", above) in calls[calls.index(("mkdir", made)) :]


def test_a_compile_that_fails_removes_the_folders_that_were_made_for_it(source, folder):
    def failing(_honest, writer):
        writer.payload().write(b"half a payload")
        raise LookupError("the EP's own words")

    with pytest.raises(epctx.PluginError):
        compiled(source, folder / "a" / "b", ep=scripted(get_ep_context_nodes=failing))

    assert list(folder.iterdir()) == []


def test_a_folder_that_its_maker_removes_meanwhile_is_made_again(source, folder):
    removed = []

    def remove(_name, args):
        if not removed and Path(str(args[0])).parent == folder / "a":
            removed.append(folder / "a")
            (folder / "a").rmdir()

    with before_calls(remove, "open"):
        compiled(source, folder / "a")

    assert removed
    assert (folder / "a" / "m_ctx.onnx").exists()


def open_files():
    """Return the descriptors of this process; that of the look itself has the same
    number each time.
    """
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_compiles_leave_no_file_or_folder_open(source, folder):
    compiled(source, folder)
    before = open_files()

    compiled(source, folder)
    with pytest.raises(Fail), refusing_last_rename():
        compiled(source, folder)

    assert open_files() == before


# --- what a killed compile left -------------------------------------------------------


def test_the_next_compile_into_a_folder_discards_what_a_killed_one_staged(
    source, folder
):
    staged = folder / ".epctx-0123456789abcdef" / "new"
    staged.mkdir(parents=True)
    (staged / "m_scripted.bin").write_bytes(b"half a payload")

    compiled(source, folder)

    assert sorted(snapshot(folder)) == ["m_ctx.onnx", "m_scripted.bin"]


# --- what file systems lack or refuse -------------------------------------------------


def test_without_hard_links_an_older_model_is_replaced_and_taken_back_by_copies(
    source, folder
):
    compiled(source, folder)
    older = snapshot(folder)
    newer = saved(chain(["Add", "Mul"], seed=1), source)

    with refusing(errno.ENOTSUP, "link"):
        with pytest.raises(Fail), refusing_last_rename():
            compiled(newer, folder)
        assert snapshot(folder) == older
        compiled(newer, folder)

    np.testing.assert_array_equal(result(folder / "m_ctx.onnx"), result(newer))


def test_a_disk_that_refuses_a_hard_link_is_no_file_system_without_them(source, folder):
    compiled(source, folder)
    before = snapshot(folder)

    with (
        pytest.raises(
            Fail, match="bringing the files to their names: Input/output error"
        ),
        refusing(errno.EIO, "link"),
    ):
        compiled(source, folder)

    assert snapshot(folder) == before


def test_without_hard_links_a_free_name_is_claimed_by_a_rename(source, folder):
    with refusing(errno.ENOTSUP, "link"):
        compiled(source, folder)

    assert sorted(snapshot(folder)) == ["m_ctx.onnx", "m_scripted.bin"]


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("é" + "n" * 253, True),
        ("é" + "n" * 254, False),
        ("/".join(["n" * 204] * 5), True),
        ("/".join(["n" * 204] * 4 + ["n" * 205]), False),
    ],
    ids=["255 bytes", "256 bytes", "1024 bytes in folders", "1025 bytes in folders"],
)
def test_a_name_may_have_as_many_bytes_as_file_systems_allow(
    source, folder, name, fits
):
    def publish():
        compiled(
            source,
            folder,
            external_initializers_file_path=name,
            external_initializers_size_threshold=0,
        )

    if fits:
        publish()
    else:
        with pytest.raises(InvalidArgument, match="too long"):
            publish()

    assert (folder / name).exists() is fits if fits else list(folder.iterdir()) == []


# --- pieces ---------------------------------------------------------------------------


def with_external_weight(folder):
    """A model whose weight lies in a file, so that it is mapped."""
    model = finished(
        [helper.make_node("Add", ["x", "w"], ["y"], name="n")],
        [tensor("x", shape=WEIGHT.shape)],
        [tensor("y", shape=WEIGHT.shape)],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    onnx.save_model(
        model,
        folder / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    return folder / "m.onnx"


class Describing(scripted()):
    """Puts its one weight between a text and its model."""

    @hookimpl
    def get_ep_context_nodes(self, writer):
        ((partition, model),) = self._compiled
        payload = writer.payload()
        payload.write(b"head")
        self.before_piece()
        payload.write_tensor(partition.weights["w"])
        self.before_piece()
        payload.write(model)
        self.before_piece()
        return [EPContextNode(partition, payload)]

    def before_piece(self):
        """Hook for a test."""

    @hookimpl
    def load_context(self, nodes, reader):
        (view,) = (reader.payload(node).view for node in nodes)
        return [CompiledPartition(self._runnable(view[4 + WEIGHT.nbytes :]))]


def test_what_an_ep_writes_after_a_mapped_weight_stands_behind_it(tmp_path, folder):
    source = with_external_weight(tmp_path)

    compiled(source, folder, ep=Describing)

    written = (folder / "m_scripted.bin").read_bytes()
    assert written.startswith(b"head" + WEIGHT.tobytes())
    assert (
        onnx.load_from_string(written[4 + WEIGHT.nbytes :]).graph.node[0].op_type
        == "Add"
    )


def test_a_disk_that_refuses_a_copy_of_a_mapped_weight_is_named(tmp_path, folder):
    with (
        pytest.raises(Fail, match="writing a file: No space left") as caught,
        refusing_copies(),
    ):
        compiled(with_external_weight(tmp_path), folder, ep=Describing)

    assert "space" in caught.value.hint
    assert list(folder.iterdir()) == []


def test_a_weights_file_that_changes_while_it_is_copied_is_to_blame(tmp_path, folder):
    source = with_external_weight(tmp_path)

    with (
        pytest.raises(InvalidGraph, match=r"m\.data"),
        refusing_copies(lambda: os.utime(tmp_path / "m.data", (1, 1))),
    ):
        compiled(source, folder, ep=Describing)

    assert list(folder.iterdir()) == []


def refusing_copies(meanwhile=lambda: None):
    """Have the disk be full for the first bytes that are copied within the system."""
    state = []

    def refuse(name, _args):
        if name == "copy_file_range" or state == ["copying"]:
            state.append("copying")
            meanwhile()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return before_calls(refuse, "copy_file_range", "write")


@pytest.mark.parametrize("piece", [1, 2], ids=["a mapped weight", "bytes"])
def test_whoever_wants_a_compile_to_stop_waits_for_one_piece_at_most(
    tmp_path, folder, piece
):
    source = with_external_weight(tmp_path)
    options, registry = epctx.SessionOptions(), epctx.Registry(entry_points=False)
    reached = []

    class Stopped(Describing):
        def before_piece(self):
            reached.append("piece")
            options.set_load_cancellation_flag(len(reached) == piece)

    registry.register(Stopped)
    options.add_provider(Stopped.name)
    with pytest.raises(ModelLoadCanceled):
        epctx.ModelCompiler(options, source, registry=registry).compile_to_file(
            folder / "m_ctx.onnx"
        )

    assert len(reached) == piece
    assert list(folder.iterdir()) == []
