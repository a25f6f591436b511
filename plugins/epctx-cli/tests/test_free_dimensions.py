"""`--free-dimension` of the commands that make sessions or compile."""

from __future__ import annotations

import onnx
import pytest


@pytest.fixture
def batched(tmp_path):
    """The path of a model with the open dimensions `batch` and `a=b`."""
    path = tmp_path / "batched.onnx"
    text = """<ir_version: 9, opset_import: ["" : 17]>
        batched (float[batch,N] x) => (float[batch,N] y) { y = Relu(x) }"""
    model = onnx.parser.parse_model(text)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "a=b"
    onnx.save(model, path)
    return path


LENGTHS = ("--free-dimension", "batch=3", "--free-dimension", "a=b=4")


def test_a_compile_fixes_open_dimensions_and_its_check_has_the_same_lengths(
    epctx, batched, tmp_path
):
    compiled = epctx("compile", batched, "--ep", "QNN", "--check", *LENGTHS)

    (x,) = onnx.load(tmp_path / "batched_ctx.onnx").graph.input
    assert compiled.code == 0, compiled.err
    assert [d.dim_value for d in x.type.tensor_type.shape.dim] == [3, 4]


def test_a_run_has_inputs_of_these_lengths(epctx, batched):
    said = epctx("run", batched, "--ep", "QNN", *LENGTHS)

    assert said.code == 0, said.err
    assert "x float32[3, 4]" in said.out


def test_explain_asks_an_ep_that_takes_only_static_shapes_with_these_lengths(
    epctx, batched
):
    open_ = epctx("explain", batched, "--ep", "QNN", "--json")
    fixed = epctx("explain", batched, "--ep", "QNN", "--json", *LENGTHS)

    assert (open_.json["left"], fixed.json["left"]) == (1, 0)


@pytest.mark.parametrize("text", ["batch", "=3", "batch=", "batch=-1", "batch=n"])
def test_an_override_of_another_form_is_refused(epctx, batched, text):
    said = epctx("run", batched, "--free-dimension", text)

    assert said.code == 2
    assert f"--free-dimension '{text}' is not of the form NAME=LENGTH" in said.err


def test_two_lengths_of_one_dimension_are_refused(epctx, batched):
    said = epctx(
        "run", batched, "--free-dimension", "batch=1", "--free-dimension", "batch=2"
    )

    assert said.code == 2
    assert "batch" in said.err


def test_an_unknown_dimension_is_refused_by_name(epctx, batched):
    said = epctx("run", batched, "--free-dimension", "sequence=1")

    assert said.code == 2
    assert "no input of the model has the dimension 'sequence'" in said.err


NEEDS_SIX = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[N, width] x) => (float[M, 6] y) <int64[2] s = {-1, 6}>
    { a = Relu(x)  y = Reshape(a, s) }"""
"""A model that does not run at the lengths that are made up."""
WIDTH = ("--free-dimension", "width=6")


@pytest.mark.parametrize("lengths", [(), WIDTH])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_model_is_compared_with_its_context_model_at_the_lengths_of_that(
    epctx, model, lengths, is_first
):
    source = model(NEEDS_SIX)
    epctx("compile", source, "--ep", "QNN", *WIDTH)
    compiled = source.with_name("small_ctx.onnx")

    pair = (source, compiled) if is_first else (compiled, source)
    said = epctx("compare", *pair, *lengths)

    assert said.code == 0, said.err
    assert "x float32[N=1, 6]" in said.out


def test_a_length_that_neither_of_two_models_has_is_refused_by_name(epctx, batched):
    said = epctx("compare", batched, batched, "--free-dimension", "sequence=1")

    assert said.code == 2
    assert "no input of the model has the dimension 'sequence'" in said.err


@pytest.mark.parametrize("command", ["run", "compare"])
def test_lengths_that_were_made_up_are_named_before_and_where_a_shape_is_the_matter(
    epctx, model, command
):
    source = model(NEEDS_SIX)

    said = epctx(command, *[source] * (2 if command == "compare" else 1))

    assert said.code == 1
    assert "x float32[N=1, width=1] (no --input)" in said.err + said.out
    error, hint = said.err[said.err.index("error: ") :].splitlines()
    assert "its lengths N, width are open, and it does not run with 1" in error
    assert "--free-dimension NAME=LENGTH" in hint
    assert "epctx compare" in hint


def test_a_length_that_is_known_is_not_named_as_made_up(epctx, batched):
    said = epctx("run", batched, *LENGTHS)

    assert "x float32[3, 4] (no --input)" in said.err + said.out


def test_an_error_about_something_else_does_not_speak_of_lengths(epctx, model):
    source = model("""<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
        net (float[N] x) => (float[N] y) { y = acme.NoSuch(x) }""")

    said = epctx("run", source)

    assert said.code != 0
    assert "NoSuch" in said.err
    assert "does not run with 1" not in said.err


def test_a_check_without_inputs_says_in_a_line_that_the_model_is_written(epctx, model):
    source = model(NEEDS_SIX)

    said = epctx("compile", source, "--ep", "OpenVINO", "--check")

    assert said.code == 1
    error, hint = said.err[said.err.index("error: ") :].splitlines()
    assert "its lengths N, width are open, and it does not run with 1" in error
    assert "small_ctx.onnx is written; its check failed" in hint
    assert source.with_name("small_ctx.onnx").exists()
