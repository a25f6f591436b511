"""`inspect_model`: every file that a model needs, and the plugin that a load would choose."""

from __future__ import annotations

import numpy as np
import pytest
from end_to_end.engine_eps import Alpha
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx


def elsewhere(location):
    """A tensor whose bytes lie in a file."""
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def sparse(location):
    indices = numpy_helper.from_array(np.arange(4), "i")
    return helper.make_sparse_tensor(elsewhere(location), indices, [8])


def test_weights_files_are_required_wherever_in_the_model_they_are_named():
    constant = helper.make_node("Constant", [], ["c"], value=elsewhere("constant.bin"))
    inner = helper.make_node("Constant", [], ["y"], value=elsewhere("inner.bin"))
    body = helper.make_graph([inner], "body", [], [], [elsewhere("body.bin")])
    branches = helper.make_node("If", ["k"], ["y"], then_branch=body, else_branch=body)
    odd = helper.make_node("Odd", [], ["z"], domain="my", many=[elsewhere("one.bin"), elsewhere("two.bin")])
    graph = helper.make_graph(
        [constant, branches, odd],
        "g",
        [],
        [],
        [elsewhere("main.bin")],
        sparse_initializer=[sparse("sparse.bin")],
    )
    in_function = helper.make_node("Constant", [], ["y"], value=elsewhere("function.bin"))
    function = helper.make_function("my", "F", [], ["y"], [in_function], [helper.make_opsetid("", 18)])

    found = epctx.inspect_model(helper.make_model(graph, functions=[function]).SerializeToString())

    assert sorted(found.required_files) == [
        "body.bin", "constant.bin", "function.bin", "inner.bin", "main.bin", "one.bin", "sparse.bin", "two.bin"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "ep"),
    [
        ("Lower", "LOUDExecutionProvider"),
        ("LOWER", "LowerExecutionProvider"),
        ("LOUDExecutionProvider", "LOUDExecutionProvider"),
        ("loudexecutionprovider", "LowerExecutionProvider"),
    ],
)
def test_the_plugin_shown_is_the_one_that_takes_the_source_as_it_is_spelled(source, ep):
    registry = epctx.Registry(entry_points=False)
    lower, loud = (type(name, (Alpha,), {"name": f"{name}ExecutionProvider"}) for name in ("Lower", "LOUD"))
    registry.register(lower, sources=["LOWER", "loudexecutionprovider"])
    registry.register(loud, sources=["Lower"])
    node = helper.make_node(
        "EPContext", ["x"], ["y"], "n", domain="com.microsoft", source=source, ep_cache_context=b"payload"
    )
    model = helper.make_model(helper.make_graph([node], "g", [], []))

    (found,) = epctx.inspect_model(model.SerializeToString(), registry=registry).ep_contexts

    assert registry.route(source).name == ep
    assert found.plugin is not None
    assert found.plugin["ep"] == ep
