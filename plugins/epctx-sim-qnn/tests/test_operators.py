"""What the table of operators takes from real networks, and the reason for each
refusal.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from epctx_sim_qnn import operators
from epctx_sim_qnn.operators import OPERATORS, Operator
from onnx import TensorProto, helper
from support.folders import MODELS
from support.networks import fill

from epctx_core.plugin import Refusal

pytestmark = pytest.mark.internal

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
VECTOR, IMAGE = (FLOAT, [4]), (FLOAT, [1, 2, 8, 8])


def network(name):
    return (
        onnx.load(MODELS / name / "model.onnx")
        if (MODELS / name).is_dir()
        else fill.fill(name)
    )


def answer(scene, model, **options):
    """Node names or operators taken, and refused nodes by reason."""
    taken, refused = [], {}
    for item in scene.asked(model, **options)[1]:
        if isinstance(item, Refusal):
            refused[item.reason] = [node.op_type for node in item.nodes]
        else:
            taken.append([node.op_type for node in item.nodes])
    return taken, refused


def reason(scene, node, inputs, outputs, weights=None, **keywords):
    """The reason for which a model of one node is refused; None if it is taken."""
    opset = keywords.pop("opset", 17)
    _, refused = answer(
        scene, scene.model([node], inputs, outputs, weights, opset), **keywords
    )
    return next(iter(refused), None)


@pytest.mark.parametrize(
    ("name", "partitions", "share"),
    [
        ("resnet", 1, 1.0),
        ("resnet50", 1, 1.0),
        ("squeezenet", 1, 1.0),
        ("densenet121", 1, 1.0),
        ("inception_v1", 1, 1.0),
        ("shufflenet", 1, 1.0),
        ("bert", 1, 1.0),
        ("lstm", 3, 0.2),
    ],
)
def test_most_nodes_of_real_networks_are_taken(scene, name, partitions, share):
    model = network(name)
    total = len(model.graph.node)

    taken, _ = answer(scene, model)

    assert len(taken) <= partitions
    assert sum(map(len, taken)) / total >= share


def test_of_the_lstm_network_both_lstms_are_taken_and_shape_arithmetic_is_left(scene):
    taken, refused = answer(scene, network("lstm"))

    assert sum(group.count("LSTM") for group in taken) == 2
    assert "Shape is not an operator of QNN's HTP backend" in refused
    assert "Constant: no node that QNN takes reads it" in refused


def test_asking_twice_gives_the_same_answer(scene):
    first, again = (answer(scene, network("bert")) for _ in range(2))

    assert first == again


RELU = helper.make_node("Relu", ["x"], ["y"])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ((FLOAT, [2, 3]), None),
        ((TensorProto.FLOAT16, [2, 3]), None),
        ((FLOAT, []), None),
        ((FLOAT, [1, 1, 1, 1, 1]), None),
        (
            (FLOAT, [1, 1, 1, 1, 1, 1]),
            "Relu: a value has rank 6, and QNN takes at most 5",
        ),
        (
            (FLOAT, ["batch", 3]),
            "Relu: a dimension is open, and QNN takes static shapes only",
        ),
        (
            (FLOAT, [None, 3]),
            "Relu: a dimension is open, and QNN takes static shapes only",
        ),
        ((FLOAT, [0, 3]), "Relu: a value is empty"),
        ((TensorProto.DOUBLE, [2]), "Relu: QNN does not take double here"),
    ],
    ids=str,
)
def test_types_and_shapes(scene, kind, expected):
    assert reason(scene, RELU, {"x": kind}, {"y": kind}) == expected


def test_a_value_whose_rank_is_known_only_in_a_run_is_refused(scene):
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    inputs = {"x": (FLOAT, [4]), "shape": (INT64, ["n"])}

    _, refused = answer(scene, scene.model(nodes, inputs, {"y": (FLOAT, [4])}))

    assert refused["Relu: the type or rank of a value is not known before a run"] == [
        "Relu"
    ]


def test_a_second_result_that_nobody_reads_does_not_matter(scene):
    node = helper.make_node("Dropout", ["x"], ["y", "mask"])

    assert reason(scene, node, {"x": VECTOR}, {"y": VECTOR}) is None


def test_operators_of_other_domains_are_named_with_their_domain(scene):
    node = helper.make_node("FastGelu", ["x"], ["y"], domain="com.microsoft")

    found = reason(scene, node, {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])})

    assert found == "com.microsoft:FastGelu is not an operator of QNN's HTP backend"


def test_strings_are_refused(scene):
    node = helper.make_node("Identity", ["x"], ["y"])
    kind = (TensorProto.STRING, [2])

    assert (
        reason(scene, node, {"x": kind}, {"y": kind})
        == "Identity: QNN does not take string here"
    )


def test_control_flow_is_refused(scene):
    body = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"])],
        "b",
        [],
        [helper.make_tensor_value_info("z", FLOAT, [2])],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)

    found = reason(
        scene, node, {"c": (BOOL, []), "x": (FLOAT, [2])}, {"y": (FLOAT, [2])}
    )

    assert found == "If: QNN has no control flow"


RESHAPE = helper.make_node("Reshape", ["x", "shape"], ["y"])


def test_a_shape_must_be_a_constant(scene):
    found = reason(
        scene,
        RESHAPE,
        {"x": (FLOAT, [4]), "shape": (INT64, [2])},
        {"y": (FLOAT, [2, 2])},
    )

    assert found == "Reshape: QNN needs input 1 to be a constant"


def test_a_shape_from_a_weight_is_a_constant(scene):
    shape = {"shape": np.array([2, 2])}

    assert (
        reason(scene, RESHAPE, {"x": (FLOAT, [4])}, {"y": (FLOAT, [2, 2])}, shape)
        is None
    )


def test_a_constant_node_goes_with_the_node_that_reads_it(scene):
    constant = helper.make_node("Constant", [], ["shape"], value_ints=[2, 2])
    model = scene.model(
        [constant, RESHAPE], {"x": (FLOAT, [4])}, {"y": (FLOAT, [2, 2])}
    )

    assert answer(scene, model) == ([["Constant", "Reshape"]], {})


def test_a_constant_for_others_alone_is_left_to_them(scene):
    nodes = [
        helper.make_node("Constant", [], ["k"], value_floats=[1.0, 2.0]),
        helper.make_node("Erf", ["k"], ["y"]),
    ]
    taken, refused = answer(scene, scene.model(nodes, {}, {"y": (FLOAT, [2])}))

    assert not taken
    assert "Constant: no node that QNN takes reads it" in refused


def constant_arithmetic(scene, reader="Gather", more=(), outputs=("y",)):
    """GatherElements of int64 on two weights, which QNN does not take; its result is
    read.
    """
    nodes = [helper.make_node("GatherElements", ["k", "at"], ["i"]), *more]
    nodes.append(
        helper.make_node(reader, ["x", "i"][: 2 if reader == "Gather" else 1], ["y"])
    )
    kinds = {
        "y": (FLOAT, [2]) if reader == "Gather" else VECTOR,
        "i": (INT64, [2]),
        "z": (INT64, [2]),
    }
    weights = {"k": np.array([3, 1, 2]), "at": np.array([2, 1])}
    return scene.model(
        nodes, {"x": VECTOR}, {name: kinds[name] for name in outputs}, weights
    )


def test_arithmetic_on_constants_is_folded_where_all_readers_are_taken(scene):
    assert answer(scene, constant_arithmetic(scene)) == (
        [["GatherElements", "Gather"]],
        {},
    )


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"outputs": ("y", "i")}, id="a result of the graph"),
        pytest.param(
            {"more": [helper.make_node("Neg", ["i"], ["z"])], "outputs": ("y", "z")},
            id="another reader",
        ),
        pytest.param({"reader": "Relu"}, id="no reader"),
    ],
)
def test_arithmetic_on_constants_that_others_read_is_left_to_them(scene, more):
    _, refused = answer(scene, constant_arithmetic(scene, **more))

    assert refused.get("GatherElements: QNN does not take int64 here") == [
        "GatherElements"
    ]


@pytest.mark.parametrize(
    ("node", "inputs", "outputs", "weights", "expected"),
    [
        pytest.param(
            helper.make_node("Gather", ["x", "i"], ["y"]),
            {"x": VECTOR},
            {"y": (FLOAT, [1])},
            {"i": np.array([-1])},
            "Gather: QNN takes no negative indices",
            id="negative index",
        ),
        pytest.param(
            helper.make_node("MaxPool", ["x"], ["y", "where"], kernel_shape=[2, 2]),
            {"x": IMAGE},
            {"y": (FLOAT, [1, 2, 7, 7]), "where": (INT64, [1, 2, 7, 7])},
            {},
            "MaxPool: QNN gives only 1 of its results",
            id="second result",
        ),
        pytest.param(
            helper.make_node("Resize", ["x", "", "s"], ["y"], mode="cubic"),
            {"x": IMAGE},
            {"y": (FLOAT, [1, 2, 16, 16])},
            {"s": np.array([1, 1, 2, 2], np.float32)},
            "Resize: QNN does not take the mode cubic",
            id="cubic",
        ),
        pytest.param(
            helper.make_node("Pad", ["x", "p"], ["y"], mode="wrap"),
            {"x": VECTOR},
            {"y": (FLOAT, [6])},
            {"p": np.array([1, 1])},
            "Pad: QNN does not take the mode wrap",
            id="wrap",
        ),
        pytest.param(
            helper.make_node("LpNormalization", ["x"], ["y"], p=1),
            {"x": VECTOR},
            {"y": VECTOR},
            {},
            "LpNormalization: QNN takes p=2 only",
            id="first norm",
        ),
        pytest.param(
            helper.make_node(
                "BatchNormalization", ["x", *"sbmv"], ["y"], training_mode=0
            ),
            {"x": IMAGE, "s": (FLOAT, [2])},
            {"y": IMAGE},
            dict.fromkeys("bmv", np.ones(2, np.float32)),
            "BatchNormalization: QNN needs input 1 to be a constant",
            id="scale from outside",
        ),
        pytest.param(
            helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction="add"),
            {"x": VECTOR, "u": (FLOAT, [1])},
            {"y": VECTOR},
            {"i": np.array([[0]])},
            "ScatterND: QNN does not reduce while it scatters",
            id="reducing scatter",
        ),
        pytest.param(
            helper.make_node("Dropout", ["x", "", "train"], ["y"]),
            {"x": VECTOR},
            {"y": VECTOR},
            {"train": np.array(True)},
            "Dropout: QNN does not train",
            id="training",
        ),
        pytest.param(
            helper.make_node("LSTM", ["x", "w", "r", "", "l"], ["y"], hidden_size=3),
            {"x": (FLOAT, [5, 1, 2]), "l": (TensorProto.INT32, [1])},
            {"y": (FLOAT, [5, 1, 1, 3])},
            {
                "w": np.ones((1, 12, 2), np.float32),
                "r": np.ones((1, 12, 3), np.float32),
            },
            "LSTM: QNN takes no sequence lengths",
            id="sequence lengths",
        ),
    ],
)
def test_conditions_of_single_operators(
    scene, node, inputs, outputs, weights, expected
):
    assert reason(scene, node, inputs, outputs, weights, opset=19) == expected


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Resize", ["x", "none", "s"], ["y"], name="n"),
        helper.make_node("Resize", ["x", "roi", "s"], ["y"], name="n"),
        helper.make_node("Resize", ["x", "none", "none", "z"], ["y"], name="n"),
        helper.make_node("Pad", ["x", "p", "none"], ["y"], name="n", mode="edge"),
        helper.make_node("Dropout", ["x", "odd", "off"], ["y"], name="n"),
    ],
    ids=["no roi", "roi from outside", "no scales", "padding", "ratio"],
)
def test_what_an_operator_ignores_is_no_reason_to_refuse_it(scene, node):
    weights = {
        "none": np.empty(0, np.float32),
        "s": np.array([1, 1, 2, 2], np.float32),
        "z": np.array([1, 2, 16, 16]),
        "p": np.array([0, 0, 4, 4, 0, 0, 4, 4]),
        "odd": np.array("0.5", np.float64),
        "off": np.array(False),
    }
    shape = [1, 2, 8, 8] if node.op_type == "Dropout" else [1, 2, 16, 16]
    inputs = {"x": IMAGE} | ({"roi": (FLOAT, [0])} if "roi" in node.input else {})
    used = {name: weights[name] for name in weights if name in node.input}

    assert reason(scene, node, inputs, {"y": (FLOAT, shape)}, used, opset=13) is None


def test_an_empty_constant_node_goes_with_the_node_that_ignores_it(scene):
    none = helper.make_tensor("v", FLOAT, [0], [])
    nodes = [
        helper.make_node("Constant", [], ["roi"], value=none),
        helper.make_node("Resize", ["x", "roi", "s"], ["y"]),
    ]
    weights = {"s": np.array([1, 1, 2, 2], np.float32)}
    model = scene.model(
        nodes, {"x": IMAGE}, {"y": (FLOAT, [1, 2, 16, 16])}, weights, 11
    )

    assert answer(scene, model) == ([["Constant", "Resize"]], {})


def quantised_relu(scene):
    scale = {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q1"]),
        helper.make_node("DequantizeLinear", ["q1", "s", "z"], ["d1"]),
        helper.make_node("Relu", ["d1"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q2"]),
        helper.make_node("DequantizeLinear", ["q2", "s", "z"], ["y"]),
    ]
    return scene.model(nodes, {"x": VECTOR}, {"y": VECTOR}, scale)


def test_a_quantised_group_is_taken_whole(scene):
    taken, refused = answer(scene, quantised_relu(scene))

    assert [len(group) for group in taken] == [5]
    assert not refused


def test_quantisation_at_the_borders_can_be_left_to_the_cpu(scene):
    taken, refused = answer(
        scene, quantised_relu(scene), offload_graph_io_quantization="1"
    )

    assert taken == [["DequantizeLinear", "Relu", "QuantizeLinear"]]
    assert all("offload_graph_io_quantization" in text for text in refused)


def test_each_line_of_the_table_fits_the_operators_own_definition():
    for (domain, name), operator in OPERATORS.items():
        assert isinstance(operator, Operator)
        if domain:
            continue
        schema = onnx.defs.get_schema(name)
        allowed = (schema.inputs or schema.outputs)[-1 if name == "Where" else 0].types
        names = [
            onnx.helper.tensor_dtype_to_string(each).split(".")[1].lower()
            for each in operator.types
        ]

        assert {f"tensor({each})" for each in names} <= allowed, name
        assert max((*operator.constant, *operator.inputs, 0)) < max(
            len(schema.inputs), 1
        ), name
        assert max((*operator.outputs, 0)) < len(schema.outputs), name


def test_the_table_names_no_type_that_the_contract_cannot_carry():
    forbidden = {
        TensorProto.STRING,
        TensorProto.DOUBLE,
        TensorProto.INT4,
        TensorProto.BFLOAT16,
    }

    assert not forbidden & operators.CASTABLE
