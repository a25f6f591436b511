"""Names of what is written; who names a binary; what a session without a group keeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from graph.making import model
from onnx import NodeProto

from epctx_core.context.named_files import binary_name, context_model_path, free_name, models_naming
from epctx_core.context.node_writer import make_context_node
from epctx_core.context.paths import is_folder_name
from epctx_core.context.workspace import PrivateWorkspace


@pytest.mark.parametrize(
    ("given_path", "wanted"),
    [
        ("model.onnx", "model_ctx.onnx"),
        ("d.x/net.v2.onnx", "d.x/net.v2_ctx.onnx"),
        ("model", "model_ctx.onnx"),
        (".onnx", ".onnx_ctx.onnx"),
        ("model_ctx.onnx", "model_ctx_ctx.onnx"),
    ],
)
def test_a_context_model_stands_beside_its_source(given_path, wanted):
    assert context_model_path(Path(given_path)) == Path(wanted)


@pytest.mark.parametrize(
    ("output", "name", "wanted"),
    [
        ("out/model_ctx.onnx", None, "model_qnn.bin"),
        ("model.onnx", None, "model_qnn.bin"),
        ("net_ctx_ctx.onnx", None, "net_ctx_qnn.bin"),
        ("net.v2_ctx.onnx", None, "net.v2_qnn.bin"),
        ("model_ctx.onnx", "weights", "model_qnn_weights.bin"),
    ],
)
def test_a_binary_is_named_after_the_output_and_the_ep(output, name, wanted):
    assert binary_name(Path(output), "qnn", name) == wanted


def test_an_output_that_ends_in_a_separator_or_exists_as_a_folder_is_a_folder(tmp_path):
    assert is_folder_name("new/")
    assert is_folder_name(f"new{os.sep}")
    assert is_folder_name(tmp_path)
    assert not is_folder_name(tmp_path / "m_ctx.onnx")


def context_model(path, cache, *, embed=False):
    node = make_context_node(
        NodeProto(name="n", output=["y"]), {}, source="X", main_context=True, embed_mode=embed, cache=cache
    )
    path.write_bytes(model([node], [], ["y"]).SerializeToString())


def test_a_binary_is_named_by_the_models_whose_payload_it_is(tmp_path):
    context_model(tmp_path / "b_ctx.onnx", b"a_x.bin")
    context_model(tmp_path / "a_ctx.onnx", b"./a_x.bin")
    context_model(tmp_path / "other_ctx.onnx", b"aa_x.bin")
    context_model(tmp_path / "embedded_ctx.onnx", b"a_x.bin", embed=True)
    (tmp_path / "broken.onnx").write_bytes(b"a_x.bin \xff")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "gone.onnx").symlink_to("nothing")
    (tmp_path / "folder.onnx").mkdir()

    assert [p.name for p in models_naming(tmp_path, "a_x.bin")] == ["a_ctx.onnx", "b_ctx.onnx"]


def test_an_object_of_the_workspace_is_made_once():
    workspace = PrivateWorkspace()
    made = []

    def make():
        made.append(1)
        return object()

    first = workspace.get_or_create("device", make)

    assert workspace.get_or_create("device", make) is first
    assert len(made) == 1


def test_a_factory_may_use_the_workspace_itself():
    workspace = PrivateWorkspace()

    outer = workspace.get_or_create(
        "outer", lambda: ("outer", workspace.get_or_create("inner", lambda: "inner"))
    )

    assert outer == ("outer", "inner")


def test_a_factory_that_raises_leaves_nothing_behind():
    workspace = PrivateWorkspace()
    with pytest.raises(KeyError):
        workspace.get_or_create("k", lambda: {}["missing"])

    assert workspace.get_or_create("k", lambda: 5) == 5


def test_closing_closes_the_youngest_first_and_once():
    workspace = PrivateWorkspace()
    closed = []
    for name in ("a", "b"):
        workspace.get_or_create(name, lambda name=name: name, closed.append)
    workspace.get_or_create("c", lambda: "c")

    workspace.close()
    workspace.close()

    assert closed == ["b", "a"]


def test_an_object_whose_close_raises_keeps_no_other_from_being_closed():
    workspace, closed = PrivateWorkspace(), []

    def close(obj):
        closed.append(obj)
        if obj == "broken":
            raise OSError("the device is gone")

    for name in ("oldest", "broken", "youngest"):
        workspace.get_or_create(name, lambda name=name: name, close)
    with pytest.raises(OSError, match="the device is gone"):
        workspace.close()

    assert closed == ["youngest", "broken", "oldest"]


def test_a_graph_can_be_taken_once():
    workspace = PrivateWorkspace()
    workspace.put("g", 1)

    assert workspace.take("g") == 1
    assert workspace.take("g") is None


@pytest.mark.parametrize(
    ("name", "taken", "found"),
    [
        (None, (), "m_qnn.bin"),
        (None, ("m_qnn.bin",), "m_qnn_1.bin"),
        (None, ("m_qnn.bin", "m_qnn_1.bin"), "m_qnn_2.bin"),
        ("a", ("m_qnn.bin",), "m_qnn_a.bin"),
        ("A", ("m_qnn_a.bin",), "m_qnn_A_1.bin"),
    ],
)
def test_a_binary_gets_a_number_if_another_file_has_its_name_in_any_case(name, taken, found):
    assert free_name(lambda payload: binary_name(Path("m_ctx.onnx"), "qnn", payload), name, taken) == found
