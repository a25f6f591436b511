"""Models made to take all memory or time, or to lead native code astray, are refused
with a typed error, or cost nothing.
"""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from epctx_cli import arrays
from epctx_onnxruntime.newest_versions import fit_versions
from onnx import TensorProto, helper, numpy_helper
from support.sim_eps import QNN, with_eps
from support.small_models import chain, finished, saved, tensor

import epctx_core as epctx
from epctx_core.graph import functions, tensor_bytes

HUGE = 1 << 62


def with_functions(definitions, call, domain="own"):
    """A model that calls one of its functions; each definition is a name and its
    nodes.
    """
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    model = finished(
        [helper.make_node(call, ["x"], ["y"], domain=domain)],
        [tensor("x")],
        [tensor("y")],
    )
    model.opset_import.add(domain="own", version=1)
    for name, nodes in definitions:
        model.functions.append(
            helper.make_function("own", name, ["a"], ["b"], nodes, imports)
        )
    return model


def calls(*names):
    """Nodes that call functions one after the other, from a to b."""
    values = ["a", *[f"v{i}" for i in range(len(names) - 1)], "b"]
    return [
        helper.make_node(n, [values[i]], [values[i + 1]], domain="own")
        for i, n in enumerate(names)
    ]


def doubling(levels):
    """Functions of which each calls the one before it twice."""
    first = ("F0", [helper.make_node("Relu", ["a"], ["b"])])
    return with_functions(
        [
            first,
            *[(f"F{i}", calls(f"F{i - 1}", f"F{i - 1}")) for i in range(1, levels)],
        ],
        f"F{levels - 1}",
    )


def loads(model, options=None):
    """Load a model and close it again."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    epctx.InferenceSession(data, options).close()


def with_weight(**fields):
    """A model that adds a weight which is written field by field."""
    weight = TensorProto(name="w", **fields)
    return finished(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor("x")],
        [tensor("y")],
        [weight],
    )


def test_functions_that_become_a_million_nodes_are_refused_before_anything_follows_them():
    model = doubling(60)

    with pytest.raises(epctx.InvalidGraph, match="become") as caught:
        loads(model)

    assert f"{functions.MOST_NODES:,}" in str(caught.value)
    assert "model-invalid" in [
        f.code for f in epctx.verify_model(model.SerializeToString()).findings
    ]


@pytest.mark.parametrize("where", ["in a node", "as a default"])
def test_a_large_attribute_of_a_function_is_not_copied_for_each_call_without_end(where):
    large = helper.make_attribute("value_string", bytes(1 << 20))
    nodes = [
        helper.make_node("Constant", [], ["c"]),
        helper.make_node("Relu", ["a"], ["b"]),
    ]
    model = with_functions([("F", nodes)], "F")
    (function,) = model.functions
    holder = (
        function.node[0].attribute if where == "in a node" else function.attribute_proto
    )
    holder.append(large)
    if where == "as a default":
        del function.node[0]
    (call,) = model.graph.node
    model.graph.node.extend([call] * 999)
    for i, node in enumerate(model.graph.node):
        node.output[:] = ["y" if i == 999 else f"v{i}"]

    with pytest.raises(
        epctx.InvalidGraph,
        match=r"become [12],000 nodes of 1,0\d\d,\d\d\d,\d\d\d bytes",
    ):
        loads(model)


def test_functions_within_the_bound_are_counted_and_run():
    model = doubling(8)

    assert functions.measure_calls(model.graph.node, model.functions)[0] == 2**7 + (
        2**8 - 2
    )
    with epctx.InferenceSession(model.SerializeToString()) as session:
        (y,) = session.run(None, {"x": np.full((2, 3), -1, np.float32)})
    assert not y.any()


@pytest.mark.parametrize("circle", [["A"], ["A", "B"], ["A", "B", "C"]])
def test_functions_that_call_each_other_in_a_circle_are_refused(circle):
    definitions = [
        (name, calls(circle[(i + 1) % len(circle)])) for i, name in enumerate(circle)
    ]
    model = with_functions(definitions, "A")

    with pytest.raises(epctx.InvalidGraph):
        functions.measure_calls(model.graph.node, model.functions)
    with pytest.raises(epctx.InvalidGraph):
        loads(model)


def test_a_chain_of_functions_in_deep_bodies_is_counted_without_recursion():
    def deep(inner):
        for level in range(25):
            body = helper.make_graph(inner, f"g{level}", [], [tensor("b")])
            inner = (
                [
                    helper.make_node(
                        "If", ["a"], ["b"], then_branch=body, else_branch=body
                    )
                ]
                if level < 1
                else [helper.make_node("If", ["a"], ["b"], then_branch=body)]
            )
        return inner

    model = with_functions(
        [(f"F{i}", deep(calls(f"F{i + 1}"))) for i in range(90)], "F0"
    )

    assert functions.measure_calls(model.graph.node, model.functions)[0] > 90


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dims": [HUGE, HUGE, 4], "raw_data": b""}, "no memory holds"),
        ({"dims": [0, HUGE, HUGE], "raw_data": b""}, "no memory holds"),
        ({"dims": [2] * 1000, "raw_data": b""}, "1,000 dimensions"),
        ({"dims": [HUGE] * 400, "raw_data": b""}, "400 dimensions"),
        ({"dims": [-2, 3], "raw_data": bytes(24)}, "negative dimension"),
        ({"dims": [1 << 40], "float_data": [1.0]}, "needs 4,398,046,511,104 bytes"),
        ({"dims": [1 << 40], "raw_data": bytes(8)}, "has 8"),
    ],
)
def test_a_weight_with_an_impossible_shape_is_refused(fields, words):
    with pytest.raises(epctx.InvalidGraph, match=words):
        loads(with_weight(data_type=TensorProto.FLOAT, **fields))


@pytest.mark.parametrize(
    "way", ["declared", "sequence", "Reshape", "Expand", "ConstantOfShape"]
)
def test_a_value_of_more_dimensions_than_there_can_be_is_refused_before_it_is_inferred_for_each_node(
    way,
):
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1] * 1000)
        for name in "xy"
    )
    nodes, weights = [helper.make_node("Relu", ["x"], ["y"])], []
    if way == "sequence":
        kind = helper.make_sequence_type_proto(x.type)
        x, y = helper.make_value_info("x", kind), helper.make_value_info("y", kind)
        nodes[0].op_type = "Identity"
    elif way != "declared":
        x, y = (
            tensor("x", shape=[1]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
        )
        inputs = ["s"] if way == "ConstantOfShape" else ["x", "s"]
        nodes = [
            helper.make_node(way, inputs, ["z"]),
            helper.make_node("Relu", ["z"], ["y"]),
        ]
        weights = [numpy_helper.from_array(np.ones(1000, np.int64), "s")]
    model = finished(nodes, [x], [y], weights)

    with pytest.raises(epctx.InvalidGraph, match="1,000 dimensions; at most 32"):
        loads(model)

    assert "model-invalid" in [
        f.code for f in epctx.verify_model(model.SerializeToString()).findings
    ]


def in_a_file(path, count, size):
    """A model of many constants that all are the same bytes of one file, which has no
    blocks on the disk.
    """
    nodes = []
    for i in range(count):
        value = TensorProto(
            data_type=TensorProto.UINT8, dims=[size], data_location=TensorProto.EXTERNAL
        )
        value.external_data.add(key="location", value="w.bin")
        nodes.append(helper.make_node("Constant", [], [f"c{i}"], value=value))
    nodes.append(helper.make_node("Relu", ["x"], ["y"]))
    with path.with_name("w.bin").open("wb") as file:
        file.truncate(size)
    return saved(finished(nodes, [tensor("x")], [tensor("y")]), path)


def test_tensors_that_name_the_same_bytes_again_and_again_are_not_copied_without_end(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tensor_bytes, "COPIED_LIMIT", 10_000)
    model = in_a_file(tmp_path / "m.onnx", 200, 1000)

    with pytest.raises(epctx.InvalidGraph, match="again and again"):
        epctx.InferenceSession(model)


def test_a_few_tensors_of_the_same_bytes_are(tmp_path):
    epctx.InferenceSession(in_a_file(tmp_path / "m.onnx", 3, 1000)).close()


@pytest.mark.parametrize("where", ["function", "import"])
def test_names_that_are_not_text_are_refused_also_in_functions_and_imports(where):
    model = with_functions(
        [("F", [helper.make_node("Marked", ["a"], ["b"], domain="own")])], "F"
    )
    if where == "import":
        model.opset_import.add(domain="Marked", version=1)
    spoilt = model.SerializeToString().replace(b"Marked", b"\xff\xfearked"[:6])

    with pytest.raises(epctx.InvalidGraph, match="not UTF-8"):
        loads(spoilt)


def test_bodies_deeper_than_protobuf_reads_are_no_model():
    node = helper.make_node("Relu", ["x"], ["y"]).SerializeToString()

    def field(number, content):
        length = len(content)
        return (
            bytes([number << 3 | 2])
            + bytes([length & 127 | 128, length >> 7 & 127 | 128, length >> 14])
            + content
        )

    for _ in range(200):
        graph = field(1, node)
        node = field(
            5, field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        ) + field(4, b"If")
    spoilt = b"\x08\x08" + field(7, field(1, node))

    with pytest.raises(epctx.InvalidProtobuf):
        loads(spoilt)
    assert "model-unreadable" in [f.code for f in epctx.verify_model(spoilt).findings]


@pytest.mark.parametrize("kind", ["Expand", "Tile", "ConstantOfShape"])
@pytest.mark.parametrize("eps", [(), (QNN,)])
@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_constants_that_would_fill_the_memory_are_not_computed_when_a_model_is_loaded(
    kind, eps, level
):
    inputs = ["s"] if kind == "ConstantOfShape" else ["one", "s"]
    nodes = [
        helper.make_node(kind, inputs, ["c"]),
        helper.make_node("ReduceMax", ["c"], ["m"], keepdims=0),
        helper.make_node("Add", ["x", "m"], ["y"]),
    ]
    given = [
        numpy_helper.from_array(np.array([1 << 42], np.int64), "s"),
        numpy_helper.from_array(np.ones(1, np.float32), "one"),
    ]
    options = with_eps(*eps)
    options.graph_optimization_level = epctx.GraphOptimizationLevel[level]

    loads(finished(nodes, [tensor("x")], [tensor("y")], given), options)


def test_a_bomb_of_compressed_arrays_is_refused_before_it_is_unpacked(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(arrays, "_MOST_BEYOND_FILE", 1 << 20)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(1 << 20, np.float32))

    with pytest.raises(epctx.InvalidArgument, match="its arrays have 4,194,"):
        arrays.load_inputs(str(tmp_path / "bomb.npz"), ())


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }" % (HUGE, HUGE),
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % (1 << 40),
        b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        b"{'descr': '<f4', 'shape': ('''",
        b"(" * 5000,
        b"__import__('os').abort()",
    ],
)
def test_an_array_whose_header_lies_is_refused(tmp_path, header):
    content = (
        np.lib.format.magic(1, 0)
        + len(header).to_bytes(2, "little")
        + header
        + bytes(64)
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x.npy", content)
    (tmp_path / "in.npz").write_bytes(buffer.getvalue())

    with pytest.raises(epctx.InvalidArgument):
        arrays.load_inputs(str(tmp_path / "in.npz"), ())


@pytest.mark.parametrize("shape", [(1 << 40,), (HUGE, HUGE)])
def test_no_values_are_made_for_an_input_of_an_impossible_shape(shape):
    model = finished(
        [helper.make_node("Relu", ["x"], ["y"])],
        [tensor("x", shape=shape)],
        [tensor("y", shape=shape)],
    )

    with (
        epctx.InferenceSession(model.SerializeToString()) as session,
        pytest.raises(epctx.InvalidArgument, match="too large for random values"),
    ):
        inputs = session.get_inputs()
        arrays.make_inputs(inputs, arrays.merge_lengths(inputs), 0)


def test_values_for_a_length_below_zero_are_made_as_for_an_open_one():
    model = finished(
        [helper.make_node("Relu", ["x"], ["y"])],
        [tensor("x", shape=(-5,))],
        [tensor("y", shape=(-5,))],
    )

    with epctx.InferenceSession(model.SerializeToString()) as session:
        inputs = session.get_inputs()
        made = arrays.make_inputs(inputs, arrays.merge_lengths(inputs), 0)

    assert made["x"].shape == (1,)


def test_an_operator_version_of_more_bits_than_onnx_has_is_left_for_onnxruntime_to_refuse():
    model = chain(["Relu"])
    model.opset_import[0].version = 1 << 40

    fit_versions(model)

    assert model.opset_import[0].version == 1 << 40


def test_a_manifest_that_would_fill_the_memory_is_refused_before_it_is_decoded():
    model = chain(["Relu"])
    model.metadata_props.add(key="epctx.manifest", value="[" + "[]," * 1000 + "0]")
    data = model.SerializeToString()
    options = epctx.SessionOptions()
    options.input_budget = epctx.InputBudget(manifest_entries=1000)

    with pytest.raises(epctx.InvalidGraph, match="more than 1,000 entries"):
        loads(data, options)
    with pytest.raises(epctx.InvalidGraph, match="more than 1,000 entries"):
        epctx.inspect_model(data, budget=options.input_budget)
    assert not epctx.verify_model(data, options).ok


def test_a_model_may_call_nothing_that_runs_code():
    model = chain(["Relu"])
    model.graph.node[0].domain = "ai.onnx.contrib"
    model.graph.node[0].op_type = "PyOp"
    model.opset_import.add(domain="ai.onnx.contrib", version=1)

    with pytest.raises(epctx.NotImplementedByProvider):
        loads(model)
