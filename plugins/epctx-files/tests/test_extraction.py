"""Parts of models as models of their own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from epctx_files import extract, merge
from file_models import X, compiled, product, run, verified

from epctx_core.errors import InvalidArgument


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def pair(folder):
    """Two models, the second of which goes on where the first ends."""
    return [
        product(folder / "one.onnx", y="h", seed=1, own="a_"),
        product(folder / "two.onnx", x="h", seed=2, own="b_"),
    ]


def parts(model):
    """Return what a graph consists of, whatever its order."""
    graph = onnx.load(model, load_external_data=False).graph
    return [
        [each.SerializeToString(deterministic=True) for each in field]
        for field in (graph.node, graph.initializer, graph.input, graph.output)
    ]


def test_the_parts_of_a_merged_model_are_its_models(folder, pair):
    second = onnx.load(pair[1], load_external_data=False)
    for tensor in second.graph.initializer:
        tensor.name = f"b_{tensor.name}"
    for node in second.graph.node:
        for index, name in enumerate(node.input):
            if name in {"weight", "bias"}:
                node.input[index] = f"b_{name}"
    pair[1].write_bytes(second.SerializeToString())
    whole = merge(pair, folder / "whole.onnx").model

    first_part = extract(whole, folder / "p" / "one.onnx", outputs=["h"]).model
    second_part = extract(whole, folder / "p" / "two.onnx", inputs=["h"]).model

    assert parts(first_part) == parts(pair[0])
    assert parts(second_part) == parts(pair[1])
    assert (folder / "p" / "one.weights").samefile(folder / "one.weights")
    assert not (folder / "p" / "two.weights").samefile(folder / "one.weights")


@pytest.mark.parametrize("embed", ["0", "1"])
def test_an_ep_context_node_is_extracted_with_its_payload(folder, pair, embed):
    contexts = [compiled(path, ep__context_embed_mode=embed) for path in pair]
    whole = merge(contexts, folder / "whole.onnx").model
    node = onnx.load(contexts[1], load_external_data=False).graph.node[0]

    report = extract(whole, folder / "part.onnx", node=node.name)

    between = run(contexts[0], x=X)["h"]
    found = run(verified(report.model), h=between)
    np.testing.assert_array_equal(found["y"], run(contexts[1], h=between)["y"])
    names = ["part.onnx", "two_qnn.bin"] if embed == "0" else ["part.onnx"]
    assert [file.name for file in report.files] == names
    assert parts(report.model) == parts(contexts[1])


def with_einsum(path):
    """Change a model so that QNN gets two partitions; the second is a reference."""
    model = onnx.load(path, load_external_data=False)
    product_, relu, _ = model.graph.node
    relu.CopyFrom(
        onnx.helper.make_node(
            "Einsum", product_.output, relu.output, name="e", equation="ij->ij"
        )
    )
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("embed", ["0", "1"])
def test_a_reference_is_extracted_with_the_payload_of_its_primary(folder, embed):
    plain = with_einsum(product(folder / "net.onnx"))
    context = compiled(plain, ep__context_embed_mode=embed)
    node = onnx.load(context, load_external_data=False).graph.node[-1]
    between = extract(context, folder / "a.onnx", outputs=["q", "p"]).model
    feeds = run(between, x=X)

    report = extract(context, folder / "part.onnx", node=node.name)

    feeds = {name: feeds[name] for name in node.input}
    found = run(verified(report.model), **feeds)
    np.testing.assert_allclose(found["y"], run(context, x=X)["y"], rtol=1e-5)


def test_what_a_partition_replaced_is_extracted_from_its_source(folder):
    plain = with_einsum(product(folder / "net.onnx"))
    context = compiled(plain)
    node = onnx.load(context, load_external_data=False).graph.node[0]

    report = extract(context, folder / "part.onnx", node=node.name, source=plain)

    graph = onnx.load(report.model, load_external_data=False).graph
    assert [each.op_type for each in graph.node] == ["MatMul"]
    found = run(report.model, x=X)
    assert list(found) == list(node.output)


def test_values_that_subgraphs_read_are_needed(folder):
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[2] x, bool c) => '
        "(float[2] y) { h = Neg(x) z = Abs(x) "
        "y = If(c) <then_branch = t () => (float[2] a) { a = Identity(h) }, "
        "else_branch = e () => (float[2] b) { b = Identity(x) }> }"
    )
    path = folder / "if.onnx"
    folder.mkdir()
    onnx.save(model, path)

    part = extract(path, folder / "part.onnx", outputs=["y"]).model

    graph = onnx.load(part).graph
    assert [node.op_type for node in graph.node] == ["Neg", "If"]
    assert [value.name for value in graph.input] == ["x", "c"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "not by neither"),
        ({"node": "n", "outputs": ["y"]}, "not by both"),
        ({"outputs": ["none"]}, r"one\.onnx has no value 'none'"),
        ({"node": "none"}, r"one\.onnx has no nodes called 'none'"),
        ({"inputs": ["a_q"]}, None),
        ({"inputs": ["a_q"], "outputs": ["a_p"]}, r"needs the value 'x'"),
        ({"outputs": ["h"], "source": "one.onnx"}, "found for a node alone"),
    ],
)
def test_a_part_that_is_none_is_refused(folder, pair, options, match):
    if match is None:
        extract(pair[0], folder / "part.onnx", **options)
        return
    with pytest.raises(InvalidArgument, match=match):
        extract(pair[0], folder / "part.onnx", **options)
    assert not (folder / "part.onnx").exists()
