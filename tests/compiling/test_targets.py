"""Targets of a compile: never a file that a model needs, and no name that cannot be
written.
"""

from __future__ import annotations

import os
from typing import ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.engine_eps import Alpha, Beta, scripted
from support.routes import (
    by_compiler,
    by_session,
    compile_with,
    refused,
    session_with,
    with_qnn,
)
from support.small_models import chain, example, finished, saved, snapshot, tensor

import epctx_core as epctx
from epctx_core import Fail, InvalidArgument, PluginError

pytestmark = pytest.mark.usefixtures("no_temporary_files")

ROUTES = pytest.mark.parametrize("route", [by_compiler, by_session])
WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def stored(folder, location):
    """A tensor whose bytes lie in a file of the folder."""
    tensor_ = numpy_helper.from_array(WEIGHTS, "w")
    (folder / location).write_bytes(tensor_.raw_data)
    tensor_.ClearField("raw_data")
    tensor_.data_location = TensorProto.EXTERNAL
    tensor_.external_data.add(key="location", value=location)
    return tensor_


def with_initializer(weight):
    add = helper.make_node("Add", ["x", "w"], ["y"], "add")
    return finished([add], [tensor("x")], [tensor("y")], [weight])


def with_constant(weight):
    nodes = [
        helper.make_node("Constant", [], ["w"], "constant", value=weight),
        helper.make_node("Add", ["x", "w"], ["y"], "add"),
    ]
    return finished(nodes, [tensor("x")], [tensor("y")])


def with_body(weight):
    branches = {}
    for name, weights in (("then_branch", [weight]), ("else_branch", [])):
        first = "w" if weights else "x"
        add = helper.make_node("Add", ["x", first], [f"{name}_y"], name)
        branches[name] = helper.make_graph(
            [add], name, [], [tensor(f"{name}_y")], weights
        )
    nodes = [
        helper.make_node("If", ["c"], ["v"], "if", **branches),
        helper.make_node("Relu", ["v"], ["y"], "relu"),
    ]
    return finished(
        nodes, [tensor("x"), tensor("c", TensorProto.BOOL, [])], [tensor("y")]
    )


EVERY_PLACE = pytest.mark.parametrize(
    "place", [with_initializer, with_constant, with_body]
)


# --- files that models need -----------------------------------------------------------


@ROUTES
@EVERY_PLACE
def test_the_weights_of_the_model_being_compiled_are_not_taken_for_a_binary(
    route, place, tmp_path
):
    source = saved(place(stored(tmp_path, "m_scripted.bin")), tmp_path / "m.onnx")
    ep = scripted()

    with refused(InvalidArgument, r"m_scripted\.bin.*m\.onnx.*reads", folder=tmp_path):
        route(ep, source, tmp_path / "m_ctx.onnx")

    assert "compile" not in ep.calls


@ROUTES
def test_a_source_that_no_folder_listing_takes_for_a_model_keeps_its_weights_too(
    route, tmp_path
):
    source = saved(
        with_initializer(stored(tmp_path, "m_scripted.bin")), tmp_path / "m.model"
    )

    with refused(InvalidArgument, "reads", folder=tmp_path):
        route(scripted(), source, tmp_path / "m_ctx.onnx")


@ROUTES
def test_weights_are_known_by_the_file_that_they_are_and_not_by_a_path(route, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real", target_is_directory=True)
    source = saved(
        with_initializer(stored(tmp_path, "real/other_scripted.bin")),
        tmp_path / "m.onnx",
    )

    with refused(InvalidArgument, "reads", folder=tmp_path):
        route(scripted(), source, tmp_path / "link" / "other_ctx.onnx")


def test_the_weights_of_a_model_from_bytes_are_not_overwritten(tmp_path):
    model = with_initializer(stored(tmp_path, "m_qnn.bin")).SerializeToString()
    entry = {"session.model_external_initializers_file_folder_path": tmp_path}

    with refused(InvalidArgument, "reads", folder=tmp_path):
        epctx.ModelCompiler(with_qnn(None, **entry), model).compile_to_file(
            tmp_path / "m_ctx.onnx"
        )


def test_the_context_model_itself_is_not_written_over_the_weights_of_its_source(
    tmp_path,
):
    source = saved(with_initializer(stored(tmp_path, "m.data")), tmp_path / "m.onnx")

    with refused(InvalidArgument, r"m\.data.*reads", folder=tmp_path):
        compile_with(scripted(), source, tmp_path / "m.data")


def test_the_context_model_itself_is_not_written_over_the_weights_of_another_model(
    source,
):
    folder = source.parent
    saved(with_initializer(stored(folder, "other.data")), folder / "other.onnx")

    with refused(Fail, r"'other\.data'.*belongs to 'other\.onnx'", folder=folder):
        compile_with(scripted(), source, folder / "other.data")


@ROUTES
@EVERY_PLACE
def test_the_weights_of_another_model_are_not_taken_for_a_binary(route, place, source):
    folder = source.parent
    saved(place(stored(folder, "other_scripted.bin")), folder / "neighbour.onnx")
    ep = scripted()

    with refused(
        Fail, r"'other_scripted\.bin'.*belongs to 'neighbour\.onnx'", folder=folder
    ):
        route(ep, source, folder / "other_ctx.onnx")

    assert "compile" not in ep.calls


def test_weights_of_the_model_being_replaced_stay_if_another_model_has_them_too(source):
    folder = source.parent
    model = with_initializer(stored(folder, "o_scripted.bin"))
    saved(model, folder / "o_ctx.onnx")
    saved(model, folder / "z.onnx")

    with refused(Fail, r"belongs to 'z\.onnx'", folder=folder):
        compile_with(scripted(), source, folder / "o_ctx.onnx")


@ROUTES
def test_weights_that_appear_while_an_ep_compiles_are_seen_before_anything_is_written(
    route, source
):
    folder = source.parent

    def compile_slowly(honest):
        if not (folder / "neighbour.onnx").exists():
            saved(
                with_initializer(stored(folder, "m_scripted.bin")),
                folder / "neighbour.onnx",
            )
        return honest()

    with pytest.raises(Fail, match="belongs to"):
        route(scripted(compile=compile_slowly), source, folder / "m_ctx.onnx")

    assert sorted(snapshot(folder)) == ["m.onnx", "m_scripted.bin", "neighbour.onnx"]
    assert (folder / "m_scripted.bin").read_bytes() == WEIGHTS.tobytes()


def test_a_binary_that_takes_the_place_of_the_sources_weights_while_an_ep_compiles_is_not_written(
    tmp_path,
):
    source = saved(with_initializer(stored(tmp_path, "w.data")), tmp_path / "m.onnx")

    def compile_slowly(honest):
        (tmp_path / "m_scripted.bin").hardlink_to(tmp_path / "w.data")
        return honest()

    with pytest.raises(InvalidArgument, match="reads"):
        compile_with(scripted(compile=compile_slowly), source, tmp_path / "m_ctx.onnx")

    assert (tmp_path / "w.data").read_bytes() == WEIGHTS.tobytes()


# --- names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["/../other_model", "a/b", "", "a b", "x" * 65, "ö", "a\n", 7, b"x"]
)
def test_a_payload_name_that_is_no_plain_name_breaks_the_contract(
    name, source, tmp_path
):
    ep = scripted(get_ep_context_nodes=lambda _honest, writer: writer.payload(name))

    with refused(
        PluginError, "gave a payload the name", folder=tmp_path, ep=ep.name
    ) as caught:
        compile_with(ep, source)

    assert caught.value.hook == "get_ep_context_nodes"


class OtherAlpha(Beta):
    """An EP that gives its binaries the name of Alpha's, in another case."""

    name = "OtherAlphaExecutionProvider"
    binary_suffix: ClassVar[str] = "ALPHA"


@pytest.mark.parametrize("by", ["compiler", "session"])
def test_two_eps_that_would_write_one_binary_are_refused(by, tmp_path):
    source = saved(chain(["Relu", "Add", "Neg", "Mul"]), tmp_path / "m.onnx")
    registry, options = epctx.Registry(entry_points=False), epctx.SessionOptions()
    for ep in (Alpha, OtherAlpha):
        registry.register(ep)
        options.add_provider(ep.name)

    with refused(
        InvalidArgument,
        "AlphaExecutionProvider and OtherAlphaExecutionProvider",
        folder=tmp_path,
    ):
        if by == "compiler":
            epctx.ModelCompiler(options, source, registry=registry).compile_to_file()
        else:
            options.add_session_config_entry("ep.context_enable", "1")
            epctx.InferenceSession(source, options, registry=registry)

    embedded = (
        epctx.ModelCompiler(options, source, True, registry=registry)
        if by == "compiler"
        else None
    )
    if embedded is not None:
        assert [f.path for f in embedded.compile_to_file().outputs] == ["m_ctx.onnx"]


@ROUTES
@pytest.mark.parametrize(
    ("name", "why"),
    [("x\\x_ctx.onnx", "backslash"), ("\\x_ctx.onnx", "absolute"), ("m" * 250 + "_ctx.onnx", "too long"), (".epctx-1_ctx.onnx", "reserved"),
     ("C:\\m_ctx.onnx", "absolute")],
)  # fmt: skip
def test_a_name_that_cannot_be_written_is_noticed_before_compiling(
    route, name, why, source
):
    ep = scripted()

    with refused(InvalidArgument, why, folder=source.parent):
        route(ep, source, source.parent / name)

    assert "compile" not in ep.calls


@ROUTES
def test_a_path_that_the_system_refuses_is_a_typed_error(route, source):
    ep = scripted()

    with refused(Fail, "File name too long", folder=source.parent):
        route(ep, source, "x/" * 2500 + "m_ctx.onnx")

    assert "compile" not in ep.calls


@ROUTES
def test_a_binary_name_that_no_model_can_hold_is_noticed_before_compiling(
    route, source
):
    ep = scripted()

    with refused(InvalidArgument, "UTF-8", folder=source.parent):
        route(ep, source, source.parent / os.fsdecode(b"\xff_ctx.onnx"))

    assert "compile" not in ep.calls


def test_a_model_whose_name_is_no_utf_8_is_compiled_under_another_name_or_embedded(
    source,
):
    odd = source.rename(source.with_name(os.fsdecode(b"\xff.onnx")))
    output = source.with_name("m_ctx.onnx")

    epctx.ModelCompiler(with_qnn(), odd).compile_to_file(output)
    epctx.ModelCompiler(
        with_qnn(), odd, embed_compiled_data_into_model=True
    ).compile_to_file()

    expected = epctx.InferenceSession(odd).run(None, {"x": example()})[0]
    for path in (output, source.with_name(os.fsdecode(b"\xff_ctx.onnx"))):
        with epctx.InferenceSession(path) as session:
            np.testing.assert_array_equal(
                session.run(None, {"x": example()})[0], expected
            )


@pytest.mark.parametrize("name", ["a:b.onnx", "model:1.onnx", "é ü.onnx", "a'b.onnx"])
def test_names_that_a_posix_system_allows_work(name, source):
    odd = source.rename(source.with_name(name))

    report = compile_with(scripted(), odd)

    assert (odd.parent / f"{odd.stem}_scripted.bin").exists()
    assert onnx.load(report.output).graph.node
    with session_with(scripted(), report.output) as session:
        assert session.run(None, {"x": example()})[0].shape == (2, 3)


def test_a_folder_that_takes_no_files_is_named_as_such(source):
    with pytest.raises(Fail, match="/proc") as caught:
        compile_with(scripted(), source, "/proc/x_ctx.onnx")

    assert "removed" not in caught.value.hint
    assert "another output folder" in caught.value.hint
