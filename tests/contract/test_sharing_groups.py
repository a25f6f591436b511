"""Entries 104 to 117: share groups driven by session options, and what loads of them share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from contract.judging_eps import options_with, registry_with
from end_to_end.engine_eps import Alpha
from end_to_end.routes import refused
from end_to_end.share_models import example, options, run, sharing, write_model
from end_to_end.sim_eps import OPENVINO, QNN, SUFFIXES, VITISAI
from end_to_end.small_models import chain, saved, snapshot

import epctx_core as epctx
from epctx_core.context.payloads import reader
from epctx_core.context.workspace import loaded_workspaces
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph, NotImplementedByProvider

EPS = [QNN, OPENVINO, VITISAI]
ROWS = {"a": 1, "b": 8, "c": 5}


def compiled(ep, folder, *names, stop=True, **entries):
    """Compile models of a folder into a group in `folder/out`, the last one as its end unless told otherwise."""
    out = folder / "out"
    out.mkdir(exist_ok=True)
    for name in names:
        last = stop and name == names[-1]
        source = write_model(ep, folder / f"{name}.onnx", ROWS[name[0]], prefix=name)
        compiler = epctx.ModelCompiler(sharing(ep, stop=last, **entries), source)
        compiler.compile_to_file(out / f"{name}_ctx.onnx")
    return out


def binary_of(model):
    """Return the file that a model's only EPContext node names."""
    (node,) = [n for n in onnx.load(model).graph.node if n.op_type == "EPContext"]
    return next(a.s.decode() for a in node.attribute if a.name == "ep_cache_context")


@pytest.fixture
def opened(monkeypatch):
    """The names of the binaries that were opened, in order."""
    names = []

    class Counted(reader.MappedFile):
        def __init__(self, descriptor, path):
            names.append(path)
            super().__init__(descriptor, path)

    monkeypatch.setattr(reader, "MappedFile", Counted)
    return names


# --- generation ------------------------------------------------------------------------------------------


@pytest.mark.entry(104, 108)
@pytest.mark.parametrize("ep", EPS)
def test_two_sessions_write_two_models_and_one_binary_named_after_the_first(ep, tmp_path):
    a, b = (write_model(ep, tmp_path / f"{n}.onnx", ROWS[n], prefix=n) for n in "ab")
    for source, stop in ((a, False), (b, True)):
        epctx.InferenceSession(source, sharing(ep, stop=stop, ep__context_enable=1)).close()

    assert sorted(snapshot(tmp_path)) == sorted(
        ["a.onnx", "b.onnx", "a_ctx.onnx", "b_ctx.onnx", f"a_{SUFFIXES[ep]}.bin"]
    )
    for name in "ab":
        model = tmp_path / f"{name}_ctx.onnx"
        assert binary_of(model) == f"a_{SUFFIXES[ep]}.bin"
        assert np.allclose(
            run(model, ROWS[name], options(ep)), run(tmp_path / f"{name}.onnx", ROWS[name]), atol=1e-4
        )
        assert not epctx.verify_model(model).findings


@pytest.mark.entry(107)
def test_a_loop_over_the_compile_api_gives_what_share_group_gives(tmp_path):
    out = compiled(QNN, tmp_path, "a", "b", "c")

    with epctx.ShareGroup(options(QNN)) as group:
        for name in "abc":
            group.add(tmp_path / f"{name}.onnx")
        report = group.finish()

    assert [f.path for f in report.outputs] == ["a_qnn.bin", "a_ctx.onnx", "b_ctx.onnx", "c_ctx.onnx"]
    assert snapshot(out) == {f.path: (tmp_path / f.path).read_bytes() for f in report.outputs}


@pytest.mark.entry(109)
@pytest.mark.parametrize("ep", EPS)
def test_a_group_that_is_never_stopped_leaves_pending_models_and_does_not_disturb_the_next(ep, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    out = compiled(ep, first, "a", "b", stop=False)

    assert sorted(snapshot(out)) == ["a_ctx.onnx", "b_ctx.onnx"]
    with refused(InvalidGraph, "share group was never stopped", folder=out):
        epctx.InferenceSession(out / "a_ctx.onnx", options(ep))
    assert any("never stopped" in f.message for f in epctx.verify_model(out / "a_ctx.onnx").findings)
    assert "never stopped" in epctx.inspect_model(out / "a_ctx.onnx").ep_contexts[0].problem
    after = compiled(ep, second, "a", "b")
    assert run(after / "b_ctx.onnx", 8, options(ep)).shape == (8, 128)
    compiled(ep, first, "c")  # the end, so that nothing is said at exit
    assert run(out / "a_ctx.onnx", 1, options(ep)).shape == (1, 128)


def test_the_interpreter_says_at_its_end_which_models_were_left_pending(tmp_path):
    source = write_model(QNN, tmp_path / "a.onnx", 1)
    script = f"""
        import epctx_core as epctx
        so = epctx.SessionOptions()
        so.add_provider("QNN")
        so.add_session_config_entry("ep.share_ep_contexts", "1")
        epctx.ModelCompiler(so, {str(source)!r}).compile_to_file()
        """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )

    assert "never stopped" in done.stderr
    assert "a_ctx.onnx" in done.stderr


@pytest.mark.entry(110)
@pytest.mark.parametrize("ep", EPS)
def test_a_group_of_one_gives_what_a_compile_without_a_group_gives(ep, tmp_path):
    out = compiled(ep, tmp_path, "a")

    epctx.ModelCompiler(options(ep), tmp_path / "a.onnx").compile_to_file()

    assert snapshot(out) == {name: (tmp_path / name).read_bytes() for name in snapshot(out)}


@pytest.mark.entry(111)
def test_two_groups_one_after_the_other_have_binaries_of_their_own(tmp_path):
    out = compiled(QNN, tmp_path, "a", "b")
    compiled(QNN, tmp_path, "c", "c2")

    assert {name: binary_of(out / f"{name}_ctx.onnx") for name in ("a", "b", "c", "c2")} == {
        "a": "a_qnn.bin", "b": "a_qnn.bin", "c": "c_qnn.bin", "c2": "c_qnn.bin",
    }  # fmt: skip
    assert run(out / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


@pytest.mark.entry(112)
@pytest.mark.parametrize("ep", EPS)
def test_the_same_model_twice_has_its_graph_in_the_binary_once(ep, tmp_path):
    source = write_model(ep, tmp_path / "a.onnx", 1)
    with epctx.ShareGroup(options(ep)) as group:
        group.add(source)
        with refused(InvalidArgument, "both be written to 'a_ctx.onnx'", folder=tmp_path):
            group.add(source)
        group.add(source, name="again")
        group.finish()

    one, again = (run(tmp_path / f"{name}_ctx.onnx", 1, options(ep)) for name in ("a", "again"))
    assert np.array_equal(one, again)
    assert (tmp_path / "a_ctx.onnx").read_bytes() == (tmp_path / "again_ctx.onnx").read_bytes()


@pytest.mark.entry(113)
def test_members_in_different_folders_are_of_different_groups(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder, stop in zip(folders, (False, True), strict=True):
        folder.mkdir()
        compiled(QNN, folder, "a", stop=stop)

    one, two = (folder / "out" for folder in folders)

    assert sorted(snapshot(two)) == ["a_ctx.onnx", "a_qnn.bin"]
    with refused(InvalidGraph, "never stopped"):
        epctx.InferenceSession(one / "a_ctx.onnx", options(QNN))
    compiled(QNN, folders[0], "b")
    assert run(one / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


@pytest.mark.entry(114)
def test_a_last_member_that_is_embedded_is_refused_and_the_group_can_still_be_ended(tmp_path):
    compiled(QNN, tmp_path, "a", stop=False)
    with pytest.raises(InvalidArgument, match=r"context_embed_mode=1 and .* contradict"):
        compiled(QNN, tmp_path, "b", ep__context_embed_mode=1)

    out = compiled(QNN, tmp_path, "b")

    assert run(out / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


@pytest.mark.entry(115, 117)
@pytest.mark.parametrize("ep", EPS)
def test_embedding_and_sharing_contradict_each_other(ep, tmp_path):
    source = write_model(ep, tmp_path / "a.onnx", 1)
    both = sharing(ep, stop=True, ep__context_embed_mode=1, ep__context_enable=1)

    words = "ep.context_embed_mode=1 and ep.share_ep_contexts=1 contradict"
    with refused(InvalidArgument, words, folder=tmp_path):
        epctx.ModelCompiler(both, source).compile_to_file()
    with refused(InvalidArgument, words, folder=tmp_path):
        epctx.InferenceSession(source, both)
    with refused(InvalidArgument, words, folder=tmp_path):
        epctx.ModelCompiler(sharing(ep), source, embed_compiled_data_into_model=True).compile_to_file()
    with refused(InvalidArgument, words, folder=tmp_path):
        epctx.ShareGroup(both)


def test_what_goes_into_no_file_is_refused(tmp_path):
    source = write_model(QNN, tmp_path / "a.onnx", 1)
    compiler = epctx.ModelCompiler(sharing(QNN), source)

    with refused(InvalidArgument, "cannot be compiled to bytes", folder=tmp_path):
        compiler.compile_to_bytes()
    compiler.set_ep_context_data_write_func(lambda _name, _data: None)
    with refused(InvalidArgument, "write callback", folder=tmp_path):
        compiler.compile_to_file()


def test_a_context_model_is_no_member(tmp_path):
    out = compiled(QNN, tmp_path, "a")

    with refused(InvalidArgument, "is a context model already", folder=tmp_path):
        epctx.ModelCompiler(sharing(QNN), out / "a_ctx.onnx").compile_to_file(out / "new_ctx.onnx")


def test_an_ep_that_knows_no_share_groups_is_named(tmp_path):
    source = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")
    compiler = epctx.ModelCompiler(
        options_with(Alpha, ep__share_ep_contexts=1), source, registry=registry_with(Alpha)
    )

    with refused(NotImplementedByProvider, "does not know share groups", folder=tmp_path, ep=Alpha.name):
        compiler.compile_to_file()


def test_a_pending_model_that_was_replaced_is_not_completed(tmp_path):
    out = compiled(QNN, tmp_path, "a", stop=False)
    other = (tmp_path / "a.onnx").read_bytes()
    pending = (out / "a_ctx.onnx").read_bytes()
    (out / "a_ctx.onnx").write_bytes(other)

    with pytest.raises(Fail, match=r"not the file that was written"):
        compiled(QNN, tmp_path, "b")
    assert sorted(snapshot(out)) == ["a_ctx.onnx"]

    (out / "a_ctx.onnx").write_bytes(pending)
    compiled(QNN, tmp_path, "b")
    assert run(out / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


def test_a_binary_that_another_model_needs_is_kept(tmp_path):
    out = compiled(QNN, tmp_path, "a", "b")
    (out / "b_ctx.onnx").rename(out / "other_ctx.onnx")
    with pytest.raises(Fail, match="belongs to"):
        compiled(QNN, tmp_path, "a", "c")
    (out / "other_ctx.onnx").rename(out / "b_ctx.onnx")

    compiled(QNN, tmp_path, "b")

    assert run(out / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


def test_a_last_session_of_which_no_ep_takes_anything_ends_the_group_without_a_model_of_its_own(tmp_path):
    out = compiled(QNN, tmp_path, "a", stop=False)
    nothing = saved(chain(["Atanh", "Acosh"]), tmp_path / "n.onnx")
    entries = {"ep__context_enable": 1, "ep__context_file_path": out / "n_ctx.onnx"}

    epctx.InferenceSession(nothing, sharing(QNN, **entries)).close()
    epctx.InferenceSession(nothing, sharing(QNN, stop=True, **entries)).close()

    assert sorted(snapshot(out)) == ["a_ctx.onnx", "a_qnn.bin"]
    assert run(out / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


def test_a_session_that_is_refused_leaves_its_group_open(tmp_path):
    source = write_model(QNN, tmp_path / "a.onnx", 1)
    epctx.InferenceSession(source, sharing(QNN, ep__context_enable=1)).close()

    with refused(Fail, "exists already", folder=tmp_path):
        epctx.InferenceSession(source, sharing(QNN, ep__context_enable=1))
    last = write_model(QNN, tmp_path / "b.onnx", 8)
    epctx.InferenceSession(last, sharing(QNN, stop=True, ep__context_enable=1)).close()

    assert run(tmp_path / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


def test_a_model_compiled_into_its_open_group_again_begins_a_new_one(tmp_path, caplog):
    compiled(QNN, tmp_path, "a", "b", stop=False)

    out = compiled(QNN, tmp_path, "a", "c")

    assert "never stopped" in caplog.text
    assert run(out / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)
    with refused(InvalidGraph, "never stopped"):
        epctx.InferenceSession(out / "b_ctx.onnx", options(QNN))


def test_members_may_be_compiled_in_threads(tmp_path):
    names = [f"b{n}" for n in range(6)]
    sources = [write_model(QNN, tmp_path / f"{name}.onnx", n + 2) for n, name in enumerate(names)]
    write_model(QNN, tmp_path / "a.onnx", 1)
    out = compiled(QNN, tmp_path, "a", stop=False)
    with ThreadPoolExecutor(6) as pool:
        list(
            pool.map(
                lambda source: epctx.ModelCompiler(sharing(QNN), source).compile_to_file(
                    out / f"{source.stem}_ctx.onnx"
                ),
                sources,
            )
        )
    compiled(QNN, tmp_path, "c")

    assert sorted(snapshot(out)) == sorted([f"{n}_ctx.onnx" for n in ("a", *names, "c")] + ["a_qnn.bin"])
    for n, name in enumerate(names):
        assert np.allclose(
            run(out / f"{name}_ctx.onnx", n + 2, options(QNN)), run(sources[n], n + 2), atol=1e-4
        )


# --- inference -------------------------------------------------------------------------------------------


@pytest.mark.entry(105)
@pytest.mark.parametrize("ep", EPS)
def test_a_second_session_takes_its_graph_from_the_first_and_opens_no_file(ep, tmp_path, opened):
    out = compiled(ep, tmp_path, "a", "b")

    with epctx.InferenceSession(out / "a_ctx.onnx", sharing(ep)):
        with epctx.InferenceSession(out / "b_ctx.onnx", sharing(ep)) as second:
            result = second.run(None, example(8))[0]
        assert len(opened) == 1
        assert len(loaded_workspaces) == 1

    assert np.array_equal(result, run(out / "b_ctx.onnx", 8, options(ep)))
    assert len(loaded_workspaces) == 0


@pytest.mark.entry(106)
def test_a_group_compiled_with_a_vendors_sharing_options_is_shared_as_well(tmp_path):
    vendor = {"enable_htp_weight_sharing": "1", "enable_htp_spill_fill_buffer": "1"}
    sources = [write_model(QNN, tmp_path / f"{name}.onnx", ROWS[name]) for name in "ab"]
    with epctx.ShareGroup(options(QNN, vendor)) as group:
        for source in sources:
            group.add(source)
        group.finish()

    entries = {"ep__share_ep_contexts": 1}
    with (
        epctx.InferenceSession(tmp_path / "a_ctx.onnx", options(QNN, vendor, **entries)),
        epctx.InferenceSession(tmp_path / "b_ctx.onnx", options(QNN, vendor, **entries)) as second,
    ):
        result = second.run(None, example(8))[0]

    assert np.allclose(result, run(sources[1], 8), atol=1e-4)


@pytest.mark.entry(116)
@pytest.mark.parametrize("ep", EPS)
def test_a_graph_that_was_taken_is_loaded_from_the_file_again(ep, tmp_path, opened):
    out = compiled(ep, tmp_path, "a", "b")

    sessions = [epctx.InferenceSession(out / "a_ctx.onnx", sharing(ep)) for _ in range(3)]
    results = [session.run(None, example(1))[0] for session in sessions]
    for session in sessions:
        session.close()

    assert all(np.array_equal(result, results[0]) for result in results)
    # The archive of VitisAI stays open for whoever comes; the others read the file again.
    assert len(opened) == (1 if ep == VITISAI else 3)
    assert len(loaded_workspaces) == 0


@pytest.mark.parametrize("ep", EPS)
def test_a_first_session_may_end_before_the_second(ep, tmp_path):
    out = compiled(ep, tmp_path, "a", "b")
    first = epctx.InferenceSession(out / "a_ctx.onnx", sharing(ep))
    second = epctx.InferenceSession(out / "b_ctx.onnx", sharing(ep))
    expected = run(out / "b_ctx.onnx", 8, options(ep))

    first.close()

    assert np.array_equal(second.run(None, example(8))[0], expected)
    second.close()
    assert len(loaded_workspaces) == 0


def test_sessions_with_other_options_or_another_file_of_that_name_do_not_meet(tmp_path, opened):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        compiled(QNN, folder, "a", "b")
    other = options(QNN, {"htp_performance_mode": "burst"}, ep__share_ep_contexts=1)

    sessions = [
        epctx.InferenceSession(here / "out" / "a_ctx.onnx", sharing(QNN)),
        epctx.InferenceSession(here / "out" / "b_ctx.onnx", other),
        epctx.InferenceSession(there / "out" / "b_ctx.onnx", sharing(QNN)),
    ]

    assert len(loaded_workspaces) == len(opened) == 3
    for session in sessions:
        session.close()


def test_a_session_that_cannot_be_made_leaves_its_graph_for_another(tmp_path):
    out = compiled(QNN, tmp_path, "a", "b")
    model = onnx.load(out / "b_ctx.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 9
    onnx.save(model, out / "wrong_ctx.onnx")

    with epctx.InferenceSession(out / "a_ctx.onnx", sharing(QNN)):
        with pytest.raises(InvalidGraph):
            epctx.InferenceSession(out / "wrong_ctx.onnx", sharing(QNN))
        with epctx.InferenceSession(out / "b_ctx.onnx", sharing(QNN)) as session:
            assert session.run(None, example(8))[0].shape == (8, 128)
