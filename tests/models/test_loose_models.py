"""Models that ONNX's checker refuses and onnxruntime takes: the same results on every
way through.
"""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from epctx_sim_openvino import OpenVinoProvider
from epctx_sim_qnn import QnnProvider
from epctx_sim_vitisai import VitisAIProvider
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.engine_eps import packed, unpacked
from support.taker import (
    Taker,
    assert_same,
    compile_with,
    expected,
    run_with,
    through_everything,
)

import epctx_core as epctx
from epctx_core.plugin import CompiledPartition, EPContextNode, hookimpl

EPS = [OpenVinoProvider, QnnProvider, VitisAIProvider, Taker]
FLOAT, BFLOAT16 = TensorProto.FLOAT, TensorProto.BFLOAT16
X = {"x": np.arange(12, dtype=np.float32).reshape(3, 4) / 4 - 1}


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def model(
    nodes,
    *,
    opset=17,
    ir=9,
    name="g",
    weights=(),
    inputs=(),
    shape=("N", 4),
    domains=(),
    **more,
):
    """A model of a float input x and a float output y."""
    x, y = (helper.make_tensor_value_info(v, FLOAT, shape) for v in "xy")
    graph = helper.make_graph(nodes, name, [x, *inputs], [y], list(weights))
    imports = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(d, 1) for d in domains),
    ]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir, **more)


def weight(name="w"):
    return helper.make_tensor(name, FLOAT, [4], [1, -2, 3, 4])


def body(nodes, output):
    return helper.make_graph(
        nodes, "b", [], [helper.make_tensor_value_info(output, FLOAT, None)]
    )


def choice(*, then, tidy=False):
    """If, with what reads outside in bodies, before what it reads is made; `tidy` puts
    all in order.
    """
    condition = helper.make_tensor("", TensorProto.BOOL, [], [then])
    chosen = [node("Mul", "made x", "t"), node("Neg", "t", "u")]
    other = body([node("Abs", "made", "e")], "e")
    nodes = [
        node("Relu", "x", "made"),
        node("Constant", "", "c", value=condition),
        node(
            "If",
            "c",
            "chosen",
            then_branch=body(chosen if tidy else chosen[::-1], "u"),
            else_branch=other,
        ),
        node("Add", "chosen x", "y"),
    ]
    return model(nodes if tidy else nodes[::-1])


def function(nodes, version):
    return helper.make_function(
        "local", "F", ["a"], ["b"], nodes, [helper.make_opsetid("", version)]
    )


def calling(nodes, version, opset):
    """A model that calls a function written for another version of ONNX's operators."""
    calls = [node("F", "x", "h", domain="local"), node("Relu", "h", "y")]
    return model(
        calls, opset=opset, domains=["local"], functions=[function(nodes, version)]
    )


def sparse(name, shape, places, values=(3, 5)):
    return helper.make_sparse_tensor(
        helper.make_tensor(name, FLOAT, [len(values)], values),
        helper.make_tensor(
            f"{name}_places",
            TensorProto.INT64,
            list(np.shape(places)),
            np.ravel(places),
        ),
        shape,
    )


def with_sparse_initializer():
    made = model([node("Mul", "x w", "h"), node("Add", "h w", "y")])
    made.graph.sparse_initializer.append(sparse("w", [3, 4], [[0, 1], [2, 3]]))
    return made


def constant(shape, places):
    return node("Constant", "", "w", sparse_value=sparse("", shape, places))


CHAIN = [node("Abs", "h", "y"), node("Add", "g g", "h"), node("Relu", "x", "g")]
LOOSE = {
    "a graph without a name": model(
        [node("Relu", "x", "h"), node("Add", "h x", "y")], name=""
    ),
    "nodes out of order": model(CHAIN),
    "bodies out of order": choice(then=True),
    "bodies out of order, the other one": choice(then=False),
    "a function out of order": calling(
        [node("Neg", "n", "b"), node("Relu", "a", "n")], 13, 14
    ),
    "ir version 1": model(
        [node("Relu", "x", "h"), node("Add", "h w", "y")],
        opset=7,
        ir=1,
        weights=[weight()],
    ),
    "ir version 2": model(
        [node("Relu", "x", "h"), node("Add", "h w", "y")],
        opset=7,
        ir=2,
        weights=[weight()],
        inputs=[helper.make_tensor_value_info("w", FLOAT, [4])],
    ),
    "ir version 3 and an initializer that is no input": model(
        [node("Add", "x w", "y")], opset=7, ir=3, weights=[weight()]
    ),
    "a function of an older version": calling([node("Softmax", "a", "b")], 11, 13),
    "a function of a newer version": calling([node("Softmax", "a", "b")], 13, 11),
    "a sparse initializer": with_sparse_initializer(),
    "a sparse Constant": model(
        [constant([3, 4], [1, 11]), node("Mul", "x w", "h"), node("Add", "h w", "y")]
    ),
    "a sparse Constant before ir version 4": model(
        [constant([4, 4], [[1, 0], [3, 1]]), node("MatMul", "x w", "y")], opset=11, ir=3
    ),
    "a sparse matrix": model(
        [constant([4, 4], [[1, 0], [3, 1]]), node("MatMul", "x w", "y")]
    ),
    "a sparse Constant in a body": model(
        [
            node(
                "Constant",
                "",
                "c",
                value=helper.make_tensor("", TensorProto.BOOL, [], [True]),
            ),
            node(
                "If",
                "c",
                "y",
                then_branch=body(
                    [constant([4, 4], [[1, 0], [3, 1]]), node("MatMul", "x w", "t")],
                    "t",
                ),
                else_branch=body([node("Neg", "x", "e")], "e"),
            ),
        ]
    ),
}

TIDY = {
    "bodies out of order": choice(then=True, tidy=True),
    "bodies out of order, the other one": choice(then=False, tidy=True),
    "a function out of order": calling(
        [node("Relu", "a", "n"), node("Neg", "n", "b")], 14, 14
    ),
}
"""The same in order, where onnxruntime itself insists on it."""


def saved(made, folder):
    folder.mkdir()
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("kind", LOOSE)
def test_what_onnxruntime_takes_gives_its_results_on_every_way(tmp_path, kind, ep):
    made = LOOSE[kind]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    tidy = TIDY.get(kind, made).SerializeToString()
    wanted = onnxruntime.InferenceSession(tidy, options).run(None, X)

    outcome = through_everything(
        saved(made, tmp_path / "source"),
        X,
        tmp_path / "out",
        ep=ep,
        embedded=ep is Taker,
    )

    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, wanted)
    assert (
        outcome.taken
        or ep is not Taker
        or not Taker.operators & {n.op_type for n in made.graph.node}
    )
    onnx.checker.check_model(tmp_path / "out" / "m_ctx.onnx")
    assert epctx.verify_model(
        tmp_path / "out" / "m_ctx.onnx", registry=_registry(ep)
    ).ok


def _registry(ep):
    registry = epctx.Registry(entry_points=False)
    registry.register(ep)
    return registry


@pytest.mark.parametrize(
    "kind", ["nodes out of order", "ir version 1", "a sparse initializer"]
)
def test_a_loose_model_goes_through_isolation_and_the_cache(tmp_path, kind):
    source = saved(LOOSE[kind], tmp_path / "source")
    wanted = expected(LOOSE[kind], X)
    options = epctx.SessionOptions()
    options.add_provider("OpenVINO")

    with epctx.load_or_compile(
        source, options, cache_dir=tmp_path / "cache"
    ) as session:
        assert_same(session.run(None, X), wanted)
    options.add_session_config_entry("ep.isolate", "all")
    with epctx.InferenceSession(source, options) as session:
        assert_same(session.run(None, X), wanted)


@given(order=st.permutations(range(6)))
@settings(max_examples=25, deadline=None)
def test_the_order_of_nodes_changes_neither_names_nor_results(order):
    nodes = [
        node("Relu", "x", "a"), node("Neg", "a", "b"), node("Add", "a b", "c"),
        node("Mul", "c x", "d"), node("Sigmoid", "d", "e"), node("Add", "e c", "y"),
    ]  # fmt: skip
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    shuffled = model(
        [nodes[place] for place in order], shape=(3, 4)
    ).SerializeToString()
    with epctx.InferenceSession(shuffled, options) as session:
        results = session.run(None, X)

    assert_same(results, expected(model(nodes, shape=(3, 4)), X))


def test_a_graph_in_order_stays_as_it_is(tmp_path):
    made = LOOSE["a graph without a name"]
    source = saved(made, tmp_path / "source")

    compile_with(Taker, source, tmp_path / "m_ctx.onnx", ep__partition_min_nodes=9)

    assert list(onnx.load(tmp_path / "m_ctx.onnx").graph.node) == list(made.graph.node)


def test_a_cycle_is_refused_and_names_a_node():
    cycle = [node("Add", "h x", "y", name="sum"), node("Neg", "y", "h", name="minus")]

    with pytest.raises(epctx.InvalidGraph, match="has a cycle") as caught:
        epctx.InferenceSession(model(cycle).SerializeToString())

    assert caught.value.node in {"sum", "minus"}


def test_a_function_read_with_another_definition_of_an_operator_is_told(caplog):
    with caplog.at_level(logging.WARNING, "epctx"):
        epctx.InferenceSession(
            LOOSE["a function of an older version"].SerializeToString()
        )

    assert "'F' is written for version 11 of ai.onnx" in caplog.text
    assert "Softmax" in caplog.text


def test_a_function_that_the_models_version_does_not_allow_is_refused():
    axes = calling([node("Squeeze", "a", "b", axes=[0])], 11, 13)

    with pytest.raises(epctx.InvalidGraph, match="axes"):
        epctx.InferenceSession(axes.SerializeToString())


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_operators_newer_than_onnx_are_refused(domain):
    made = model([node("Relu", "x", "y")])
    made.opset_import[0].CopyFrom(
        helper.make_opsetid(domain, onnx.defs.onnx_opset_version() + 1)
    )

    with pytest.raises(epctx.InvalidGraph, match=r"imports version .* up to"):
        epctx.InferenceSession(made.SerializeToString())

    assert not epctx.verify_model(made.SerializeToString()).ok


@pytest.mark.parametrize("switch", ["embed_mode", "main_context"])
@pytest.mark.parametrize("value", [2, -1])
def test_a_context_node_whose_switch_is_neither_0_nor_1_is_refused(
    tmp_path, switch, value
):
    path = tmp_path / "m_ctx.onnx"
    compile_with(Taker, model(CHAIN).SerializeToString(), path)
    compiled = onnx.load(path)
    (context,) = [n for n in compiled.graph.node if n.op_type == "EPContext"]
    (attribute,) = [a for a in context.attribute if a.name == switch]
    attribute.i = value
    path.write_bytes(compiled.SerializeToString())

    with pytest.raises(epctx.InvalidGraph, match=f"{switch}={value}"):
        run_with(Taker, path, X, providers=False)

    assert not epctx.verify_model(path, registry=_registry(Taker)).ok


def test_sparse_weights_that_fill_the_memory_are_refused():
    made = with_sparse_initializer()
    made.graph.sparse_initializer[0].dims[:] = [1 << 20, 1 << 20]

    with pytest.raises(epctx.InvalidGraph, match="written out"):
        epctx.InferenceSession(made.SerializeToString())


@pytest.mark.parametrize(
    "places", [[[0, 1], [3, 0]], [[0, -1], [1, 0]], [0, 12], [-1, 2], [1, 2, 3]]
)
def test_sparse_elements_outside_of_the_shape_are_refused(places):
    made = with_sparse_initializer()
    indices = made.graph.sparse_initializer[0].indices
    indices.CopyFrom(
        helper.make_tensor(
            "i", TensorProto.INT64, list(np.shape(places)), np.ravel(places)
        )
    )

    with pytest.raises(epctx.InvalidGraph, match="outside"):
        epctx.InferenceSession(made.SerializeToString())


class Disordered(Taker):
    """Writes its graphs with their nodes the wrong way round."""

    name = "DisorderedExecutionProvider"
    binary_suffix = "disordered"
    operators = frozenset({"Cast", "Acos", "Relu", "Abs"})
    cycle = False

    @hookimpl
    def get_ep_context_nodes(self, writer):
        payload = writer.payload()
        ((partition, data),) = self._compiled
        graph = onnx.load_from_string(bytes(data))
        nodes = list(graph.graph.node)[::-1]
        if self.cycle:
            nodes[-1].input[0] = nodes[0].output[0]
        del graph.graph.node[:]
        graph.graph.node.extend(nodes)
        payload.write(packed({partition.name: graph.SerializeToString()}))
        return [EPContextNode(partition, payload)]

    @hookimpl
    def load_context(self, nodes, reader):
        graphs = unpacked(reader.payload(nodes[0]).view)
        return [
            CompiledPartition(self._runnable(graphs[n.partition_name])) for n in nodes
        ]


def brain_floats():
    """onnxruntime has no kernel for one of the nodes, so that the piece is divided."""
    return model(
        [
            node("Relu", "x", "a"),
            node("Cast", "a", "b", to=BFLOAT16),
            node("Acos", "b", "c"),
            node("Cast", "c", "d", to=FLOAT),
            node("Abs", "d", "y"),
        ],
        opset=22,
    )


@pytest.mark.parametrize(
    "made", [brain_floats(), model([node("Relu", "x", "a"), node("Abs", "a", "y")])]
)
def test_a_payload_whose_graph_is_out_of_order_runs(tmp_path, made):
    compile_with(Disordered, made.SerializeToString(), tmp_path / "m_ctx.onnx")

    feeds = {"x": np.abs(X["x"]) / 4}
    assert_same(
        run_with(Disordered, tmp_path / "m_ctx.onnx", feeds), expected(made, feeds)
    )


@pytest.mark.parametrize(
    "made", [brain_floats(), model([node("Relu", "x", "a"), node("Abs", "a", "y")])]
)
def test_a_payload_whose_graph_has_a_cycle_is_at_fault(tmp_path, made):
    circular = type("Circular", (Disordered,), {"cycle": True})
    compile_with(circular, made.SerializeToString(), tmp_path / "m_ctx.onnx")

    with pytest.raises(epctx.InvalidGraph):
        run_with(circular, tmp_path / "m_ctx.onnx", X)
