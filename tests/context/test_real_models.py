"""Models of vendors' own compilers are read as they are written."""

from __future__ import annotations

import shutil

import onnx
import pytest
from context.compiling import Writing, model_of, one_payload
from context.loading import loaded
from support.folders import REAL

from epctx_core import Registry, get_compatibility_info_from_model, inspect_model
from epctx_core.errors import Fail

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


def inspected(name):
    return inspect_model(REAL / f"{name}.onnx", registry=Registry(entry_points=False))


@pytest.mark.parametrize("name", QNN_PARTITIONS)
def test_qualcomms_nodes_are_read(name):
    (found,) = inspected(name).ep_contexts

    assert found.name == found.partition_name == QNN_PARTITIONS[name]
    assert (found.source, found.main_context) == (QNN, 1)
    assert found.embed_mode == int(BINARIES[name] is None)
    assert found.payload_file == BINARIES[name]
    assert found.attributes["ep_sdk_version"] == QNN_SDK
    assert found.attributes["max_size"] == 0
    assert found.attributes["is_multi_soc_ep_context"] == 0


def test_an_embedded_payload_is_all_its_bytes():
    assert inspected("qnn_ctx1").ep_contexts[0].payload_bytes == 65_536
    with loaded(REAL / "qnn_ctx1.onnx", ep=QNN) as given:
        view = given.payload().view

        assert len(view) == 65_536
        assert bytes(view[:16]) == (REAL / "qnn_ctx0_qnn.bin").read_bytes()[:16]


def test_intels_node_is_read():
    (found,) = inspected("ov_ctx0").ep_contexts

    assert found.name == found.partition_name == f"{OPENVINO}_OpenVINO-EP-subgraph_1_0"
    assert (found.source, found.main_context, found.embed_mode) == (OPENVINO, 1, 0)
    assert found.payload_file == f"ov_ctx0_{OPENVINO}.bin"
    assert found.attributes["ep_sdk_version"] == "2025.4"


@pytest.mark.parametrize("name", [*QNN_PARTITIONS, "ov_ctx0"])
def test_each_payload_is_found_beside_its_model(name):
    (node,) = (
        each
        for each in onnx.load(REAL / f"{name}.onnx").graph.node
        if each.op_type == "EPContext"
    )
    held = next(a.s for a in node.attribute if a.name == "ep_cache_context")
    file = inspected(name).ep_contexts[0].payload_file

    with loaded(
        REAL / f"{name}.onnx", ep=OPENVINO if name.startswith("ov") else QNN
    ) as given:
        payload = given.payload()

        assert bytes(payload.view) == ((REAL / file).read_bytes() if file else held)
        assert payload.digest is None
        assert payload.view.readonly
        assert [v.name for v in (*given.nodes[0].inputs, *given.nodes[0].outputs)] == [
            "x",
            "r2",
        ]
        assert all(
            v.type.is_static for v in (*given.nodes[0].inputs, *given.nodes[0].outputs)
        )


def test_qualcomms_compatibility_text_is_found():
    texts = {
        name: get_compatibility_info_from_model(REAL / f"{name}.onnx", ep)
        for name, ep in (("qnn_ctx0", QNN), ("ov_ctx0", OPENVINO))
    }

    assert texts == {"qnn_ctx0": "v2:6:2.51.0:5.51.0:73:60:0:0", "ov_ctx0": None}


def test_vendors_models_have_no_manifest():
    assert inspected("qnn_ctx0").manifest is None


@pytest.mark.parametrize("member", ["share1_ctx.onnx", "share2_ctx.onnx"])
def test_each_member_of_a_group_is_known_to_name_the_binary(tmp_path, member):
    for name in (member, "share1_qnn.bin"):
        shutil.copy(REAL / name, tmp_path)

    with pytest.raises(Fail, match=f"'share1_qnn.bin' in .* belongs to '{member}'"):
        Writing(one_payload, path=tmp_path / "share1.onnx", suffix="qnn").compiled(
            model_of(1)
        )

    assert (tmp_path / "share1_qnn.bin").read_bytes() == (
        REAL / "share1_qnn.bin"
    ).read_bytes()


@pytest.mark.parametrize("name", ["conv", "share1", "share2"])
def test_source_models_have_no_context_nodes(name):
    assert inspected(name).ep_contexts == []
