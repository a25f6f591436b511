"""The EPContext node between protobuf and record: nothing lost, nothing guessed, wrong types refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, NodeProto, TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from epctx_core.context.node import BOUNDARY_TYPES, is_context_node, read_context_node, read_context_nodes
from epctx_core.context.node_writer import ContextNodeMaker, make_context_node
from epctx_core.errors import InvalidGraph

GOLDEN = Path(__file__).parent / "golden"


def all_ten():
    return make_context_node(
        NodeProto(
            name="pre_QNNExecutionProvider_0123456789abcdef_0",
            input=["x", "mask"],
            output=["y"],
            doc_string="EPContext node for QNNExecutionProvider",
        ),
        {
            "ep_sdk_version": "sim-2.51.0",
            "hardware_architecture": "sim-v73",
            "max_size": 4096,
            "notes": "not for hardware",
            "onnx_model_filename": "model.onnx",
        },
        source="QNNExecutionProvider",
        main_context=True,
        embed_mode=True,
        cache=b"\x00\xff\xfe payload \x80",
    )


def test_a_node_with_all_ten_attributes_has_these_bytes():
    golden = (GOLDEN / "epcontext_node.pb").read_bytes()

    made = all_ten().SerializeToString(deterministic=True)

    assert made == golden
    assert {a.name for a in NodeProto.FromString(golden).attribute} == set(schema().attributes)


def schema():
    """The operator as onnxruntime declares it."""
    return next(s for s in get_all_operator_schema() if s.name == "EPContext" and s.domain == "com.microsoft")


def test_the_defaults_are_those_of_onnxruntimes_schema():
    defaults = {
        name: AttributeProto.FromString(a._default_value).i
        for name, a in schema().attributes.items()
        if a._default_value
    }

    record = read_context_node(node_with(), 0)

    assert defaults == {"main_context": 1, "embed_mode": 1, "max_size": 0}
    assert (record.attributes["main_context"], record.attributes["embed_mode"]) == (1, 1)


def test_the_types_of_the_boundary_are_those_of_onnxruntimes_schema():
    (constraint,) = schema().type_constraints
    names = {f"tensor({name.lower()})" for name in map(TensorProto.DataType.Name, BOUNDARY_TYPES)}

    assert names == set(constraint.allowed_type_strs)


def node_with(*attributes, name="n", outputs=("y",)):
    made = helper.make_node("EPContext", ["x"], list(outputs), name=name, domain="com.microsoft")
    made.attribute.extend(attributes)
    return made


def attribute(name, given_value):
    return helper.make_attribute(name, given_value)


def test_what_is_not_written_has_the_operators_defaults():
    record = read_context_node(node_with(), 4)

    assert (record.main_context, record.embed_mode, record.source) == (True, True, "")
    assert (record.cache, record.partition_name, record.index) == (None, "n", 4)
    assert record.attributes == {"main_context": 1, "embed_mode": 1, "source": ""}


@given(
    name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    source=st.sampled_from(["QNN", "OpenVINOExecutionProvider", ""]),
    main_context=st.booleans(),
    embed_mode=st.booleans(),
    cache=st.none() | st.binary(min_size=1, max_size=50),
    attributes=st.dictionaries(
        st.from_regex(r"vendor_[a-z]{1,8}", fullmatch=True),
        st.integers(-(2**63), 2**63 - 1)
        | st.floats(width=32, allow_nan=False)
        | st.text(st.characters(codec="utf-8"), max_size=10)
        | st.lists(st.integers(-5, 5), min_size=1, max_size=4),
        max_size=4,
    ),
)
def test_what_was_written_is_read(name, source, main_context, embed_mode, cache, attributes):
    node = make_context_node(
        NodeProto(name=name, input=["a", "b"], output=["c"]),
        attributes,
        source=source,
        main_context=main_context,
        embed_mode=embed_mode,
        cache=cache,
    )

    record = read_context_node(NodeProto.FromString(node.SerializeToString()), 0)

    assert (record.name, record.partition_name, record.source) == (name, name, source)
    assert (record.main_context, record.embed_mode, record.cache) == (main_context, embed_mode, cache)
    assert (record.inputs, record.outputs) == (("a", "b"), ("c",))
    own = {"embed_mode", "main_context", "partition_name", "source"}
    assert {k: v for k, v in record.attributes.items() if k not in own} == attributes


@given(st.binary(min_size=1))
def test_a_payload_is_bytes_whatever_they_are(payload):
    record = read_context_node(node_with(attribute("ep_cache_context", payload)), 0)

    assert record.cache == payload
    assert record.file_name is None
    assert "ep_cache_context" not in record.attributes


def test_attributes_stand_in_alphabetical_order():
    names = [a.name for a in all_ten().attribute]

    assert names == sorted(names)


@pytest.mark.parametrize(
    ("name", "wrong", "kinds"),
    [
        ("main_context", "1", "STRING; the operator wants INT"),
        ("embed_mode", 1.0, "FLOAT; the operator wants INT"),
        ("max_size", [1], "INTS; the operator wants INT"),
        ("source", 1, "INT; the operator wants STRING"),
        ("ep_cache_context", helper.make_tensor("t", TensorProto.UINT8, [1], [1]), "TENSOR; .* STRING"),
        ("partition_name", ["a"], "STRINGS; the operator wants STRING"),
        ("ep_sdk_version", 2, "INT; the operator wants STRING"),
        ("hardware_architecture", 2, "INT; the operator wants STRING"),
        ("notes", 2, "INT; the operator wants STRING"),
        ("onnx_model_filename", 2, "INT; the operator wants STRING"),
    ],
)
def test_an_attribute_of_the_wrong_type_is_refused(name, wrong, kinds):
    with pytest.raises(InvalidGraph, match=f"'n' has the attribute '{name}' as {kinds}") as caught:
        read_context_node(node_with(attribute(name, wrong)), 0)

    assert caught.value.node == "n"


@pytest.mark.parametrize("name", ["source", "partition_name"])
def test_names_that_are_not_utf_8_are_refused(name):
    with pytest.raises(InvalidGraph, match="not UTF-8"):
        read_context_node(node_with(attribute(name, b"\xff")), 0)


def test_an_attribute_without_a_type_is_refused():
    with pytest.raises(InvalidGraph, match="'vendor', which cannot be read"):
        read_context_node(node_with(AttributeProto(name="vendor")), 0)


def test_a_node_without_outputs_is_refused():
    with pytest.raises(InvalidGraph, match="has no outputs"):
        read_context_node(node_with(outputs=()), 0)


@pytest.mark.parametrize("elem_type", [29, 255, -1, 0])
def test_a_tensor_of_a_type_that_onnx_does_not_have_is_refused_with_its_attribute(elem_type):
    vendor = AttributeProto(name="vendor", type=AttributeProto.TENSOR, t=TensorProto(data_type=elem_type))

    with pytest.raises(InvalidGraph, match=r"'vendor', which cannot be read: .*[Ee]lement type"):
        read_context_node(node_with(vendor), 0)


def test_a_vendors_own_attributes_are_kept_with_their_types():
    record = read_context_node(
        node_with(
            attribute("blob", b"\xff\x00"),
            attribute("ratio", 0.5),
            attribute("sizes", [1, 2]),
            attribute("table", helper.make_tensor("t", TensorProto.INT64, [2], [1, 2])),
        ),
        0,
    )

    assert record.attributes["blob"] == b"\xff\x00"
    assert record.attributes["ratio"] == 0.5
    assert record.attributes["sizes"] == [1, 2]
    assert np.array_equal(record.attributes["table"], [1, 2])


def test_attributes_cannot_be_changed():
    with pytest.raises(TypeError):
        read_context_node(node_with(), 0).attributes["source"] = "QNN"


def test_a_file_name_is_what_a_payload_is_not():
    outside = [attribute("embed_mode", 0), attribute("ep_cache_context", "a_qnn.bin")]

    assert read_context_node(node_with(*outside), 0).file_name == "a_qnn.bin"
    assert read_context_node(node_with(outside[0]), 0).file_name is None
    assert read_context_node(node_with(outside[1]), 0).file_name is None


def test_bytes_where_a_file_name_should_be_are_refused():
    record = read_context_node(
        node_with(attribute("embed_mode", 0), attribute("ep_cache_context", b"\xff")), 0
    )

    with pytest.raises(InvalidGraph, match="no file name") as caught:
        _ = record.file_name

    assert "embed_mode=1" in caught.value.hint


def graph_of(*nodes):
    return helper.make_graph(list(nodes), "g", [], [])


def test_only_context_nodes_are_read_with_their_place():
    other = helper.make_node("EPContext", ["x"], ["a"], domain="another")
    plain = helper.make_node("Neg", ["x"], ["b"])

    records = read_context_nodes(graph_of(plain, node_with(), other))

    assert [(r.index, r.name) for r in records] == [(1, "n")]
    assert [is_context_node(n) for n in (plain, node_with(), other)] == [False, True, False]


def test_nodes_without_a_name_are_called_by_their_place():
    records = read_context_nodes(graph_of(node_with(name=""), node_with(name="")))

    assert [r.name for r in records] == ["EPContext_0", "EPContext_1"]


def test_nodes_of_one_name_are_told_apart_and_keep_their_graphs_names():
    records = read_context_nodes(
        graph_of(node_with(), node_with(), node_with(attribute("partition_name", "other")))
    )

    assert [r.name for r in records] == ["n", "n#1", "n#2"]
    assert [r.partition_name for r in records] == ["n", "n", "other"]


def test_a_reference_made_from_a_template_is_the_node_made_alone():
    maker = ContextNodeMaker("QNNExecutionProvider", embed_mode=False)
    shared, other = {"notes": "a"}, {"notes": "b", "max_size": 1}

    for name, attributes, doc in (
        ("n0", shared, "d"),
        ("n1", shared, "d"),
        ("n2", other, "d"),
        ("n3", shared, "e"),
    ):
        made = NodeProto()
        partition = SimpleNamespace(
            name=name, graph_name=f"graph of {name}", input_names=["x", ""], output_names=[f"{name}_y"]
        )
        maker.reference(partition, attributes, doc).write(made)

        assert made == make_context_node(
            NodeProto(name=name, input=["x", ""], output=[f"{name}_y"], doc_string=doc),
            {**attributes, "partition_name": f"graph of {name}"},
            source="QNNExecutionProvider",
            main_context=False,
            embed_mode=False,
            cache=None,
        )


def test_nodes_that_differ_in_names_only_are_told_apart():
    attributes = {"notes": "same", "max_size": 3}
    graph = helper.make_graph([], "g", [], [])
    for name in ("first", "second", "third"):
        graph.node.append(
            make_context_node(
                NodeProto(name=name, input=[f"{name}_in"], output=[f"{name}_out"]),
                attributes if name != "third" else {**attributes, "max_size": 4},
                source="QNN",
                main_context=False,
                embed_mode=False,
                cache=None,
            )
        )

    records = read_context_nodes(graph)

    assert records == [read_context_node(node, i) for i, node in enumerate(graph.node)]
    assert [record.attributes["partition_name"] for record in records] == ["first", "second", "third"]
    assert [record.attributes["max_size"] for record in records] == [3, 3, 4]


def test_what_could_be_changed_in_one_node_is_not_shared_with_the_next():
    graph = helper.make_graph([], "g", [], [])
    listed = [attribute("partition_name", "p"), attribute("vendor_list", [1, 2])]
    graph.node.extend([node_with(*listed, name="a"), node_with(*listed, name="b")])

    one, other = read_context_nodes(graph)
    one.attributes["vendor_list"].append(3)

    assert other.attributes["vendor_list"] == [1, 2]
