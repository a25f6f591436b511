"""The boundary of a partition, its model, and its digest: equal for equal content,
whatever the names.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.graph_models import BOOL, INT64, conditional, model, node, tensor, value
from support.witness import names, partition_of, partitions

from epctx_core import SessionOptions
from epctx_core.plugin import TensorType


def three_steps(**changes):
    """y = relu(x @ w + b), with a second output of the Add."""
    names = {
        "x": "x",
        "w": "w",
        "b": "b",
        "m": "m",
        "s": "s",
        "y": "y",
        "node": "n",
        **changes,
    }
    x, w, b, m, s, y = (names[k] for k in "xwbmsy")
    return model(
        [
            node("MatMul", [x, w], [m], name=f"{names['node']}0"),
            node("Add", [m, b], [s], name=f"{names['node']}1"),
            node(names.get("last", "Relu"), [s], [y], name=f"{names['node']}2"),
        ],
        [value(x, shape=[1, 30])],
        [value(y, shape=[1, 30])],
        [
            tensor(w, names.get("weight", np.arange(900).reshape(30, 30) / 7)),
            tensor(b, np.full(30, names.get("bias", 1))),
        ],
        opsets=[("", names.get("opset", 21))],
    )


def boundary(made, nodes=None):
    """Return the names of what flows into a group and out of it."""
    found = partition_of(made, nodes)
    return names(found.inputs), names(found.outputs)


def test_inputs_stand_in_order_of_first_use_and_outputs_in_order_of_production():
    found = partition_of(
        model(
            [
                node("Add", ["b", "a"], ["p"]),
                node("Sub", ["a", "c"], ["q"]),
                node("Add", ["p", "q"], ["y"]),
            ],
            ["a", "b", "c"],
            ["y", "q"],
        ),
        [0, 1],
    )

    assert names(found.inputs) == ["b", "a", "c"]
    assert names(found.outputs) == ["p", "q"]
    assert found.outputs[0].type == TensorType(TensorProto.FLOAT, (2,))


def test_a_graph_output_that_is_also_read_inside_flows_out():
    made = model(
        [node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["y"])], ["x"], ["a", "y"]
    )

    assert boundary(made) == (["x"], ["a", "y"])


def test_a_value_that_is_read_inside_only_does_not_flow_out():
    made = model([node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["y"])], ["x"], ["y"])

    assert boundary(made) == (["x"], ["y"])


def test_a_value_that_only_a_body_outside_reads_flows_out():
    made = model(
        [node("Neg", ["x"], ["a"]), conditional("c", "a", "x", "y")],
        [value("c", BOOL, []), "x"],
        ["y"],
    )

    assert boundary(made, [0]) == (["x"], ["a"])
    assert boundary(made, [1]) == (["c", "x", "a"], ["y"])


def test_dead_code_gives_its_last_results():
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            node("Abs", ["a"], ["dead"]),
            node("Neg", ["x"], ["y"]),
        ],
        ["x"],
        ["y"],
    )

    assert boundary(made, [0, 1]) == (["x"], ["dead"])


def test_omitted_values_are_not_on_the_boundary():
    made = model(
        [node("Clip", ["x", "", "high"], ["a"]), node("Dropout", ["a"], ["y", ""])],
        ["x"],
        ["y"],
        [tensor("high", 1.0)],
    )

    found = partition_of(made)

    assert (names(found.inputs), names(found.outputs)) == (["x"], ["y"])
    assert set(found.weights) == {"high"}


def test_kept_initializers_are_inputs():
    found = partition_of(three_steps(), keep_initializers=True)

    assert names(found.inputs) == ["x", "w", "b"]
    assert set(found.weights) == {"w", "b"}
    assert names(found.model().graph.input) == ["x", "w", "b"]
    assert list(found.model().graph.initializer) == []


def test_a_weight_that_the_caller_may_override_is_an_input():
    made = model(
        [node("Add", ["x", "w"], ["y"])], ["x", "w"], ["y"], [tensor("w", [1, 2])]
    )

    assert boundary(made) == (["x", "w"], ["y"])


def test_the_model_of_a_piece_holds_small_weights_and_names_large_ones():
    made = three_steps()
    found = partition_of(made, [0, 1])

    proto = found.model()

    by_name = {t.name: t for t in proto.graph.initializer}
    assert by_name["w"].data_location == TensorProto.EXTERNAL
    assert not by_name["w"].HasField("raw_data")
    assert numpy_helper.to_array(by_name["b"]).tolist() == [1.0] * 30
    assert [o.name for o in proto.graph.output] == ["s"]
    assert found.weights["w"].array().tobytes() == made.graph.initializer[0].raw_data


def test_a_model_with_inline_weights_is_complete_in_itself():
    made = three_steps()

    proto = partition_of(made).model(inline_weights=True)

    onnx.checker.check_model(proto, full_check=True)
    x = np.ones((1, 30), np.float32)
    assert np.array_equal(
        *(ReferenceEvaluator(m).run(None, {"x": x})[0] for m in (proto, made))
    )


def test_a_saved_piece_is_a_model_with_its_weights_beside_it(tmp_path):
    made = three_steps()

    partition_of(made).save(tmp_path / "piece.onnx")

    assert sorted(p.name for p in tmp_path.iterdir()) == ["piece.onnx", "piece.weights"]
    onnx.checker.check_model(tmp_path / "piece.onnx")
    x = np.ones((1, 30), np.float32)
    saved = ReferenceEvaluator(onnx.load(tmp_path / "piece.onnx"))
    assert np.array_equal(
        saved.run(None, {"x": x})[0], ReferenceEvaluator(made).run(None, {"x": x})[0]
    )


def test_a_piece_knows_the_types_of_its_inner_values():
    assert str(partition_of(three_steps()).value("m").type) == "float[1,30]"


def test_the_model_of_a_piece_is_a_copy():
    found = partition_of(three_steps())

    found.model().graph.node[0].op_type = "Changed"

    assert found.model().graph.node[0].op_type == "MatMul"
    assert found.nodes[0].op_type == "MatMul"


def text(name, *words):
    return helper.make_tensor(
        name, TensorProto.STRING, [len(words)], [w.encode() for w in words]
    )


def sparse(name, at=1):
    values = numpy_helper.from_array(np.array([3.0], np.float32), name)
    return helper.make_sparse_tensor(
        values, numpy_helper.from_array(np.array([at], np.int64)), [2]
    )


def with_text(name="w", word="b"):
    return model(
        [
            node("Cast", ["x"], ["t"], to=TensorProto.STRING),
            node("Equal", ["t", name], ["e"]),
            node("Cast", ["e"], ["y"], to=TensorProto.FLOAT),
        ],
        ["x"],
        ["y"],
        [text(name, "a", word)],
    )


def with_sparse(name="s", at=1):
    return model(
        [node("Add", ["x", name], ["y"])],
        ["x"],
        ["y"],
        sparse_initializer=[sparse(name, at)],
    )


def test_an_initializer_of_text_comes_along_whole():
    made = with_text()
    found = partition_of(made)

    proto = found.model()

    assert dict(found.weights) == {}
    assert list(proto.graph.initializer) == list(made.graph.initializer)


def calling(body_op="Neg", *, name="double", unused=False):
    """y = f(x) where f calls g."""
    opset = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    inner = helper.make_function(
        "own", "inner", ["v"], ["r"], [node(body_op, ["v"], ["r"])], opset
    )
    outer = helper.make_function(
        "own",
        name,
        ["v"],
        ["r"],
        [helper.make_node("inner", ["v"], ["r"], domain="own")],
        opset,
    )
    other = helper.make_function(
        "own", "other", ["v"], ["r"], [node("Abs", ["v"], ["r"])], opset
    )
    return model(
        [helper.make_node(name, ["x"], ["y"], domain="own")],
        ["x"],
        ["y"],
        opsets=[("", 21), ("own", 1)],
        functions=[inner, outer, *([other] if unused else [])],
    )


KEPT = {"keeps_functions": {("own", "double"), ("own", "inner"), ("own", "other")}}


def test_the_functions_that_a_piece_calls_come_along_and_no_others():
    proto = partition_of(calling(unused=True), **KEPT).model()

    assert [f.name for f in proto.functions] == ["inner", "double"]
    onnx.checker.check_model(proto)
    (result,) = ReferenceEvaluator(proto).run(
        None, {"x": np.array([1, -2], np.float32)}
    )
    assert result.tolist() == [-1, 2]


def digest(made, nodes=None, **how):
    return partition_of(made, nodes, **how).digest


RENAMED = {
    "x": "in",
    "w": "kernel",
    "b": "bias1",
    "m": "t1",
    "s": "t2",
    "y": "out",
    "node": "layer/",
}


def test_names_of_values_and_nodes_do_not_change_the_digest():
    assert digest(three_steps(**RENAMED)) == digest(three_steps())


def test_docs_and_metadata_do_not_change_the_digest():
    made = three_steps()
    made.graph.doc_string = made.graph.node[0].doc_string = made.graph.initializer[
        0
    ].doc_string = "new"
    made.graph.node[0].metadata_props.add(key="from", value="line 3")
    made.producer_name = "another"

    assert digest(made) == digest(three_steps())


def nudged_weight():
    weight = np.arange(900, dtype=np.float32).reshape(30, 30) / 7
    weight[29, 29] = np.nextafter(weight[29, 29], np.float32(0))
    return weight


@pytest.mark.parametrize(
    "change",
    [{"last": "Abs"}, {"weight": nudged_weight()}, {"bias": 2}, {"opset": 20}],
    ids=["operator", "large weight", "small weight", "opset"],
)
def test_content_changes_the_digest(change):
    assert digest(three_steps(**change)) != digest(three_steps())


def clipped(*, axis=0, elem_type=TensorProto.FLOAT, shape=(2,), swap=False):
    reads = ["b", "a"] if swap else ["a", "b"]
    return model(
        [node("Sub", reads, ["d"]), node("Softmax", ["d"], ["y"], axis=axis)],
        [value("a", elem_type, shape), value("b", elem_type, shape)],
        [value("y", elem_type, shape)],
    )


@pytest.mark.parametrize(
    "change",
    [
        {"axis": -1},
        {"elem_type": TensorProto.FLOAT16},
        {"shape": (3,)},
        {"shape": ("N",)},
    ],
    ids=["attribute", "type", "shape", "open shape"],
)
def test_attributes_and_boundary_types_change_the_digest(change):
    assert digest(clipped(**change)) != digest(clipped())


def test_order_of_inputs_by_first_use_is_canonical_but_wiring_is_not_lost():
    twice = model([node("Sub", ["a", "a"], ["y"])], ["a", "b"], ["y"])
    apart = model([node("Sub", ["a", "b"], ["y"])], ["a", "b"], ["y"])

    assert digest(clipped(swap=True)) == digest(clipped())
    assert digest(twice) != digest(apart)


def test_which_results_flow_out_changes_the_digest():
    graph = [node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["y"])]

    assert digest(model(graph, ["x"], ["a", "y"])) != digest(model(graph, ["x"], ["y"]))


def test_text_and_sparse_initializers_are_part_of_the_digest():
    assert digest(with_text("other")) == digest(with_text())
    assert digest(with_text(word="c")) != digest(with_text())
    assert digest(with_sparse("other")) == digest(with_sparse())
    assert digest(with_sparse(at=0)) != digest(with_sparse())


def filled(number, name, doc=""):
    fill = node("ConstantOfShape", ["n"], ["y"], value=tensor(name, [number]))
    fill.attribute[0].doc_string = doc
    return model([fill], [value("n", INT64, [1])], [value("y", shape=["N"])])


def test_tensors_in_attributes_count_by_content():
    assert digest(filled(1, "k")) == digest(filled(1, "renamed", "doc"))
    assert digest(filled(2, "k")) != digest(filled(1, "k"))


def branching(a="a", b="b", *, then=None, local="t", name=""):
    return model(
        [
            node("Neg", ["x"], [a]),
            node("Abs", ["x"], [b]),
            conditional("c", then or a, b, "y", local=local, name=name),
        ],
        [value("c", BOOL, []), "x"],
        ["y"],
    )


def test_names_inside_bodies_do_not_change_the_digest():
    assert digest(branching("p", "q", local="u", name="if")) == digest(branching())


def test_what_bodies_read_changes_the_digest():
    assert digest(branching(then="b")) != digest(branching())


def test_bodies_of_functions_are_part_of_the_digest():
    assert digest(calling("Abs"), **KEPT) != digest(calling("Neg"), **KEPT)
    assert digest(calling(unused=True), **KEPT) == digest(calling(), **KEPT)


def test_the_default_domain_has_two_spellings_and_one_digest():
    spelled = three_steps()
    spelled.opset_import[0].domain = "ai.onnx"

    assert digest(spelled) == digest(three_steps())


def test_the_digest_does_not_depend_on_where_weights_are_stored(tmp_path):
    made = three_steps()
    (tmp_path / "deep").mkdir()
    digests = {digest(made)}
    for folder, offset in ((tmp_path, 0), (tmp_path / "deep", 4096)):
        data = made.graph.initializer[0].raw_data
        (folder / "w.bin").write_bytes(bytes(offset) + data)
        moved = onnx.ModelProto()
        moved.CopyFrom(made)
        weight = moved.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, text in (
            ("location", "w.bin"),
            ("offset", str(offset)),
            ("length", str(len(data))),
        ):
            weight.external_data.add(key=key, value=text)
        (folder / "m.onnx").write_bytes(moved.SerializeToString())
        (found,) = partitions(folder / "m.onnx", [0, 1, 2])
        digests.add(found.digest)

    assert len(digests) == 1


def test_the_same_piece_in_another_model_has_the_same_digest():
    alone = three_steps()
    inside = three_steps(**RENAMED)
    inside.graph.node.insert(0, node("Neg", ["raw"], ["in"]))
    inside.graph.input[0].name = "raw"

    assert digest(inside, [1, 2, 3]) == digest(alone)


def test_a_name_is_made_of_prefix_ep_digits_and_number():
    options = SessionOptions()
    options.add_session_config_entry("ep.context_node_name_prefix", "my-")

    first, second = partitions(three_steps(), [0, 1], [2], options=options)

    assert first.name == f"my-First_{first.digest[:16]}_0"
    assert second.name == f"my-First_{second.digest[:16]}_1"


def test_integer_boundaries_are_typed():
    found = partition_of(
        model(
            [node("Shape", ["x"], ["y"])],
            [value("x", shape=("N", None))],
            [value("y", INT64, [2])],
        )
    )

    assert str(found.inputs[0].type) == "float[N,?]"
    assert str(found.outputs[0].type) == "int64[2]"
