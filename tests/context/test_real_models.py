"""What vendors' own compilers wrote is read as it is written."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from epctx_core.context.manifest import read_manifest
from epctx_core.context.metadata import all_compatibility_info
from epctx_core.context.named_files import models_naming
from epctx_core.context.node import read_context_nodes
from epctx_core.context.paths import ModelFolder
from epctx_core.context.payload_reader import PayloadReader, plugin_nodes
from epctx_core.context.scratch import Scratch
from epctx_core.graph.inference import infer_types

REAL = Path(__file__).parents[1] / "real"
QNN_SDK = "v2.51.0.260929181845"
QNN = "QNNExecutionProvider"
QNN_PARTITIONS = {
    "qnn_ctx0": f"{QNN}_{QNN}_9797305528441083903_1_0",
    "qnn_ctx1": f"{QNN}_{QNN}_9797305528441083903_1_0",
    "share1_ctx": f"{QNN}_{QNN}_17903293915926142480_1_0",
    "share2_ctx": f"{QNN}_{QNN}_4771355947932458158_1_0",
}
BINARIES = {
    "qnn_ctx0": "qnn_ctx0_qnn.bin",
    "qnn_ctx1": None,
    "share1_ctx": "share1_qnn.bin",
    "share2_ctx": "share1_qnn.bin",
}
OPENVINO = "OpenVINOExecutionProvider"


def loaded(name):
    return onnx.load(REAL / f"{name}.onnx")


def only_node(name):
    (record,) = read_context_nodes(loaded(name).graph)
    return record


@pytest.mark.parametrize("name", QNN_PARTITIONS)
def test_qualcomms_nodes_are_read(name):
    record = only_node(name)

    assert record.name == record.partition_name == QNN_PARTITIONS[name]
    assert (record.source, record.main_context) == (QNN, True)
    assert record.embed_mode is (BINARIES[name] is None)
    assert record.file_name == BINARIES[name]
    assert (record.inputs, record.outputs) == (("x",), ("r2",))
    assert record.attributes["ep_sdk_version"] == QNN_SDK
    assert record.attributes["max_size"] == 0
    assert record.attributes["is_multi_soc_ep_context"] == 0


def test_an_embedded_payload_is_all_its_bytes():
    record = only_node("qnn_ctx1")

    assert len(record.cache) == 65_536
    assert record.cache[:16] == (REAL / "qnn_ctx0_qnn.bin").read_bytes()[:16]


def test_intels_node_is_read():
    record = only_node("ov_ctx0")

    assert record.name == record.partition_name == f"{OPENVINO}_OpenVINO-EP-subgraph_1_0"
    assert (record.source, record.main_context, record.embed_mode) == (OPENVINO, True, False)
    assert record.file_name == f"ov_ctx0_{OPENVINO}.bin"
    assert record.attributes["ep_sdk_version"] == "2025.4"


@pytest.mark.parametrize("name", [*QNN_PARTITIONS, "ov_ctx0"])
def test_each_payload_is_found_beside_its_model(name):
    model = loaded(name)
    records = read_context_nodes(model.graph)
    folder = ModelFolder(REAL, REAL / f"{name}.onnx")
    reader = PayloadReader(
        {r.name: r for r in records},
        folder=folder,
        manifest=read_manifest(model),
        scratch=Scratch(),
    )
    (node,) = plugin_nodes(records, infer_types(model), records[0].source)

    payload = reader.payload(node)

    file = records[0].file_name
    assert bytes(payload.view) == ((REAL / file).read_bytes() if file else records[0].cache)
    assert payload.digest is None
    assert payload.view.readonly
    assert [str(v.type) for v in (*node.inputs, *node.outputs)] == [
        str(infer_types(model).get(v)) for v in ("x", "r2")
    ]


def test_qualcomms_compatibility_text_is_found():
    assert all_compatibility_info(loaded("qnn_ctx0")) == {QNN: ["v2:6:2.51.0:5.51.0:73:60:0:0"]}
    assert all_compatibility_info(loaded("ov_ctx0")) == {}


def test_vendors_models_have_no_manifest():
    assert read_manifest(loaded("qnn_ctx0")) is None


def test_both_members_of_a_group_are_known_to_name_the_binary():
    assert [p.name for p in models_naming(REAL, "share1_qnn.bin")] == ["share1_ctx.onnx", "share2_ctx.onnx"]


@pytest.mark.parametrize("name", ["conv", "share1", "share2"])
def test_source_models_have_no_context_nodes(name):
    assert read_context_nodes(loaded(name).graph) == []
