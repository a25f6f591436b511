"""Entries 104 to 117: share groups driven by session options; what loads of them share:
test_sharing_loads.py.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from contract.sharing import EPS, ROWS, compiled
from epctx_sim_qnn import QnnProvider
from support import share_models
from support.engine_eps import Alpha
from support.routes import refused
from support.share_models import options, run, sharing, write_model
from support.sim_eps import QNN, SUFFIXES, VITISAI, with_eps
from support.small_models import chain, saved, snapshot
from support.strange_files import STRANGE
from support.validating_eps import options_with, registry_with

import epctx_core as epctx
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplementedByProvider,
)
from epctx_core.plugin import hookimpl


def binary_of(model):
    """Return the file that a model's only EPContext node names."""
    (node,) = [n for n in onnx.load(model).graph.node if n.op_type == "EPContext"]
    return next(a.s.decode() for a in node.attribute if a.name == "ep_cache_context")


@pytest.mark.entry(104, 108)
@pytest.mark.parametrize("ep", EPS)
def test_two_sessions_write_two_models_and_one_binary_named_after_the_first(
    ep, tmp_path
):
    a, b = (write_model(ep, tmp_path / f"{n}.onnx", ROWS[n], prefix=n) for n in "ab")
    for source, stop in ((a, False), (b, True)):
        epctx.InferenceSession(
            source, sharing(ep, stop=stop, ep__context_enable=1)
        ).close()

    assert sorted(snapshot(tmp_path)) == sorted(
        ["a.onnx", "b.onnx", "a_ctx.onnx", "b_ctx.onnx", f"a_{SUFFIXES[ep]}.bin"]
    )
    for name in "ab":
        model = tmp_path / f"{name}_ctx.onnx"
        assert binary_of(model) == f"a_{SUFFIXES[ep]}.bin"
        assert np.allclose(
            run(model, ROWS[name], options(ep)),
            run(tmp_path / f"{name}.onnx", ROWS[name]),
            atol=1e-4,
        )
        assert not epctx.verify_model(model).findings


@pytest.mark.entry(107)
def test_a_loop_over_the_compile_api_gives_what_share_group_gives(tmp_path):
    out = compiled(QNN, tmp_path, "a", "b", "c")

    with epctx.ShareGroup() as shared:
        for name in "abc":
            shared.compile(tmp_path / f"{name}.onnx", options(QNN))
    report = shared.report

    assert [f.path for f in report.outputs] == [
        "a_qnn.bin",
        "a_ctx.onnx",
        "b_ctx.onnx",
        "c_ctx.onnx",
    ]
    assert snapshot(out) == {
        f.path: (tmp_path / f.path).read_bytes() for f in report.outputs
    }


@pytest.mark.entry(109)
@pytest.mark.parametrize("ep", EPS)
def test_a_group_that_is_never_stopped_leaves_pending_models_and_does_not_disturb_the_next(
    ep, tmp_path
):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    out = compiled(ep, first, "a", "b", stop=False)

    assert sorted(snapshot(out)) == ["a_ctx.onnx", "b_ctx.onnx"]
    with refused(InvalidGraph, "share group was never stopped", folder=out):
        epctx.InferenceSession(out / "a_ctx.onnx", options(ep))
    assert any(
        "never stopped" in f.message
        for f in epctx.verify_model(out / "a_ctx.onnx").findings
    )
    assert (
        "never stopped"
        in epctx.inspect_model(out / "a_ctx.onnx").ep_contexts[0].problem
    )
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
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "never stopped" in done.stderr
    assert "a_ctx.onnx" in done.stderr


@pytest.mark.entry(110)
@pytest.mark.parametrize("ep", EPS)
def test_a_group_of_one_gives_what_a_compile_without_a_group_gives(ep, tmp_path):
    out = compiled(ep, tmp_path, "a")

    epctx.ModelCompiler(options(ep), tmp_path / "a.onnx").compile_to_file()

    assert snapshot(out) == {
        name: (tmp_path / name).read_bytes() for name in snapshot(out)
    }


@pytest.mark.entry(111)
def test_two_groups_one_after_the_other_have_binaries_of_their_own(tmp_path):
    out = compiled(QNN, tmp_path, "a", "b")
    compiled(QNN, tmp_path, "c", "c2")

    assert {
        name: binary_of(out / f"{name}_ctx.onnx") for name in ("a", "b", "c", "c2")
    } == {
        "a": "a_qnn.bin",
        "b": "a_qnn.bin",
        "c": "c_qnn.bin",
        "c2": "c_qnn.bin",
    }
    assert run(out / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


@pytest.mark.entry(112)
@pytest.mark.parametrize("ep", EPS)
def test_the_same_model_twice_has_its_graph_in_the_binary_once(ep, tmp_path):
    source = write_model(ep, tmp_path / "a.onnx", 1)
    with epctx.ShareGroup() as shared:
        shared.compile(source, options(ep))
        with refused(
            InvalidArgument, "both be written to 'a_ctx.onnx'", folder=tmp_path
        ):
            shared.compile(source, options(ep))
        shared.compile(source, options(ep), name="again")

    one, again = (
        run(tmp_path / f"{name}_ctx.onnx", 1, options(ep)) for name in ("a", "again")
    )
    assert np.array_equal(one, again)
    assert (tmp_path / "a_ctx.onnx").read_bytes() == (
        tmp_path / "again_ctx.onnx"
    ).read_bytes()


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
def test_a_last_member_that_is_embedded_is_refused_and_the_group_can_still_be_ended(
    tmp_path,
):
    compiled(QNN, tmp_path, "a", stop=False)
    with pytest.raises(
        InvalidArgument, match=r"context_embed_mode=1 and .* contradict"
    ):
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
        epctx.ModelCompiler(
            sharing(ep), source, embed_compiled_data_into_model=True
        ).compile_to_file()
    with epctx.ShareGroup() as shared:
        with refused(InvalidArgument, words, folder=tmp_path):
            shared.compile(source, sharing(ep, ep__context_embed_mode=1))
        shared.discard()


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
        epctx.ModelCompiler(sharing(QNN), out / "a_ctx.onnx").compile_to_file(
            out / "new_ctx.onnx"
        )


def test_an_ep_that_knows_no_share_groups_is_named(tmp_path):
    source = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")
    compiler = epctx.ModelCompiler(
        options_with(Alpha, ep__share_ep_contexts=1),
        source,
        registry=registry_with(Alpha),
    )

    with refused(
        NotImplementedByProvider,
        "does not know share groups",
        folder=tmp_path,
        ep=Alpha.name,
    ):
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


@pytest.mark.parametrize("kind", STRANGE)
def test_a_pending_model_that_could_not_be_read_to_its_end_is_not_completed(
    kind, tmp_path
):
    out = compiled(QNN, tmp_path, "a", stop=False)
    (out / "a_ctx.onnx").unlink()
    STRANGE[kind](out / "a_ctx.onnx")

    with pytest.raises(Fail, match=r"a_ctx\.onnx' cannot be completed"):
        compiled(QNN, tmp_path, "b")


def test_a_binary_that_another_model_needs_is_kept(tmp_path):
    out = compiled(QNN, tmp_path, "a", "b")
    (out / "b_ctx.onnx").rename(out / "other_ctx.onnx")
    with pytest.raises(Fail, match="belongs to"):
        compiled(QNN, tmp_path, "a", "c")
    (out / "other_ctx.onnx").rename(out / "b_ctx.onnx")

    compiled(QNN, tmp_path, "b")

    assert run(out / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


def test_a_last_session_of_which_no_ep_takes_anything_ends_the_group_without_a_model_of_its_own(
    tmp_path, caplog
):
    out = compiled(QNN, tmp_path, "a", stop=False)
    nothing = saved(chain(["Atanh", "Acosh"]), tmp_path / "n.onnx")
    entries = {"ep__context_enable": 1, "ep__context_file_path": out / "n_ctx.onnx"}

    epctx.InferenceSession(nothing, sharing(QNN, **entries)).close()
    epctx.InferenceSession(nothing, sharing(QNN, stop=True, **entries)).close()

    assert sorted(snapshot(out)) == ["a_ctx.onnx", "a_qnn.bin"]
    assert [m for m in caplog.messages if "no context model to write" in m] == [
        "nothing was compiled of n.onnx, so there is no context model to write."
    ] * 2
    assert run(out / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


def test_a_session_that_is_refused_leaves_its_group_open(tmp_path):
    source = write_model(QNN, tmp_path / "a.onnx", 1)
    epctx.InferenceSession(source, sharing(QNN, ep__context_enable=1)).close()

    with refused(Fail, "exists already", folder=tmp_path):
        epctx.InferenceSession(source, sharing(QNN, ep__context_enable=1))
    last = write_model(QNN, tmp_path / "b.onnx", 8)
    epctx.InferenceSession(last, sharing(QNN, stop=True, ep__context_enable=1)).close()

    assert run(tmp_path / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


def test_a_session_that_reads_its_model_again_since_it_was_replaced_is_of_the_group_that_is_open(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        share_models, "WIDTH", 384
    )  # large enough to be checked while EPs are asked
    folders = [tmp_path / name for name in ("damaged", "whole")]
    for seed, folder in enumerate(folders):
        source = write_model(QNN, tmp_path / "source.onnx", 1, seed=seed)
        compiler = epctx.ModelCompiler(epctx.SessionOptions(), source, None, "m.data")
        compiler.compile_to_file(folder / "m.onnx")
    damaged, whole = folders
    content = bytearray((damaged / "m.data").read_bytes())
    content[1000] ^= 1
    (damaged / "m.data").write_bytes(content)
    asked = []

    class Replacing(QnnProvider):
        @hookimpl
        def get_capability(self, graph):
            asked.append(graph)
            for file in whole.iterdir() if len(asked) == 1 else ():
                file.replace(damaged / file.name)
            return super().get_capability(graph)

    registry = registry_with(Replacing)
    last = write_model(QNN, damaged / "last.onnx", 8)
    for source, stop in ((damaged / "m.onnx", False), (last, True)):
        chosen = sharing(QNN, stop=stop, ep__context_enable=1)
        epctx.InferenceSession(source, chosen, registry=registry).close()

    assert len(asked) == 3
    expected = run(damaged / "m.onnx", 1)
    assert np.allclose(
        run(damaged / "m_ctx.onnx", 1, options(QNN)), expected, atol=1e-3
    )
    assert binary_of(damaged / "m_ctx.onnx") == binary_of(damaged / "last_ctx.onnx")


def test_a_model_compiled_into_its_open_group_again_begins_a_new_one(tmp_path, caplog):
    compiled(QNN, tmp_path, "a", "b", stop=False)

    out = compiled(QNN, tmp_path, "a", "c")

    assert "never stopped" in caplog.text
    assert run(out / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)
    with refused(InvalidGraph, "never stopped"):
        epctx.InferenceSession(out / "b_ctx.onnx", options(QNN))


def test_members_may_be_compiled_in_threads(tmp_path):
    names = [f"b{n}" for n in range(6)]
    sources = [
        write_model(QNN, tmp_path / f"{name}.onnx", n + 2)
        for n, name in enumerate(names)
    ]
    write_model(QNN, tmp_path / "a.onnx", 1)
    out = compiled(QNN, tmp_path, "a", stop=False)
    with ThreadPoolExecutor(6) as pool:
        list(
            pool.map(
                lambda source: epctx.ModelCompiler(
                    sharing(QNN), source
                ).compile_to_file(out / f"{source.stem}_ctx.onnx"),
                sources,
            )
        )
    compiled(QNN, tmp_path, "c")

    assert sorted(snapshot(out)) == sorted(
        [f"{n}_ctx.onnx" for n in ("a", *names, "c")] + ["a_qnn.bin"]
    )
    for n, name in enumerate(names):
        assert np.allclose(
            run(out / f"{name}_ctx.onnx", n + 2, options(QNN)),
            run(sources[n], n + 2),
            atol=1e-4,
        )


@pytest.mark.parametrize("ep", EPS)
def test_of_a_member_that_failed_nothing_is_in_the_binary(ep, tmp_path):
    out = compiled(ep, tmp_path, "a", stop=False)
    with pytest.raises(Fail, match="full"):
        compile_member(ep, tmp_path, "b", seed=1, progress=fail)
    compile_member(ep, tmp_path, "c", stop=True)
    after_a_failure = snapshot(out)

    compiled(ep, tmp_path, "a", stop=False)
    compile_member(ep, tmp_path, "c", stop=True)

    assert after_a_failure == snapshot(out)
    assert run(out / "c_ctx.onnx", 5, options(ep)).shape == (5, 128)


def fail(stage, _done, _total):
    """Fail, as progress of a compile, once the EPs have done their part."""
    if stage == "write":
        raise Fail("the disk is full")


def compile_member(ep, folder, name, *, stop=False, seed=0, progress=None):
    """Compile one model into the open group of `folder/out`."""
    source = write_model(
        ep, folder / f"{name}.onnx", ROWS[name[0]], seed=seed, prefix=name
    )
    compiler = epctx.ModelCompiler(sharing(ep, stop=stop), source, progress=progress)
    compiler.compile_to_file(folder / "out" / f"{name}_ctx.onnx")


@pytest.mark.parametrize("ep", EPS)
def test_a_member_that_failed_may_be_compiled_again_from_weights_that_were_written_anew(
    ep, tmp_path
):
    out = compiled(ep, tmp_path, "a", stop=False)
    write_model(ep, tmp_path / "b.onnx", 8, prefix="b")
    model = onnx.load(tmp_path / "b.onnx")

    def save():
        onnx.save(
            model,
            tmp_path / "b.onnx",
            save_as_external_data=True,
            location="b.weights",
            size_threshold=0,
        )

    save()
    with pytest.raises(Fail, match="full"):
        epctx.ModelCompiler(
            sharing(ep), tmp_path / "b.onnx", progress=fail
        ).compile_to_file(out / "b_ctx.onnx")
    content = (tmp_path / "b.weights").read_bytes()
    (tmp_path / "b.weights").write_bytes(content)
    epctx.ModelCompiler(sharing(ep), tmp_path / "b.onnx").compile_to_file(
        out / "b_ctx.onnx"
    )
    compile_member(ep, tmp_path, "c", stop=True)

    assert run(out / "b_ctx.onnx", 8, options(ep)).shape == (8, 128)


def test_a_binary_that_only_a_failed_member_needs_is_not_written(tmp_path):
    qnn, vitisai = (
        write_model(ep, tmp_path / f"{ep}.onnx", 1) for ep in (QNN, VITISAI)
    )
    both = [with_eps(VITISAI, QNN) for _ in range(3)]
    for mixed in both:
        mixed.add_session_config_entry("ep.share_ep_contexts", "1")
    both[2].add_session_config_entry("ep.stop_share_ep_contexts", "1")
    epctx.ModelCompiler(both[0], qnn).compile_to_file(tmp_path / "a_ctx.onnx")
    with pytest.raises(Fail, match="full"):
        epctx.ModelCompiler(both[1], vitisai, progress=fail).compile_to_file(
            tmp_path / "b_ctx.onnx"
        )

    report = epctx.ModelCompiler(both[2], qnn).compile_to_file(tmp_path / "c_ctx.onnx")

    assert [file.path for file in report.outputs] == ["a_qnn.bin", "c_ctx.onnx"]
    assert sorted(path.name for path in tmp_path.glob("*.bin")) == ["a_qnn.bin"]


def test_a_first_member_that_fails_names_no_binary(tmp_path):
    (tmp_path / "out").mkdir()
    first = sharing(QNN)

    def join_meanwhile(stage, _done, _total):
        if stage == "compile" and not snapshot(tmp_path / "out"):
            compile_member(QNN, tmp_path, "b")
            first.set_load_cancellation_flag(True)

    source = write_model(QNN, tmp_path / "a.onnx", 1)
    compiler = epctx.ModelCompiler(first, source, progress=join_meanwhile)
    with pytest.raises(epctx.ModelLoadCanceled):
        compiler.compile_to_file(tmp_path / "out" / "a_ctx.onnx")
    compile_member(QNN, tmp_path, "c", stop=True)

    assert sorted(snapshot(tmp_path / "out")) == [
        "b_ctx.onnx",
        "b_qnn.bin",
        "c_ctx.onnx",
    ]


def test_a_model_that_is_being_compiled_into_its_group_cannot_be_compiled_into_it_meanwhile(
    tmp_path,
):
    source = write_model(QNN, tmp_path / "a.onnx", 1)
    refusals = []

    def compile_again(stage, _done, _total):
        if stage == "compile" and not refusals:
            refusals.append(None)
            with pytest.raises(
                Fail,
                match=r"'a_ctx\.onnx' is being compiled into its share group already",
            ):
                epctx.ModelCompiler(sharing(QNN), source).compile_to_file()
            refusals[:] = ["refused"]

    epctx.ModelCompiler(
        sharing(QNN, stop=True), source, progress=compile_again
    ).compile_to_file()

    assert refusals == ["refused"]
    assert run(tmp_path / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


def test_a_compile_that_begins_while_a_group_is_being_written_begins_the_next(tmp_path):
    (tmp_path / "out").mkdir()
    sources = {
        name: write_model(QNN, tmp_path / f"{name}.onnx", ROWS[name], prefix=name)
        for name in "abc"
    }
    joined, running = threading.Event(), []

    class Announcing(QnnProvider):
        @hookimpl
        def get_ep_context_nodes(self, writer):
            if writer.final and not running:
                running.append(
                    pool.submit(
                        compile_it,
                        "c",
                        tell=lambda stage, *_: stage == "compile" and joined.set(),
                    )
                )
                assert joined.wait(timeout=30)
            return super().get_ep_context_nodes(writer)

    registry = registry_with(Announcing)

    def compile_it(name, *, tell=None):
        chosen = sharing(QNN, stop=name != "a")
        compiler = epctx.ModelCompiler(
            chosen, sources[name], progress=tell, registry=registry
        )
        compiler.compile_to_file(tmp_path / "out" / f"{name}_ctx.onnx")

    with ThreadPoolExecutor(1) as pool:
        compile_it("a")
        compile_it("b")
        running[0].result()

    assert {
        name: binary_of(tmp_path / "out" / f"{name}_ctx.onnx") for name in "abc"
    } == {
        "a": "a_qnn.bin",
        "b": "a_qnn.bin",
        "c": "c_qnn.bin",
    }
    assert run(tmp_path / "out" / "c_ctx.onnx", 5, options(QNN)).shape == (5, 128)


def test_a_group_whose_end_fails_can_be_ended_by_another_try(tmp_path):
    out = compiled(QNN, tmp_path, "a", stop=False)
    (out / "a_qnn.bin").mkdir()
    with pytest.raises(epctx.EpctxError, match=r"a_qnn\.bin"):
        compile_member(QNN, tmp_path, "b", stop=True)
    (out / "a_qnn.bin").rmdir()

    compile_member(QNN, tmp_path, "b", stop=True)

    assert sorted(snapshot(out)) == ["a_ctx.onnx", "a_qnn.bin", "b_ctx.onnx"]


def test_a_group_that_another_takes_the_place_of_is_closed(tmp_path):
    closed = []

    class Noting(QnnProvider):
        @hookimpl
        def get_capability(self, graph):
            self.context.workspace.get_or_create(
                "first member", lambda: self.context.model.name, closed.append
            )
            return super().get_capability(graph)

    def compile_in_turn(*names, stop=False):
        (tmp_path / "out").mkdir(exist_ok=True)
        for name in names:
            source = write_model(
                QNN, tmp_path / f"{name}.onnx", ROWS[name], prefix=name
            )
            compiler = epctx.ModelCompiler(
                sharing(QNN, stop=stop), source, registry=registry
            )
            compiler.compile_to_file(tmp_path / "out" / f"{name}_ctx.onnx")

    registry = registry_with(Noting)
    compile_in_turn("a", "b")
    assert closed == []

    compile_in_turn("b")
    assert closed == ["a"]

    compile_in_turn("c", stop=True)
    assert closed == ["a", "b"]


def test_a_binary_of_a_model_that_is_no_member_says_how_to_go_on(tmp_path):
    compiled(QNN, tmp_path, "a", "b")

    with pytest.raises(Fail, match=r"belongs to 'b_ctx\.onnx'") as raised:
        compiled(QNN, tmp_path, "a", "c")
    assert (
        "Compile the source of 'b_ctx.onnx' into the share group" in raised.value.hint
    )

    compiled(QNN, tmp_path, "b")
    assert run(tmp_path / "out" / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


def test_a_group_that_two_threads_finish_is_written_once(tmp_path):
    inside, over, entered = threading.Event(), threading.Event(), []

    known = epctx.Registry()

    class Slow(known.load(known.resolve("QNN"))):
        @hookimpl
        def get_ep_context_nodes(self, writer):
            entered.append(threading.get_ident())
            inside.set()
            over.wait(10)
            return super().get_ep_context_nodes(writer=writer)

    shared = epctx.ShareGroup(tmp_path, registry=registry_with(Slow))
    shared.compile(saved(chain(["Relu"]), tmp_path / "a.onnx"), options_with(Slow))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shared.finish)
        assert inside.wait(10)
        second = pool.submit(shared.finish)
        threading.Timer(0.3, over.set).start()

        assert [file.path for file in first.result().outputs] == [
            "a_qnn.bin",
            "a_ctx.onnx",
        ]
        with pytest.raises(Fail):
            second.result()
    assert set(entered) == {entered[0]}
    assert sorted(snapshot(tmp_path)) == ["a.onnx", "a_ctx.onnx", "a_qnn.bin"]
