"""EPs get the nodes that onnxruntime itself gives them."""

from __future__ import annotations

import onnx
import pytest
from vendors.networks import MORE_NETWORKS, NETWORKS, network
from vendors.routes import route

import epctx_core as epctx

LACKING = {
    ("QNN", "quantised_islands"): {"46 QuantizeLinear"},
    ("QNN", "paddle_recogniser"): {"22 Transpose"},
    ("QNN", "tensorflow_sequences_opset13"): {"12 Transpose"},
}
"""A quantizer that QNN takes together with a transposition only, and transpositions
that onnxruntime removes, as others undo them.
"""
REFUSED = {("OpenVINO", "tensorflow_sequences_opset13")}
"""Networks that onnxruntime itself does not compile for an EP."""


def with_named_nodes(model):
    """Return a model whose nodes are called by their numbers and operators."""
    named = onnx.ModelProto.FromString(model)
    for number, node in enumerate(named.graph.node):
        node.name = f"{number} {node.op_type}"
    return named.SerializeToString()


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
