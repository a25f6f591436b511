"""Context models of Qualcomm's EP as they are: what others wrote, names of nodes, what
is refused and how.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from support.folders import REAL
from support.vendor_routes import make_qnn_session_options as options_for
from support.vendors_onnxruntime import QNN, PluginEP, devices, qnn_options
from vendors.vendor_networks import network

import epctx_core as epctx

SEALED = {"context_verify": "full"}


@pytest.fixture(scope="module")
def qnn():
    import onnxruntime_qnn

    return PluginEP(
        ep=QNN, devices=devices(QNN, onnxruntime_qnn)[:1], options=qnn_options()
    )


@pytest.mark.parametrize("name", ["qnn_ctx0", "qnn_ctx1"])
def test_a_context_model_that_another_onnxruntime_wrote_gives_its_results(name, qnn):
    path = REAL / f"{name}.onnx"
    session = epctx.InferenceSession(path, options_for(context_trust_unverified="1"))
    inputs = {
        value.name: np.random.default_rng(0).random(value.shape, dtype=np.float32)
        for value in session.get_inputs()
    }

    results = session.run(None, inputs)

    for result, expected in zip(results, qnn.run(path, inputs), strict=True):
        np.testing.assert_array_equal(result, expected)


def _put_shared(folder, way):
    """Copy one of two models that share a binary, its payload in a file or inside."""
    model, binary = onnx.load(REAL / "share1_ctx.onnx"), REAL / "share1_qnn.bin"
    name = "renamed..twice.bin" if way == "renamed" else binary.name
    content = binary.read_bytes()
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "embed_mode":
            attribute.i = int(way == "embedded")
        if attribute.name == "ep_cache_context":
            attribute.s = content if way == "embedded" else name.encode()
    if way != "embedded":
        (folder / name).write_bytes(content)
    onnx.save(model, folder / "share1_ctx.onnx")
    return folder / "share1_ctx.onnx"


@pytest.mark.parametrize("entries", [{"context_trust_unverified": "1"}, {}, SEALED],
                         ids=["trusted", "isolated", "sealed"])  # fmt: skip
@pytest.mark.parametrize("way", ["file", "renamed", "embedded"])
def test_a_shared_binary_that_the_simulator_cannot_load_is_refused_in_any_process(
    way, entries, tmp_path
):
    """As the first one that a process meets it would end it."""
    path = _put_shared(tmp_path, way)
    if entries is SEALED:
        epctx.seal_model(path)
    code = (
        "import sys, epctx_core as epctx\n"
        "from vendors.test_qnn_native import options_for\n"
        "try: epctx.InferenceSession(sys.argv[1], options_for(**eval(sys.argv[2])))\n"
        "except epctx.InvalidGraph as error: print('refused:', error)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, path, repr(entries)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "refused: onnxruntime does not load" in done.stdout
    assert "QNN_COMMON_ERROR_NOT_SUPPORTED" in done.stdout


@pytest.mark.parametrize(
    ("embedded", "entries", "is_named"),
    [
        (False, {}, True),
        (True, {}, False),
        # Read into memory, so that later changes of the file do not matter.
        (False, {"context_file_mapping": "0"}, False),
    ],
    ids=["file", "embedded", "file read into memory"],
)
def test_onnxruntime_gets_a_payload_in_a_file_by_its_name_and_others_as_bytes(
    embedded, entries, is_named, tmp_path, monkeypatch
):
    (tmp_path / "m.onnx").write_bytes(network("two_parts").model)
    epctx.ModelCompiler(options_for(), tmp_path / "m.onnx", embedded).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )
    loaded, honest = [], onnxruntime.InferenceSession

    def make(model, *arguments, **more):
        loaded.append(onnx.load_from_string(model))
        return honest(model, *arguments, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    with epctx.InferenceSession(
        tmp_path / "m_ctx.onnx", options_for(**entries)
    ) as session:
        session.run(None, network("two_parts").inputs)

    modes = [
        onnx.helper.get_node_attr_value(node, "embed_mode")
        for model in loaded
        for node in model.graph.node
        if node.op_type == "EPContext"
    ]
    assert modes == [int(not is_named)] * 2


def test_nodes_have_the_names_by_which_the_ep_finds_their_graphs(tmp_path):
    (tmp_path / "m.onnx").write_bytes(network("bert").model)
    epctx.ModelCompiler(options_for(), tmp_path / "m.onnx").compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    model = onnx.load(tmp_path / "m_ctx.onnx", load_external_data=False)
    nodes = [node for node in model.graph.node if node.op_type == "EPContext"]
    attributes = [
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        for node in nodes
    ]
    assert [each["partition_name"].decode() for each in attributes] == [
        node.name for node in nodes
    ]
    assert [each["main_context"] for each in attributes] == [1, 0]
    assert all(each["ep_sdk_version"].startswith(b"v2.") for each in attributes)


def test_a_constant_that_nodes_of_others_read_too_leads_out_of_no_set_of_nodes(
    tmp_path,
):
    # QNN takes what is behind Mod, and onnxruntime folds the CastLike of the constant
    # into it.
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[2,8] x) => (float[2,8] y) {
        half = Constant<value: tensor = float {0.5}>()
        rest = Mod<fmod = 1>(x, half)
        shares = Softmax<axis = -1>(rest)
        weight = CastLike(half, shares)
        y = Mul(shares, weight)
    }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    inputs = {"x": np.arange(16, dtype=np.float32).reshape(2, 8)}

    report = epctx.ModelCompiler(options_for(), model).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    assert [set(p.operators) for p in report.partitions] == [
        {"Softmax", "CastLike", "Mul"}
    ]
    (found,) = epctx.InferenceSession(report.output, options_for()).run(None, inputs)
    (expected,) = epctx.InferenceSession(model).run(None, inputs)
    np.testing.assert_allclose(found, expected, rtol=5e-3)


def test_values_of_a_context_model_may_be_renamed(tmp_path, qnn):
    """The EP finds values by name, and otherwise by their order, which is not the
    vendor's.
    """
    source, inputs = network("bert")
    epctx.ModelCompiler(options_for(), source).compile_to_file(tmp_path / "m_ctx.onnx")
    model = onnx.load(tmp_path / "m_ctx.onnx", load_external_data=False)
    kept = {
        value.name
        for value in (*model.graph.input, *model.graph.output, *model.graph.initializer)
    }
    for node in model.graph.node:
        node.input[:] = [
            name if name in kept else f"renamed {name}" for name in node.input
        ]
        node.output[:] = [
            name if name in kept else f"renamed {name}" for name in node.output
        ]
    for value in model.graph.value_info:
        value.name = value.name if value.name in kept else f"renamed {value.name}"
    (tmp_path / "m_ctx.onnx").write_bytes(model.SerializeToString())

    with epctx.InferenceSession(tmp_path / "m_ctx.onnx", options_for()) as session:
        results = session.run(None, inputs)

    for result, expected in zip(results, qnn.run(source, inputs), strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-2)


def test_a_back_end_that_is_not_there_is_refused():
    """onnxruntime-qnn itself would create the EP, and compile nothing."""
    options = options_for({"backend_path": "/missing/libQnnHtp.so"})

    with pytest.raises(
        epctx.InvalidArgument, match=r"'/missing/libQnnHtp\.so', which is not a file"
    ):
        epctx.ModelCompiler(options, network("lstm").model, True).compile_to_bytes()


def test_an_option_of_a_wrong_value_is_refused_before_the_ep_sees_it():
    options = options_for({"htp_performance_mode": "fastest"})

    with pytest.raises(epctx.InvalidArgument, match="allowed: burst, balanced"):
        epctx.ModelCompiler(options, network("lstm").model, True).compile_to_bytes()
