"""Entries 39 to 53: what a compile refuses, and what it leaves behind then."""

from __future__ import annotations

import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest
from support.compiling import compiler
from support.engine_eps import Alpha, scripted
from support.routes import refused, with_qnn
from support.small_models import chain, example, saved, snapshot
from support.strange_files import STRANGE
from support.validating_eps import options_with, registry_with, session

import epctx_core as epctx
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
    PluginError,
)
from epctx_core.plugin import Refusal, hookimpl

MUST_COMPILE = epctx.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
NO_CLOBBER = epctx.OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    return saved(chain(["Relu", "Add", "Neg", "Relu"]), folder / "m.onnx")


@pytest.fixture
def untakable(tmp_path):
    """A model of which Alpha takes nothing, alone in a folder."""
    folder = tmp_path / "untakable"
    folder.mkdir()
    return saved(chain(["Neg", "Neg"]), folder / "m.onnx")


# --- nothing compiled -----------------------------------------------------------------


@pytest.mark.entry(39)
@pytest.mark.parametrize(
    "eps", [(), (Alpha,)], ids=["CPU alone", "an EP that takes nothing"]
)
@pytest.mark.parametrize("way", ["file", "bytes", "stream"])
def test_nothing_compiled_is_an_error_under_the_flag_and_nothing_is_written(
    untakable, eps, way
):
    made, chunks = (
        compiler(
            untakable, *eps, flags=MUST_COMPILE, embed_compiled_data_into_model=True
        ),
        [],
    )

    with refused(Fail, "no node of m.onnx could be compiled", folder=untakable.parent):
        {"file": made.compile_to_file, "bytes": made.compile_to_bytes}.get(
            way, lambda: made.compile_to_stream(chunks.append)
        )()

    assert chunks == []


@pytest.mark.entry(40)
def test_a_session_that_compiles_nothing_writes_nothing_and_warns(untakable, caplog):
    before = snapshot(untakable.parent)

    with session(untakable, Alpha, ep__context_enable=1) as opened:
        assert opened.run(None, {"x": example()})[0].shape == (2, 3)

    assert snapshot(untakable.parent) == before
    assert [(r.name, r.levelname) for r in caplog.records] == [
        ("epctx.compile", "WARNING")
    ]


@pytest.mark.entry(41)
@pytest.mark.parametrize("in_memory", [False, True])
def test_without_the_flag_the_plain_model_is_written_with_a_warning(
    untakable, in_memory, caplog
):
    made = compiler(untakable, embed_compiled_data_into_model=True)

    data = (
        made.compile_to_bytes()
        if in_memory
        else made.compile_to_file().output.read_bytes()
    )

    assert data == untakable.read_bytes()
    assert made.report.partitions == ()
    assert not made.report.compiled
    (warning,) = caplog.records
    assert (warning.name, warning.levelname) == ("epctx.compile", "WARNING")
    assert "nothing was compiled" in warning.message
    assert made.report.required_files == (() if in_memory else ("m_ctx.onnx",))


def test_the_warning_gives_the_reason_for_the_most_nodes(tmp_path, caplog):
    rows = [onnx.helper.make_tensor_value_info(n, 1, ["N", "width"]) for n in "xy"]
    length = onnx.helper.make_tensor_value_info("length", onnx.TensorProto.INT64, [2])
    nodes = [
        onnx.helper.make_node("Shape", ["x"], ["length"]),
        onnx.helper.make_node("Relu", ["x"], ["a"]),
        onnx.helper.make_node("Relu", ["a"], ["y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "g", rows[:1], [rows[1], length])
    opsets = [onnx.helper.make_opsetid("", 17)]
    source = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), source)

    epctx.ModelCompiler(with_qnn(), source).compile_to_file()

    (warning,) = caplog.records
    assert "Relu: a dimension is open" in warning.message
    assert "Dimensions of the model's inputs are open ('N', 'width')" in warning.message
    assert "the lengths that you use" in warning.message
    assert "`--free-dimension NAME=…`" in warning.message


def test_open_dimensions_are_no_matter_where_other_nodes_are_refused(tmp_path, caplog):
    source = tmp_path / "m.onnx"
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[3,3] x, float[n] z) => (float det, float[n] y) {
      det = Det(x)
      y = Identity(z)
    }
    """
    onnx.save(onnx.parser.parse_model(text), source)

    with epctx.InferenceSession(source, with_qnn()):
        pass

    (warning,) = caplog.records
    assert "Det is not an operator of QNN's HTP backend" in warning.message
    assert "open" not in warning.message


def test_a_session_warns_if_no_ep_that_the_host_named_takes_a_node(untakable, caplog):
    with session(untakable, Alpha):
        pass

    (warning,) = caplog.records
    assert (warning.name, warning.levelname) == ("epctx.session", "WARNING")
    assert warning.message.startswith(f"no node of m.onnx is taken by {Alpha.name}: ")


def test_a_session_is_silent_where_one_of_the_named_eps_takes_a_node(source, caplog):
    with session(source, Alpha), session(source):
        pass

    assert caplog.records == []


class Choosy(Alpha):
    """Asked for nodes, it says why it takes none."""

    name = "ChoosyExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return [Refusal("not today", graph.nodes)]


def test_a_session_warns_of_an_ep_that_takes_none_of_the_nodes_that_others_take(
    source, caplog
):
    with session(source, Choosy, Alpha):
        pass

    (warning,) = caplog.records
    assert warning.message == (
        f"no node of m.onnx is taken by {Choosy.name}. {Choosy.name} says: not today."
    )


def test_a_session_is_silent_of_an_ep_to_which_the_others_leave_nothing(
    tmp_path, caplog
):
    with session(saved(chain(["Relu", "Relu"]), tmp_path / "m.onnx"), Alpha, Choosy):
        pass

    assert caplog.records == []


def test_bytes_of_a_model_that_nobody_takes_still_need_a_place_for_binaries(untakable):
    # Whether something is compiled is known too late: the refusal comes before the EPs
    # see the model.
    with refused(
        InvalidArgument, "nothing says where its binary", folder=untakable.parent
    ):
        compiler(untakable, Alpha).compile_to_bytes()

    assert compiler(untakable).compile_to_bytes() == untakable.read_bytes()


# --- what is there already ------------------------------------------------------------


@pytest.mark.entry(42)
@pytest.mark.parametrize("given", ["named", "by default"])
def test_an_existing_output_stays_under_the_flag(source, given):
    output = source.with_name("m_ctx.onnx")
    compiler(source, Alpha).compile_to_file(output)
    saved(chain(["Relu", "Neg"], seed=5), source)
    ep = scripted()

    with refused(Fail, "exists already", folder=source.parent):
        compiler(source, ep, flags=NO_CLOBBER).compile_to_file(
            output if given == "named" else None
        )

    assert "compile" not in ep.calls
    compiler(source, Alpha).compile_to_file(output)
    assert len(onnx.load(output).graph.node) == 2


@pytest.mark.entry(43, 44)
@pytest.mark.parametrize("given", ["named", "by default"])
def test_the_session_route_never_replaces_a_model(source, given):
    output = source.with_name("m_ctx.onnx")
    entries = {
        "ep__context_enable": 1,
        **({"ep__context_file_path": output} if given == "named" else {}),
    }
    session(source, Alpha, **entries).close()
    times = {path: path.stat().st_mtime_ns for path in source.parent.iterdir()}

    with refused(Fail, "exists already", folder=source.parent):
        session(source, Alpha, **entries)

    assert {path: path.stat().st_mtime_ns for path in source.parent.iterdir()} == times
    assert len(times) == 3


# --- streams --------------------------------------------------------------------------


@pytest.mark.entry(49, 50)
@pytest.mark.parametrize("after", [0, 1])
def test_what_the_write_function_raises_is_carried_over_and_no_file_stays(
    tmp_path, source, after
):
    chunks = []

    def write(chunk):
        if len(chunks) == after:
            raise OSError("the line went dead")
        chunks.append(chunk)

    big = saved(chain(["Relu", "Neg"]), tmp_path / "big.onnx")
    model = onnx.load(big)
    model.doc_string = "long" * 40_000
    saved(model, big)
    entries = {"ep__context_file_path": source.parent / "out_ctx.onnx"}

    with refused(Fail, "OSError: the line went dead", folder=source.parent) as caught:
        compiler(big, Alpha, entries=entries).compile_to_stream(write)

    assert isinstance(caught.value.__cause__, OSError)
    assert len(chunks) == after


@pytest.mark.entry(49)
def test_one_of_our_own_errors_passes_a_stream_as_it_is(source):
    def write(_chunk):
        raise epctx.NotFound("nobody listens")

    with pytest.raises(epctx.NotFound, match="nobody listens"):
        compiler(source, Alpha, embed_compiled_data_into_model=True).compile_to_stream(
            write
        )


@pytest.mark.parametrize("given", [None, "file.onnx", io.BytesIO()])
def test_a_stream_needs_a_function(source, given):
    with pytest.raises(InvalidArgument, match="takes a function"):
        compiler(source, Alpha).compile_to_stream(given)


# --- inputs and folders ---------------------------------------------------------------


@pytest.mark.entry(51)
@pytest.mark.parametrize("where", ["model", "session", "binaries of bytes"])
def test_a_missing_output_folder_is_created_and_removed_again_if_nothing_comes_of_it(
    source, where
):
    missing = source.parent / "missing" / "below"
    fails = scripted(get_ep_context_nodes=lambda _honest, _writer: 1 / 0)

    with refused(PluginError, "ZeroDivisionError", folder=source.parent):
        compile_into(missing, source, fails, where)
    compile_into(missing, source, Alpha, where)

    names = ["m_alpha.bin"] if "binaries" in where else ["m_alpha.bin", "m_ctx.onnx"]
    assert sorted(path.name for path in missing.iterdir()) == names


def compile_into(folder, source, ep, where):
    if where == "session":
        session(
            source,
            ep,
            ep__context_enable=1,
            ep__context_file_path=folder / "m_ctx.onnx",
        ).close()
    elif where == "model":
        compiler(source, ep).compile_to_file(folder / "m_ctx.onnx")
    else:
        made = compiler(source, ep)
        made.set_ep_context_binary_information(folder, "m.onnx")
        made.compile_to_bytes()


@pytest.mark.parametrize("where", ["model", "session", "binaries of bytes", "group"])
def test_a_missing_folder_that_the_path_leaves_again_is_not_made(source, where):
    folder = source.parent / "missing" / "below" / ".." / ".."

    if where == "group":
        with epctx.ShareGroup(folder) as group:
            group.compile(source, with_qnn())
    else:
        compile_into(folder, source, Alpha, where)

    written = {path.name for path in source.parent.iterdir()} - {source.name}
    model = set() if "binaries" in where else {"m_ctx.onnx"}
    assert written == {"m_qnn.bin" if where == "group" else "m_alpha.bin"} | model


@pytest.mark.parametrize("name", ["m.onnx", "m_ctx.onnx"])
def test_nor_does_it_hide_a_file_that_must_stay(source, name):
    (source.parent / "m_ctx.onnx").write_bytes(b"there before")
    output = source.parent / "missing" / ".." / name

    with refused(
        (InvalidArgument, Fail),
        "would be written, but|exists already",
        folder=source.parent,
    ):
        compiler(source, Alpha, flags=NO_CLOBBER).compile_to_file(output)


def on_a_file(folder):
    (folder / "file").touch()
    return folder / "file" / "m_ctx.onnx"


def on_an_existing_model(folder):
    (folder / "m_ctx.onnx").touch()
    return folder / "m_ctx.onnx"


@pytest.mark.entry(51)
@pytest.mark.parametrize(
    ("kind", "words", "output"),
    [
        (InvalidArgument, "is not a folder", on_a_file),
        (
            InvalidArgument,
            "should not point to a folder",
            lambda folder: folder / "sub",
        ),
        (Fail, "exists already", on_an_existing_model),
    ],
)
@pytest.mark.parametrize("route", ["compiler", "session", "group"])
def test_a_bad_output_is_refused_before_the_model_is_read(
    kind, words, output, route, tmp_path
):
    junk = tmp_path / "m.onnx"
    junk.write_bytes(b"junk")
    place = output(tmp_path)

    with refused(kind, words, folder=tmp_path):
        if route == "compiler":
            compiler(junk, Alpha, flags=NO_CLOBBER).compile_to_file(place)
        elif route == "session":
            session(junk, Alpha, ep__context_enable=1, ep__context_file_path=place)
        elif place.suffix:
            group = epctx.ShareGroup(
                place.parent, flags=NO_CLOBBER, registry=registry_with(Alpha)
            )
            group.compile(junk, options_with(Alpha))
        else:
            raise kind(words, hint="a group's output is a folder")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"providers": "QNN"},
            r"providers must be a list of EPs, not a string: \['QNN'\]",
        ),
        (
            {"providers": 7},
            "providers must be a list of EPs, not an object of type int",
        ),
        ({"provider_options": [{}]}, "there are 0 providers and 1 provider_options"),
        (
            {"providers": ["QNN"], "provider_options": 7},
            "provider_options must be a list of mappings, not an obj",
        ),
        (
            {"providers": ["QNN"], "provider_options": [7]},
            "provider_options of QNN is of type int, not a map",
        ),
        (
            {"providers": iter(["QNN"]), "provider_options": [{}, {}]},
            "1 providers and 2 provider_options",
        ),
    ],
)
def test_providers_in_another_form_are_refused(source, arguments, words):
    with pytest.raises(InvalidArgument, match=words):
        epctx.InferenceSession(source, **arguments)


def test_providers_may_come_from_a_generator(source):
    with epctx.InferenceSession(
        source,
        providers=(n for n in ["QNN"]),
        provider_options=iter([{"htp_arch": "75"}]),
    ) as session:
        assert (
            session.get_provider_options()["QNNExecutionProvider"]["htp_arch"] == "75"
        )


def test_an_empty_output_path_is_named_as_it_was_given(source):
    with refused(
        InvalidArgument, "path '' should not point to a folder", folder=source.parent
    ):
        compiler(source, Alpha).compile_to_file("")


def test_a_bad_option_or_ep_is_refused_before_the_model_is_read(tmp_path):
    junk = tmp_path / "m.onnx"
    junk.write_bytes(b"junk")

    for bad in ({"htp_arch": "1"}, {"no_such_option": "1"}):
        for make in (
            lambda given: epctx.InferenceSession(junk, providers=[("QNN", given)]),
            lambda given: epctx.ModelCompiler(with_qnn(given), junk).compile_to_file(),
        ):
            with refused(InvalidArgument, next(iter(bad)), folder=tmp_path):
                make(bad)
    with refused(InvalidArgument, "no installed plugin", folder=tmp_path):
        epctx.InferenceSession(junk, providers=["NoSuch"])


@pytest.mark.entry(52)
def test_an_empty_path_is_refused_at_once_a_missing_file_when_it_is_read(tmp_path):
    for nothing in ("", b"", None, 3):
        with pytest.raises(InvalidArgument, match="a model is a path or bytes"):
            compiler(nothing, Alpha)
    made = compiler(tmp_path / "missing.onnx", Alpha)

    with pytest.raises(NoSuchFile, match="there is no model file"):
        made.compile_to_file()
    with refused(InvalidProtobuf, "not an ONNX model", folder=tmp_path):
        compiler(b"junk", Alpha).compile_to_file(tmp_path / "out_ctx.onnx")


@pytest.mark.parametrize("folder", ["..", "../beside", "/"])
def test_binaries_outside_of_the_models_folder_are_refused_before_compiling(
    source, folder
):
    made, ep = compiler(source, scripted()), scripted()
    made.set_ep_context_binary_information(source.parent / folder, "v.onnx")

    with refused(InvalidArgument, "is not inside", folder=source.parent):
        made.compile_to_file()

    assert "compile" not in ep.calls


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b.onnx", "a\\b.onnx", "C:/m.onnx", None, 3]
)
def test_binaries_are_named_after_a_plain_file_name(source, name):
    with refused(InvalidArgument, "not a plain file name"):
        compiler(source, Alpha).set_ep_context_binary_information(source.parent, name)


def test_a_sub_folder_that_is_a_link_is_refused_before_compiling(source, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (source.parent / "sub").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    made = compiler(source, Alpha, external_initializers_file_path="sub/w.data")

    with refused(InvalidArgument, "a link or no folder", folder=source.parent):
        made.compile_to_file()


def test_a_sub_folder_that_is_not_writable_is_refused_before_compiling(
    source, monkeypatch
):
    sub, ep = source.parent / "sub", scripted()
    sub.mkdir()
    # The tests may run as root, who may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != sub)
    made = compiler(source, ep)
    made.set_ep_context_binary_information(sub, "v.onnx")

    with refused(Fail, "sub' is not writable", folder=source.parent):
        made.compile_to_file()

    assert "compile" not in ep.calls


@pytest.mark.parametrize("by", ["a model above", "a model beside it"])
def test_a_binary_in_a_sub_folder_that_another_model_names_is_not_replaced(source, by):
    owner = (
        source.parent / "owner_ctx.onnx"
        if by == "a model above"
        else source.parent / "sub" / "v_ctx.onnx"
    )
    owner.parent.mkdir(exist_ok=True)
    first = compiler(source, Alpha)
    first.set_ep_context_binary_information(source.parent / "sub", "v.onnx")
    first.compile_to_file(owner)
    second = compiler(source, Alpha)
    second.set_ep_context_binary_information(source.parent / "sub", "v.onnx")

    with refused(Fail, f"belongs to '{owner.name}'", folder=source.parent):
        second.compile_to_file(source.with_name("second_ctx.onnx"))


def test_a_binary_for_bytes_never_replaces_that_of_a_model_in_the_folder(source):
    compiler(source, Alpha).compile_to_file()
    made = compiler(source, Alpha)
    made.set_ep_context_binary_information(source.parent, "m.onnx")

    with refused(Fail, "belongs to 'm_ctx.onnx'", folder=source.parent):
        made.compile_to_bytes()


# --- arguments that are none ----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"embed_compiled_data_into_model": "no"},
            "embed_compiled_data_into_model is 'no'",
        ),
        (
            {"external_initializers_file_path": 5},
            "external_initializers_file_path is 5",
        ),
        (
            {"external_initializers_file_path": b"w"},
            "external_initializers_file_path is b'w'",
        ),
        (
            {"get_initializer_location_func": 5},
            "get_initializer_location_func takes a function",
        ),
        ({"progress": 5}, "progress takes a function"),
        ({"flags": 4}, "4 is not a value of OrtCompileApiFlags"),
        ({"flags": "all"}, "'all' is not a value of OrtCompileApiFlags"),
        ({"graph_optimization_level": 5}, "5 is not a value of GraphOptimizationLevel"),
        (
            {"graph_optimization_level": "ALL"},
            "'ALL' is not a value of GraphOptimizationLevel",
        ),
    ],
    ids=str,
)
def test_an_argument_of_a_wrong_kind_is_refused_when_the_compiler_is_made(
    source, arguments, words
):
    with refused(InvalidArgument, words):
        compiler(source, Alpha, **arguments)


@pytest.mark.parametrize("options", [None, {}, 5], ids=repr)
def test_options_of_another_class_are_refused(source, options):
    with refused(InvalidArgument, "not a SessionOptions"):
        epctx.ModelCompiler(options, source)


@pytest.mark.parametrize("path", [5, b"out_ctx.onnx", ["out_ctx.onnx"]], ids=repr)
def test_what_is_no_path_is_refused_before_anything_is_read(source, path):
    made = compiler(source, Alpha)
    source.unlink()

    with refused(InvalidArgument, "output_model_path is .*, which is not a path"):
        made.compile_to_file(path)
    with refused(InvalidArgument, "output_directory is .*, which is not a path"):
        made.set_ep_context_binary_information(path, "m.onnx")
    with refused(InvalidArgument, "compile_to_stream takes a function"):
        made.compile_to_stream(path)


# --- one compile at a time ------------------------------------------------------------


@pytest.mark.entry(53)
def test_a_second_compile_while_one_runs_is_refused_and_so_is_changing_the_compiler(
    source,
):
    inside, go_on = threading.Event(), threading.Event()

    def wait(honest):
        inside.set()
        assert go_on.wait(20)
        return honest()

    made = compiler(source, scripted(compile=wait), embed_compiled_data_into_model=True)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(made.compile_to_file)
        assert inside.wait(20)
        try:
            for second in (
                made.compile_to_file,
                made.compile_to_bytes,
                lambda: made.compile_to_stream(print),
            ):
                with refused(Fail, "already in progress", folder=None):
                    second()
            for change in (
                lambda: made.set_ep_context_data_write_func(print),
                made.clear_ep_context_data_write_func,
                lambda: made.set_ep_context_binary_information(source.parent, "v.onnx"),
            ):
                with refused(Fail, "while compilation is in progress"):
                    change()
            assert made.report is None
        finally:
            go_on.set()
        assert first.result(20) is made.report

    made.set_ep_context_data_write_func(lambda _name, _data: None)
    assert made.compile_to_bytes() == source.with_name("m_ctx.onnx").read_bytes()


def test_a_compile_that_failed_may_be_tried_again(source):
    fails = [True]

    def once(honest):
        if fails.pop():
            raise RuntimeError("not today")
        return honest()

    made = compiler(source, scripted(compile=once), embed_compiled_data_into_model=True)
    with pytest.raises(epctx.EPFail):
        made.compile_to_file()
    fails.append(False)

    assert made.compile_to_file().output.exists()


def test_a_callback_that_compiles_with_the_same_compiler_is_told_so(source):
    made = compiler(source, Alpha, embed_compiled_data_into_model=True)

    with refused(Fail, "already in progress", folder=source.parent):
        made.compile_to_stream(lambda _chunk: made.compile_to_bytes())


def test_a_reason_that_begins_with_the_eps_name_is_told_without_it(tmp_path):
    class Prefixed(Alpha):
        @hookimpl
        def get_capability(self, ep, graph):
            return [Refusal(f"{ep}: it is too hot", graph.nodes)]

    model = saved(chain(["Relu"]), tmp_path / "m.onnx")

    report = epctx.ModelCompiler(
        options_with(Prefixed), model, registry=registry_with(Prefixed)
    ).compile_to_file(tmp_path / "m_ctx.onnx")

    assert [refusal.reason for refusal in report.refusals] == ["it is too hot"]


@pytest.mark.parametrize("kind", STRANGE)
def test_models_beside_the_output_that_could_not_be_read_to_their_end_stop_no_compile(
    kind, source
):
    """A compile looks in them for who else names the binary that it replaces."""
    (source.parent / "m_qnn.bin").write_bytes(b"of nobody")
    STRANGE[kind](source.with_name("other.onnx"))

    report = epctx.ModelCompiler(with_qnn(), source).compile_to_file(
        source.with_name("m_ctx.onnx")
    )

    assert report.compiled
