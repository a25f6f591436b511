"""Options that Qualcomm's EP refuses: its reason is told, and no file is blamed."""

from __future__ import annotations

import onnx.parser
import pytest
from vendors.networks import network
from vendors.vendors_onnxruntime import qnn_options

import epctx_core as epctx


def options_for(given):
    options = epctx.SessionOptions()
    options.add_provider("epctx-onnxruntime:QNN", given)
    return options


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A model and, beside it, its context model."""
    source = tmp_path_factory.mktemp("compiled") / "m.onnx"
    source.write_bytes(network("two_parts").model)
    epctx.ModelCompiler(options_for(qnn_options()), source).compile_to_file()
    return source


def load(source, options):
    epctx.InferenceSession(source.with_name("m_ctx.onnx"), options)


def compile_(source, options):
    epctx.ModelCompiler(options, source).compile_to_file(source.with_name("other.onnx"))


ROUTES = [epctx.InferenceSession, epctx.explain_model, load, compile_]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("given", "file"),
    [
        ({"backend_path": "QnnHtp.dll"}, "QnnHtp.dll"),
        ({"backend_type": "cpu"}, "libQnnCpu.so"),
    ],
)
def test_a_back_end_that_does_not_load_is_told_in_the_words_of_the_system(
    compiled, route, given, file
):
    (option,) = given
    with pytest.raises(epctx.InvalidArgument) as caught:
        route(compiled, options_for(given))

    assert (
        f"the back end of the option {option!r} does not load: {file}: cannot open "
        "shared object file: No such file or directory"
    ) in str(caught.value)
    assert caught.value.ep == "QNNExecutionProvider"
    assert "Fetch" not in str(caught.value)


@pytest.mark.parametrize("route", [epctx.InferenceSession, load])
def test_an_option_that_sessions_alone_refuse_is_named_with_the_reason(compiled, route):
    # A compile takes it.
    with pytest.raises(epctx.InvalidArgument) as caught:
        route(compiled, options_for({"enable_htp_shared_memory_allocator": "1"}))

    assert "with 'enable_htp_shared_memory_allocator' set: " in str(caught.value)
    assert "Unknown exception occurred while creating QNN EP" in str(caught.value)
    assert "Fetch" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [{"backend_path": "libQnnHtp.so"}, {"backend_type": "htp"}],
    ids=["path", "type"],
)
def test_a_back_end_beside_the_ep_is_found_by_its_name_and_then_the_file_is_to_blame(
    compiled, tmp_path, given
):
    context = compiled.with_name("m_ctx.onnx")
    with epctx.InferenceSession(context, options_for(given)) as session:
        session.run(None, network("two_parts").inputs)

    model = tmp_path / "m_ctx.onnx"
    options = options_for({**given, "soc_model": "60,69", "htp_arch": "73,79"})
    epctx.ModelCompiler(options, compiled).compile_to_file(model)
    with pytest.raises(epctx.InvalidGraph, match=r"does not load 'epctx\.QNN"):
        epctx.InferenceSession(model, options)


@pytest.mark.parametrize("given", [{"backend_type": "htp"}, qnn_options(), {}])
@pytest.mark.parametrize("route", ROUTES[:2])
def test_a_model_of_which_nothing_is_taken_is_no_fault_of_right_options(
    tmp_path, route, given
):
    source = tmp_path / "m.onnx"
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[2,8] x) => (float[2,8] y) {
        half = Constant<value: tensor = float {0.5}>()
        y = Mod<fmod = 1>(x, half)
    }"""
    source.write_bytes(onnx.parser.parse_model(text).SerializeToString())

    route(source, options_for(given))
