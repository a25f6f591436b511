"""Bad models, outputs, options and inputs of `run`: one typed error each, and nothing
left behind.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.engine_eps import scripted
from support.routes import (
    QNN,
    by_compiler,
    by_session,
    compile_with,
    refused,
    session_with,
    with_qnn,
)
from support.small_models import example, finished, saved, snapshot, tensor

import epctx_core as epctx
from epctx_core import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplementedByProvider,
)

pytestmark = pytest.mark.usefixtures("no_temporary_files")


# --- models ---------------------------------------------------------------------------


def sessions_and_compilers():
    return [
        pytest.param(epctx.InferenceSession, id="session"),
        pytest.param(
            lambda path: epctx.InferenceSession(path, with_qnn()),
            id="session with an EP",
        ),
        pytest.param(
            lambda path: epctx.ModelCompiler(with_qnn(), path).compile_to_file(),
            id="compiler",
        ),
        pytest.param(epctx.inspect_model, id="inspect"),
    ]


@pytest.mark.parametrize("use", sessions_and_compilers())
def test_a_missing_file(use, tmp_path):
    missing = tmp_path / "m.onnx"

    with pytest.raises(NoSuchFile, match=r"m\.onnx") as caught:
        use(missing)

    assert caught.value.path == missing
    assert isinstance(caught.value, FileNotFoundError)
    assert list(tmp_path.iterdir()) == []


def a_pipe(path):
    os.mkfifo(path)


def a_socket(path):
    socket.socket(socket.AF_UNIX).bind(str(path))


def a_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "make",
    [a_pipe, a_socket, a_device, Path.mkdir],
    ids=["pipe", "socket", "device", "folder"],
)
def test_what_is_no_regular_file_is_refused_without_waiting_for_it(
    make, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    path = Path("m.onnx")
    make(path)
    others = [
        epctx.verify_model,
        lambda path: epctx.get_model_compatibility(path, "QNN"),
        lambda path: epctx.compile_cached(path, with_qnn(), tmp_path / "cache"),
        lambda path: epctx.load_or_compile(path, with_qnn(), tmp_path / "cache"),
    ]

    for use in [*(case.values[0] for case in sessions_and_compilers()), *others]:
        with pytest.raises(
            InvalidArgument, match=r"'m\.onnx' is a \w+, not a model file"
        ) as caught:
            use(path)
        assert caught.value.path == path


@pytest.mark.parametrize("use", sessions_and_compilers())
@pytest.mark.parametrize(
    "junk", [b"", b"\xff" * 64, b"PK\x03\x04 zip", b"<html>404</html>\n"]
)
def test_junk_bytes(use, junk, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(junk)

    with pytest.raises(InvalidProtobuf, match=r"m\.onnx") as caught:
        use(path)

    assert caught.value.path == path
    assert snapshot(tmp_path) == {"m.onnx": junk}


@pytest.mark.parametrize("use", sessions_and_compilers())
def test_a_model_without_a_graph_is_refused_in_the_words_of_a_verification(
    use, tmp_path
):
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.ModelProto(ir_version=8).SerializeToString())

    with pytest.raises(
        InvalidProtobuf, match=r"m\.onnx is not an ONNX model"
    ) as caught:
        use(path)
    (finding,) = epctx.verify_model(path).findings

    assert caught.value.path == path
    assert finding.code == "model-unreadable"
    assert finding.message == caught.value.message
    assert finding.message.endswith("it has no graph.")


@pytest.mark.parametrize("use", sessions_and_compilers())
def test_a_folder_in_place_of_a_model(use, tmp_path):
    with pytest.raises(InvalidArgument, match="is a folder"):
        use(tmp_path)


@pytest.mark.parametrize("use", sessions_and_compilers()[:3])
def test_a_model_that_the_checker_refuses(use, tmp_path):
    relu = helper.make_node("Relu", ["x", "x"], ["y"], "too many inputs")
    path = saved(finished([relu], [tensor("x")], [tensor("y")]), tmp_path / "m.onnx")

    with pytest.raises(InvalidGraph, match=r"checker refuses m\.onnx") as caught:
        use(path)

    assert caught.value.path == path
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("part", range(1, 20))
def test_a_truncated_model(pair, part):
    content = pair.model.read_bytes()
    pair.model.write_bytes(content[: len(content) * part // 20])

    with pytest.raises((InvalidProtobuf, InvalidGraph)):
        epctx.InferenceSession(pair.model)


def test_an_operator_that_no_engine_has_leaves_no_context_model(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["v"]),
        helper.make_node("Odd", ["v"], ["y"], "odd", domain="my"),
    ]
    model = finished(nodes, [tensor("x")], [tensor("y")])
    model.opset_import.add(domain="my", version=1)
    path = saved(model, tmp_path / "m.onnx")

    with refused(NotImplementedByProvider, "my::Odd", folder=tmp_path, node="odd"):
        session_with(scripted(), path, ep__context_enable=1)


# --- outputs --------------------------------------------------------------------------


@pytest.mark.parametrize("route", [by_compiler, by_session])
def test_an_output_path_that_is_a_folder(route, source, tmp_path):
    ep = scripted()

    with refused(InvalidArgument, "should not point to a folder", folder=tmp_path):
        route(ep, source, tmp_path)

    assert "compile" not in ep.calls


@pytest.mark.entry(43, 44)
def test_the_session_route_touches_nothing_when_its_output_exists(source):
    ep = scripted()
    output = source.with_name("m_ctx.onnx")
    output.write_bytes(b"something else")

    with refused(Fail, "exists already", folder=source.parent, path=output):
        session_with(ep, source, ep__context_enable=1)

    assert "compile" not in ep.calls


def test_the_compiler_replaces_an_output_that_exists(source):
    output = source.with_name("m_ctx.onnx")
    output.write_bytes(b"something else")

    report = compile_with(scripted(), source)

    assert report.output == output
    assert len(onnx.load(output).graph.node) > 0


@pytest.mark.entry(42)
def test_the_compiler_does_not_replace_an_output_if_its_flag_forbids_it(source):
    ep = scripted()
    output = source.with_name("m_ctx.onnx")
    output.write_bytes(b"something else")

    with refused(Fail, "exists already", folder=source.parent, path=output):
        compile_with(
            ep, source, flags=epctx.OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS
        )

    assert "compile" not in ep.calls


@pytest.mark.entry(86)
@pytest.mark.parametrize("route", [by_compiler, by_session])
def test_a_binary_that_belongs_to_another_model_is_not_replaced(
    route, source, tmp_path
):
    compile_with(scripted(), source, tmp_path / "m_ctx.onnx")
    ep = scripted()

    # Without the trailing `_ctx` both have the stem `m`, and so one name for their
    # binaries.
    with refused(
        Fail,
        "belongs to 'm_ctx.onnx'",
        folder=tmp_path,
        path=tmp_path / "m_scripted.bin",
    ):
        route(ep, source, tmp_path / "m.onnx")

    assert "compile" not in ep.calls


@pytest.mark.entry(39)
def test_nothing_compiled_is_an_error_if_the_flag_says_so(source, tmp_path):
    ep = scripted(get_capability=lambda _honest, _graph: [])

    with refused(Fail, "could be compiled by Scripted", folder=tmp_path, path=source):
        compile_with(
            ep, source, flags=epctx.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
        )


# --- options --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        (
            "ep.context_enabel",
            "1",
            "ep.context_enabel.*Did you mean 'ep.context_enable'",
        ),
        ("ep.context_enable", "yes", "'yes'; allowed is '0' or '1'"),
        ("ep.context_embed_mode", "2", "'2'; allowed"),
        ("ep.context_node_name_prefix", "a/b", "allowed is 0 to 128 letters, digits"),
    ],
)
def test_a_wrong_session_option(key, value, match):
    with refused(InvalidArgument, match):
        epctx.SessionOptions().add_session_config_entry(key, value)


@pytest.mark.parametrize(
    ("option", "value", "match"),
    [
        ("htp_ach", "73", "'htp_ach'.*Did you mean 'htp_arch'"),
        ("htp_arch", "12", "allowed: "),
        ("htp_arch", "x", "whole"),
    ],
)
@pytest.mark.parametrize(
    "as_entry", [False, True], ids=["given", "as a session option"]
)
def test_a_wrong_provider_option(source, option, value, match, as_entry):
    options = with_qnn() if as_entry else with_qnn({option: value})
    if as_entry:
        options.add_session_config_entry(f"ep.qnnexecutionprovider.{option}", value)

    with refused(InvalidArgument, match, folder=source.parent, ep=QNN):
        epctx.ModelCompiler(options, source).compile_to_file()
    with refused(InvalidArgument, match, folder=source.parent, ep=QNN):
        epctx.InferenceSession(source, options)


# --- run ------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path):
    nodes = [
        helper.make_node("Add", ["input", "bias"], ["y"]),
        helper.make_node("Neg", ["any"], ["z"]),
    ]
    inputs = [
        tensor("input"),
        tensor("bias"),
        tensor("any", TensorProto.FLOAT, ["rows", 2]),
    ]
    outputs = [tensor("y"), tensor("z", TensorProto.FLOAT, ["rows", 2])]
    path = saved(finished(nodes, inputs, outputs), tmp_path / "m.onnx")
    with epctx.InferenceSession(path, with_qnn()) as session:
        yield session


GOOD = {"input": example(), "bias": example(), "any": example(shape=(7, 2))}


@pytest.mark.parametrize(
    ("feeds", "match"),
    [
        ({**GOOD, "inptu": example()}, "no input 'inptu'.*Did you mean 'input'"),
        ({name: GOOD[name] for name in ("input", "any")}, "'bias'.*is missing"),
        (
            {**GOOD, "input": example().astype(np.float64)},
            "'input' is float64; the model takes float32",
        ),
        ({**GOOD, "input": example().astype(np.int32)}, "'input' is int32"),
        ({**GOOD, "input": None}, "'input' is object"),
        ({**GOOD, "input": "text"}, "'input' is <U4"),
        ({**GOOD, "input": [[1.0, 2.0], [3.0]]}, "'input' is not an array"),
        ({**GOOD, "input": example(shape=(3, 2))}, r"'input' has the shape \[3, 2\]"),
        (
            {**GOOD, "input": example(shape=(2, 3, 1))},
            r"'input' has the shape \[2, 3, 1\]",
        ),
        (
            {**GOOD, "any": example(shape=(7, 3))},
            r"'any' has the shape \[7, 3\].*rows,2",
        ),
        ([GOOD["input"]], "a mapping of input names to arrays, not a list"),
    ],
)
def test_a_wrong_input_of_run(session, feeds, match):
    with pytest.raises(InvalidArgument, match=match) as caught:
        session.run(None, feeds)

    assert isinstance(caught.value, ValueError)
    assert len(session.run(None, GOOD)) == 2


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (example().astype(np.float64), "Convert it: array.astype('float32')."),
        (None, "Give an array of float32."),
        ("text", "Give an array of float32."),
        (example(shape=(3, 2)), "Give an array of that shape."),
    ],
)
def test_the_hint_about_an_input_fits_the_mistake(session, value, hint):
    with pytest.raises(InvalidArgument) as caught:
        session.run(None, {**GOOD, "input": value})

    assert caught.value.hint == hint


def test_bits_of_numbers_that_numpy_has_not_are_to_be_viewed_and_not_converted():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (bfloat16[2] x) => (bfloat16[2] y) '
        "{ y = Identity(x) }"
    )

    with (
        epctx.InferenceSession(model.SerializeToString()) as session,
        pytest.raises(InvalidArgument) as caught,
    ):
        session.run(None, {"x": np.array([0x3F80] * 2, np.uint16)})

    assert "array.view('bfloat16')" in caught.value.hint


def test_a_pointer_of_git_lfs_is_recognised(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")

    with pytest.raises(InvalidProtobuf) as caught:
        epctx.InferenceSession(path)

    assert "git lfs pull" in caught.value.hint


def test_a_wrong_output_of_run_is_noticed_before_anything_runs(session):
    with refused(InvalidArgument, "no output 'yy'.*Did you mean 'y'"):
        session.run(["yy"], {"not": "even looked at"})


def test_outputs_come_in_the_order_asked_for_and_all_if_none_is_named(session):
    y, z = session.run(None, GOOD)

    np.testing.assert_array_equal(session.run(["z", "y"], GOOD)[0], z)
    np.testing.assert_array_equal(session.run(["z"], GOOD)[0], z)
    np.testing.assert_array_equal(session.run([], GOOD)[0], y)


def test_a_closed_session(session):
    session.close()
    session.close()

    with pytest.raises(epctx.RuntimeException, match="closed"):
        session.run(None, GOOD)
