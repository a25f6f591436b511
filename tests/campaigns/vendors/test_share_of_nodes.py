"""EPs get the nodes that onnxruntime itself gives them."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
from support.agreement import worst_relative_error
from support.vendor_routes import route, with_named_nodes
from vendors.vendor_networks import MORE_NETWORKS, NETWORKS, drawn_network, network
from zoo.scripts import FOLDER

import epctx_core as epctx
from epctx_core.graph.partition import MOVING

LACKING = {
    ("QNN", "quantised_islands"): {"46 QuantizeLinear"},
    ("QNN", "paddle_recogniser"): {"22 Transpose"},
    ("QNN", "tensorflow_sequences_opset13"): {"12 Transpose"},
}
"""A quantiser that QNN takes together with a transposition only, and transpositions
that onnxruntime removes, as others undo them.
"""
REFUSED = {("OpenVINO", "tensorflow_sequences_opset13")}
"""Networks that onnxruntime itself does not compile for an EP."""


@pytest.mark.parametrize(
    "name",
    [
        *NETWORKS,
        *(pytest.param(name, marks=pytest.mark.stress) for name in MORE_NETWORKS),
    ],
)
@pytest.mark.parametrize("vendor", ["QNN", "OpenVINO"])
def test_an_ep_gets_the_nodes_that_onnxruntime_gives_it(vendor, name):
    source = with_named_nodes(network(name).model)
    direct = route(f"onnxruntime with {vendor}")
    if (vendor, name) in REFUSED:
        with pytest.raises(Exception, match="OpConversionFailure"):
            direct.find_nodes(source)
        return
    expected = direct.find_nodes(source)

    options = route(f"epctx with {vendor}").session_options()
    compiler = epctx.ModelCompiler(options, source, True)
    compiler.compile_to_bytes()

    taken = {n for part in compiler.report.partitions for n in part.node_names}
    assert expected - taken == LACKING.get((vendor, name), set())


PADDED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,4,4] x) => (float[1,2,6,6] y)
<int64[1] first = {0}, int64[1] one = {1}, int64[1] zero = {0}>
{
  r = Relu (x)
  s = Shape (r)
  length = Gather (s, first)
  none = ConstantOfShape (length)
  left = Cast <to = 7> (none)
  edge = Concat <axis = 0> (left, zero, one, one)
  pads = Concat <axis = 0> (edge, edge)
  p = Pad (r, pads)
  y = Sigmoid (p)
}
"""
"""A network with arithmetic on static shapes, as exporters write it."""


QUANTISED = (
    "derived_transformers_bert_fixed_quantised_qdq",
    "derived_transformers_vit_fixed_quantised_qdq_wide",
)
"""Models of the zoo in which operators of QNN and of the CPU EP share a dequantiser."""


def read_source(name):
    if name == "padded":
        return onnx.parser.parse_model(PADDED).SerializeToString()
    if name in QUANTISED:
        return (FOLDER / f"{name}.onnx").read_bytes()
    return network(name).model


@pytest.mark.parametrize(
    "name",
    [
        "padded",
        *QUANTISED,
        *NETWORKS,
        *(pytest.param(name, marks=pytest.mark.stress) for name in MORE_NETWORKS),
    ],
)
def test_qnn_gets_the_computing_nodes_that_a_session_of_onnxruntime_gives_it(name):
    source = with_named_nodes(read_source(name))
    computing = {
        node.name
        for node in onnx.ModelProto.FromString(source).graph.node
        if node.op_type not in MOVING
    }

    given = route("onnxruntime with QNN").find_nodes_of_session(source)
    options = route("epctx with QNN").session_options()
    compiler = epctx.ModelCompiler(options, source, True)
    compiler.compile_to_bytes()

    taken = {n for part in compiler.report.partitions for n in part.node_names}
    assert (given & computing) - taken == set()
    if name == "padded":
        assert {"0 Relu", "8 Sigmoid"} <= given
        assert len(compiler.report.partitions) == 1


SHARE = 0.02
"""Largest difference to onnxruntime's CPU EP: QNN computes in half precision."""


@pytest.mark.parametrize(
    "seed",
    [
        *range(6),
        *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(6, 100)),
    ],
)
def test_of_drawn_networks_qnn_gets_the_same_nodes_and_both_hosts_run_the_result(
    seed, tmp_path
):
    source, inputs = drawn_network(seed)
    direct, own = route("onnxruntime with QNN"), route("epctx with QNN")
    compiler = epctx.ModelCompiler(own.session_options(), source)
    compiler.compile_to_file(tmp_path / "m_ctx.onnx")

    taken = {n for part in compiler.report.partitions for n in part.node_names}
    assert direct.find_nodes(source) <= taken
    if taken:
        results = own.run(tmp_path / "m_ctx.onnx", inputs)
        expected = onnxruntime.InferenceSession(
            source, providers=["CPUExecutionProvider"]
        ).run(None, inputs)
        assert worst_relative_error(results, expected) <= SHARE
        assert (
            worst_relative_error(direct.run(tmp_path / "m_ctx.onnx", inputs), results)
            <= SHARE
        )
