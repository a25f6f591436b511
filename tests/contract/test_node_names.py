"""Names of EPContext nodes: the prefix reaches every place, and no two nodes of a model
share a name.
"""

from __future__ import annotations

import re

import onnx
import pytest
from onnx import TensorProto, helper
from support.engine_eps import Alpha, scripted, unpacked
from support.routes import with_qnn
from support.small_models import chain, example, finished, saved, tensor
from support.validating_eps import options_with, registry_with, session

import epctx_core as epctx
from epctx_core.errors import InvalidGraph


@pytest.fixture
def source(tmp_path):
    return saved(chain(["Relu", "Add", "Neg", "Relu"]), tmp_path / "m.onnx")


def context_nodes(path):
    return [n for n in onnx.load(path).graph.node if n.op_type == "EPContext"]


def attribute(node, name):
    return next(a.s.decode() for a in node.attribute if a.name == name)


@pytest.mark.parametrize("prefix", ["", "left_", "a.b-c_", "9" * 128])
def test_a_prefix_stands_before_node_partition_and_the_graph_in_the_payload(
    source, prefix
):
    output = source.with_name("m_ctx.onnx")
    options = options_with(Alpha, ep__context_node_name_prefix=prefix)

    epctx.ModelCompiler(options, source, registry=registry_with(Alpha)).compile_to_file(
        output
    )

    nodes = context_nodes(output)
    names = [node.name for node in nodes]
    payload = memoryview((source.parent / "m_alpha.bin").read_bytes())
    assert len(names) == len(set(names)) == 2
    assert all(name.startswith(f"{prefix}AlphaExecutionProvider_") for name in names)
    assert [attribute(node, "partition_name") for node in nodes] == names
    assert list(unpacked(payload)) == names


def test_the_simulated_qnn_names_its_graphs_with_the_prefix(source):
    output = source.with_name("m_ctx.onnx")
    epctx.ModelCompiler(
        with_qnn(ep__context_node_name_prefix="left_"), source
    ).compile_to_file(output)

    nodes = context_nodes(output)
    payload = (source.parent / "m_qnn.bin").read_bytes()
    names = [
        name.decode() for name in re.findall(rb"\w*QNNExecutionProvider_\w+", payload)
    ]
    assert list(dict.fromkeys(names)) == [node.name for node in nodes]
    assert all(name.startswith("left_QNNExecutionProvider_") for name in names)


def named_like_a_partition(source, **entries):
    """Return a model of which a node that stays has the name that Alpha's first
    partition gets.
    """
    output = source.with_name("probe_ctx.onnx")
    options = options_with(Alpha, **entries)
    epctx.ModelCompiler(options, source, registry=registry_with(Alpha)).compile_to_file(
        output
    )
    name = context_nodes(output)[0].name
    model = onnx.load(source)
    next(node for node in model.graph.node if node.op_type == "Neg").name = name
    return saved(model, source.with_name("named.onnx")), name


@pytest.mark.parametrize("route", ["compiler", "session"])
@pytest.mark.parametrize("prefix", ["", "left_"])
def test_a_node_that_stays_with_the_name_of_a_partition_is_refused_before_compiling(
    source, route, prefix
):
    entries = {"ep__context_node_name_prefix": prefix}
    model, name = named_like_a_partition(source, **entries)
    ep = scripted()
    # A partition's name begins with the EP's type.
    ep.name, ep.binary_suffix = Alpha.name, "scripted"
    output = source.with_name("out_ctx.onnx")

    with pytest.raises(InvalidGraph, match="would get the same name") as caught:
        if route == "compiler":
            options = options_with(ep, **entries)
            epctx.ModelCompiler(
                options, model, registry=registry_with(ep)
            ).compile_to_file(output)
        else:
            session(
                model, ep, ep__context_enable=1, ep__context_file_path=output, **entries
            )

    assert caught.value.node == name
    assert "ep.context_node_name_prefix" in caught.value.hint
    assert "compile" not in ep.calls
    assert not output.exists()


def test_another_prefix_is_the_way_out(source):
    model, name = named_like_a_partition(source)
    output = source.with_name("out_ctx.onnx")
    options = options_with(Alpha, ep__context_node_name_prefix="x_")

    epctx.ModelCompiler(options, model, registry=registry_with(Alpha)).compile_to_file(
        output
    )

    names = [node.name for node in onnx.load(output).graph.node]
    assert len(names) == len(set(names)) == 3
    assert name in names


def test_a_node_of_that_name_that_goes_into_a_partition_is_in_nobodys_way(source):
    model, name = named_like_a_partition(source)
    proto = onnx.load(model)
    by_type = {node.op_type: node for node in proto.graph.node}
    by_type["Neg"].name, by_type["Add"].name = "n", name
    saved(proto, model)

    output = source.with_name("out_ctx.onnx")
    epctx.ModelCompiler(
        options_with(Alpha), model, registry=registry_with(Alpha)
    ).compile_to_file(output)

    assert [n.name for n in onnx.load(output).graph.node].count(name) == 1


def test_a_session_that_writes_nothing_takes_any_names(source):
    model, _ = named_like_a_partition(source)

    with session(model, Alpha) as opened:
        assert opened.run(None, {"x": example()})[0].shape == (2, 3)


def test_names_in_bodies_count_too(source):
    output = source.with_name("probe_ctx.onnx")
    registry = registry_with(Alpha)
    epctx.ModelCompiler(
        options_with(Alpha), saved(with_body("free"), source), registry=registry
    ).compile_to_file(output)
    (node,) = context_nodes(output)

    with pytest.raises(InvalidGraph, match="would get the same name") as caught:
        model = saved(with_body(node.name), source)
        epctx.ModelCompiler(
            options_with(Alpha), model, registry=registry
        ).compile_to_file(output)

    assert caught.value.node == node.name


def with_body(name):
    """Return `Relu`, then an If whose branches hold a Neg of this name, which nobody
    takes.
    """
    branches = {
        key: helper.make_graph(
            [helper.make_node("Neg", ["r"], [key], name=name)], key, [], [tensor(key)]
        )
        for key in ("then_branch", "else_branch")
    }
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("If", ["c"], ["y"], name="if", **branches),
    ]
    return finished(
        nodes, [tensor("x"), tensor("c", TensorProto.BOOL, [])], [tensor("y")]
    )
