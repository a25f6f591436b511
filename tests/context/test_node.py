"""The EPContext node in a file and as an EP sees it: nothing lost, nothing guessed,
wrong types refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from context.compiling import Writing, model_of, one_payload
from context.loading import EP, context_model, loaded, node
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, NodeProto, TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from epctx_core import inspect_model
from epctx_core.errors import InvalidGraph
from epctx_core.plugin import EPContextNode

GOLDEN = Path(__file__).parent / "golden"
ALL = {
    "ep_sdk_version": "sim-2.51.0",
    "hardware_architecture": "sim-v73",
    "max_size": 4096,
    "notes": "not for hardware",
}
"""Attributes of a node that an EP chooses; the core writes the rest."""


def described(
    *attributes,
    content=b"payload",
    doc_string="",
    path=None,
    primaries=1,
    ep=EP,
    prefix="",
):
    """Return the EPContext nodes of a compiled model: of these attributes, as many
    primaries, then references.
    """

    def describe(partitions, writer):
        payload = writer.payload()
        payload.write(content)
        return [
            EPContextNode(
                partition,
                payload if i < primaries else None,
                int(i < primaries),
                said,
                doc_string,
            )
            for i, (partition, said) in enumerate(
                zip(partitions, attributes, strict=True)
            )
        ]

    writing = Writing(describe, path=path, ep=ep, prefix=prefix)
    return [
        each
        for each in writing.compiled(model_of(len(attributes))).graph.node
        if each.op_type == "EPContext"
    ]


def test_a_node_with_all_attributes_that_an_ep_may_give_has_these_bytes():
    (made,) = described(
        ALL,
        content=b"\x00\xff\xfe payload \x80",
        doc_string="EPContext node for QNNExecutionProvider",
        ep="QNNExecutionProvider",
        prefix="pre_",
    )
    expected = NodeProto.FromString((GOLDEN / "epcontext_node.pb").read_bytes())
    assert {a.name for a in expected.attribute} == set(schema().attributes)
    # Names follow from what is compiled; the tenth attribute is the core's, in
    # weightless mode.
    kept = [a for a in expected.attribute if a.name != "onnx_model_filename"]
    del expected.attribute[:]
    expected.attribute.extend(kept)
    expected.name, expected.input[:], expected.output[:] = (
        made.name,
        made.input,
        made.output,
    )
    next(
        a for a in expected.attribute if a.name == "partition_name"
    ).s = made.name.encode()
    expected.metadata_props.add(key="epctx.source_nodes", value="1")

    assert made.SerializeToString(deterministic=True) == expected.SerializeToString(
        deterministic=True
    )
    assert made.name.startswith("pre_QNNExecutionProvider_")


def schema():
    """The operator as onnxruntime declares it."""
    return next(
        s
        for s in get_all_operator_schema()
        if s.name == "EPContext" and s.domain == "com.microsoft"
    )


def bare(*attributes, name="n", outputs=("y",)):
    made = helper.make_node(
        "EPContext", ["x"], list(outputs), name=name, domain="com.microsoft"
    )
    made.attribute.extend(attributes)
    return made


def attribute(name, given_value):
    return helper.make_attribute(name, given_value)


def inspected(*nodes):
    return inspect_model(context_model(*nodes).SerializeToString()).ep_contexts


def test_the_defaults_are_those_of_onnxruntimes_schema():
    defaults = {
        name: AttributeProto.FromString(a._default_value).i  # noqa: SLF001 - onnxruntime shows it no other way
        for name, a in schema().attributes.items()
        if a._default_value  # noqa: SLF001
    }

    (found,) = inspected(bare())

    assert defaults == {"main_context": 1, "embed_mode": 1, "max_size": 0}
    assert (found.main_context, found.embed_mode) == (1, 1)
    assert (found.source, found.partition_name, found.payload_file) == ("", "n", None)
    assert found.attributes == {"main_context": 1, "embed_mode": 1, "source": ""}


@pytest.mark.parametrize(
    "elem_type",
    sorted(set(TensorProto.DataType.values()) - {0}),
    ids=TensorProto.DataType.Name,
)
def test_the_types_of_the_boundary_are_those_of_onnxruntimes_schema(elem_type):
    (constraint,) = schema().type_constraints
    allowed = (
        f"tensor({TensorProto.DataType.Name(elem_type).lower()})"
        in constraint.allowed_type_strs
    )
    made = model_of(1, elem_type)

    compiled = Writing(one_payload).compiled(made)

    assert ("EPContext" in {each.op_type for each in compiled.graph.node}) is allowed


VENDORS = st.dictionaries(
    st.from_regex(r"vendor_[a-z]{1,8}", fullmatch=True),
    st.integers(-(2**63), 2**63 - 1)
    | st.floats(width=32, allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=10)
    | st.lists(st.integers(-5, 5), min_size=1, max_size=4),
    max_size=4,
)
CORES = {"embed_mode", "main_context", "partition_name", "source"}


@given(attributes=VENDORS, content=st.binary(min_size=1, max_size=50))
def test_what_an_ep_says_is_written_and_read(attributes, content):
    made = described(attributes, attributes, content=content)
    read = [NodeProto.FromString(each.SerializeToString()) for each in made]

    with loaded(context_model(*read)) as given:
        payload = bytes(given.payload().view)

    assert payload == content
    assert [each.main_context for each in given.nodes] == [True, False]
    assert [(each.name, each.partition_name, each.source) for each in given.nodes] == [
        (each.name, each.name, EP) for each in made
    ]
    for each in given.nodes:
        assert {
            k: v for k, v in each.attributes.items() if k not in CORES
        } == attributes


@given(st.binary(min_size=1))
def test_a_payload_is_bytes_whatever_they_are(payload):
    made = context_model(node("n", cache=payload, embed=True))

    with loaded(made) as given:
        assert bytes(given.payload().view) == payload
        assert "ep_cache_context" not in given.nodes[0].attributes


def test_attributes_stand_in_alphabetical_order():
    for made in described(ALL, ALL):
        names = [a.name for a in made.attribute]

        assert names == sorted(names)


@pytest.mark.parametrize(
    ("name", "wrong", "kinds"),
    [
        ("main_context", "1", "STRING; the operator has INT"),
        ("embed_mode", 1.0, "FLOAT; the operator has INT"),
        ("max_size", [1], "INTS; the operator has INT"),
        ("source", 1, "INT; the operator has STRING"),
        (
            "ep_cache_context",
            helper.make_tensor("t", TensorProto.UINT8, [1], [1]),
            "TENSOR; .* STRING",
        ),
        ("partition_name", ["a"], "STRINGS; the operator has STRING"),
        ("ep_sdk_version", 2, "INT; the operator has STRING"),
        ("hardware_architecture", 2, "INT; the operator has STRING"),
        ("notes", 2, "INT; the operator has STRING"),
        ("onnx_model_filename", 2, "INT; the operator has STRING"),
    ],
)
def test_an_attribute_of_the_wrong_type_is_refused(name, wrong, kinds):
    assert (
        refused(
            bare(attribute(name, wrong)), f"'n' has the attribute '{name}' as {kinds}"
        ).node
        == "n"
    )


def refused(wrong, said):
    """Inspect and load a model with a node that is refused; return the error of the
    load.
    """
    made = context_model(wrong)
    with pytest.raises(InvalidGraph, match=said):
        inspect_model(made.SerializeToString())
    with pytest.raises(InvalidGraph, match=said) as caught, loaded(made):
        pass
    return caught.value


@pytest.mark.parametrize("name", ["source", "partition_name"])
def test_names_that_are_not_utf_8_are_refused(name):
    refused(bare(attribute(name, b"\xff")), "not UTF-8")


def test_an_attribute_without_a_type_is_refused():
    with pytest.raises(InvalidGraph, match="'vendor', which cannot be read"):
        inspected(bare(AttributeProto(name="vendor")))


def test_a_node_without_outputs_is_refused():
    made = context_model(node("whole", cache=b"1", embed=True), bare(outputs=()))

    with pytest.raises(InvalidGraph, match="has no outputs"), loaded(made):
        pass


@pytest.mark.parametrize("elem_type", [29, 255, -1, 0])
def test_a_tensor_of_a_type_that_onnx_does_not_have_is_refused_with_its_attribute(
    elem_type,
):
    vendor = AttributeProto(
        name="vendor", type=AttributeProto.TENSOR, t=TensorProto(data_type=elem_type)
    )

    with pytest.raises(
        InvalidGraph, match=r"'vendor', which cannot be read: .*[Ee]lement type"
    ):
        inspected(bare(vendor))


def test_a_vendors_own_attributes_are_kept_with_their_types():
    made = node(
        "n", cache=b"1", embed=True, blob=b"\xff\x00", ratio=0.5, sizes=[1, 2],
        table=helper.make_tensor("t", TensorProto.INT64, [2], [1, 2]),
    )  # fmt: skip

    with loaded(context_model(made)) as given:
        (found,) = given.nodes

    assert found.attributes["blob"] == b"\xff\x00"
    assert found.attributes["ratio"] == 0.5
    assert found.attributes["sizes"] == [1, 2]
    assert np.array_equal(found.attributes["table"], [1, 2])


def test_attributes_cannot_be_changed():
    with (
        loaded(context_model(node("n", cache=b"1", embed=True))) as given,
        pytest.raises(TypeError),
    ):
        given.nodes[0].attributes["source"] = "QNN"


def test_a_file_name_is_what_a_payload_is_not():
    outside = [attribute("embed_mode", 0), attribute("ep_cache_context", "a_qnn.bin")]

    assert inspected(bare(*outside))[0].payload_file == "a_qnn.bin"
    assert inspected(bare(outside[0]))[0].payload_file is None
    assert inspected(bare(outside[1]))[0].payload_file is None


def test_bytes_where_a_file_name_should_be_are_refused(tmp_path):
    (tmp_path / "m_ctx.onnx").write_bytes(
        context_model(node("n", cache=b"\xff")).SerializeToString()
    )

    with (
        pytest.raises(InvalidGraph, match="not a file name") as caught,
        loaded(tmp_path / "m_ctx.onnx", lambda given: given.payload()),
    ):
        pass

    assert "embed_mode=1" in caught.value.hint


def test_only_context_nodes_are_read():
    other = helper.make_node("EPContext", ["x"], ["a"], domain="another")
    plain = helper.make_node("Neg", ["x"], ["b"])
    made = context_model(plain, bare(), other)
    made.opset_import.add(domain="another", version=1)

    found = inspect_model(made.SerializeToString())

    assert [each.name for each in found.ep_contexts] == ["n"]
    assert found.other_nodes == 2


def test_nodes_without_a_name_are_called_by_their_place():
    found = inspected(bare(name="", outputs=["a"]), bare(name="", outputs=["b"]))

    assert [each.name for each in found] == ["EPContext_0", "EPContext_1"]


def test_nodes_of_one_name_are_told_apart_and_keep_their_graphs_names():
    found = inspected(
        bare(outputs=["a"]),
        bare(outputs=["b"]),
        bare(attribute("partition_name", "other"), outputs=["c"]),
    )

    assert [each.name for each in found] == ["n", "n#1", "n#2"]
    assert [each.partition_name for each in found] == ["n", "n", "other"]


def test_references_say_what_their_ep_said_of_each(tmp_path):
    said = [
        {"notes": "primary"},
        {"notes": "a"},
        {"notes": "a"},
        {"notes": "b", "max_size": 1},
        {"notes": "a"},
    ]

    for path in (None, tmp_path / "m_ctx.onnx"):
        made = described(*said, path=path)

        for each, expected in zip(made, said, strict=True):
            found = {a.name: helper.get_attribute_value(a) for a in each.attribute}
            primary = expected is said[0]
            assert found.pop("partition_name") == each.name.encode()
            assert (found.pop("ep_cache_context", None) is not None) is primary
            assert found == {
                **{
                    k: v.encode() if isinstance(v, str) else v
                    for k, v in expected.items()
                },
                "source": EP.encode(),
                "main_context": int(primary),
                "embed_mode": int(path is None),
            }


def test_nodes_that_differ_in_names_only_are_told_apart():
    made = [
        node("first", cache=b"1", embed=True, notes="same", max_size=3),
        *(
            node(name, main=False, embed=True, notes="same", max_size=size)
            for name, size in (("second", 3), ("third", 3), ("fourth", 4))
        ),
    ]

    with loaded(context_model(*made)) as given:
        found = given.nodes

    assert [each.attributes["partition_name"] for each in found] == [
        "first",
        "second",
        "third",
        "fourth",
    ]
    assert [each.name for each in found] == ["first", "second", "third", "fourth"]
    assert [each.attributes["max_size"] for each in found] == [3, 3, 3, 4]
    assert [names(each.outputs) for each in found] == [
        [f"{each.name}_out"] for each in found
    ]


def names(values):
    return [value.name for value in values]


def test_what_could_be_changed_in_one_node_is_not_shared_with_the_next():
    made = [
        node(name, cache=b"1", embed=True, partition_name="p", vendor_list=[1, 2])
        for name in "ab"
    ]

    with loaded(context_model(*made)) as given:
        one, other = given.nodes
    one.attributes["vendor_list"].append(3)

    assert other.attributes["vendor_list"] == [1, 2]
