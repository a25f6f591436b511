"""Reading models: each way in which a file can be wrong has its error; types are found once."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pytest
from graph.making import INT64, indexed, model, no_files, node, opened, tensor, value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from epctx_core.errors import EpctxError, InvalidArgument, InvalidGraph, InvalidProtobuf, NoSuchFile
from epctx_core.graph import model_io
from epctx_core.graph.inference import infer_types
from epctx_core.graph.model_io import detach_model, parse_model, read_model
from epctx_core.graph.type_table import TypeTable, declared_types
from epctx_core.plugin import UNKNOWN_TYPE


def simple():
    return model([node("Add", ["x", "w"], ["y"])], ["x"], ["y"], [tensor("w", [1, 2])])


def test_a_path_gives_bytes_and_path_and_bytes_give_themselves(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"abc")

    assert read_model(path) == (b"abc", path)
    assert read_model(str(path)) == (b"abc", path)
    assert read_model(b"abc") == (b"abc", None)


@pytest.mark.parametrize("name", ["missing.onnx", "no/folder/m.onnx", "file/m.onnx"])
def test_a_path_that_does_not_exist_is_no_such_file(tmp_path, name):
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(NoSuchFile, match="there is no model file") as caught:
        read_model(tmp_path / name)

    assert caught.value.path == tmp_path / name


@pytest.mark.parametrize(
    ("given_path", "said"),
    [("", "a path or bytes"), (None, "a path or bytes"), (3, "a path or bytes"), ("a\0b", "cannot be read")],
)
def test_what_is_no_path_is_an_invalid_argument(given_path, said):
    with pytest.raises(InvalidArgument, match=said):
        read_model(given_path)


def test_a_folder_is_an_invalid_argument(tmp_path):
    with pytest.raises(InvalidArgument, match="is a folder"):
        read_model(tmp_path)


def test_a_name_that_no_file_system_takes_is_an_invalid_argument(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_model(tmp_path / ("n" * 5000))


@pytest.mark.parametrize("junk", [b"", b"\xff" * 40, b"<html>not found</html>", b"PK\x03\x04 zip"])
def test_what_is_no_protobuf_is_said_to_be_none(tmp_path, junk):
    with pytest.raises(InvalidProtobuf, match=r"m\.onnx is (empty|not an ONNX model)"):
        parse_model(junk, tmp_path / "m.onnx")


def test_a_file_larger_than_any_protobuf_is_said_to_be_none_before_it_is_read(tmp_path):
    path = tmp_path / "m.onnx"
    path.touch()
    os.truncate(path, 1 << 40)

    with pytest.raises(
        InvalidProtobuf, match="has 1,099,511,627,776 bytes, and a protobuf has less than 2 GiB"
    ):
        read_model(path)


def test_a_truncated_model_is_no_protobuf():
    data = simple().SerializeToString()

    with pytest.raises(InvalidProtobuf, match="the model given as bytes is not an ONNX model"):
        parse_model(data[:-3], None)


def test_the_checkers_words_are_passed_on():
    wrong = simple()
    wrong.graph.node[0].input[0] = "nowhere"

    with pytest.raises(InvalidGraph, match=r"the ONNX checker refuses the model given as bytes.*nowhere"):
        opened(wrong)


def test_a_value_that_nothing_makes_is_refused():
    wrong = model([node("Neg", ["a"], ["y"]), node("Abs", ["x"], ["b"])], ["x"], ["y"])

    with pytest.raises(InvalidGraph, match="topologically sorted"):
        opened(wrong)


@pytest.mark.parametrize("elements", [2, 2000], ids=["inline", "detached"])
def test_two_initializers_of_one_name_are_refused(elements):
    weight = tensor("w", np.ones(elements))
    wrong = model([node("Add", ["x", "w"], ["y"])], ["x"], ["y"], [weight, weight])

    with pytest.raises(InvalidGraph, match=r"unique|single static assignment"):
        opened(wrong)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_model_is_read_or_refused_with_one_of_our_errors(data):
    original = simple().SerializeToString()
    damaged = bytearray(original)
    for place in data.draw(st.lists(st.integers(0, len(original) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    try:
        proto = parse_model(bytes(damaged), None)
        source = detach_model(proto, bytes(damaged), None, refuse)
        indexed(source)
    except EpctxError:
        pass


def refuse(location, name):
    raise InvalidGraph(f"{name} asks for {location}")


def test_the_digest_is_that_of_the_file():
    data = simple().SerializeToString()

    source = detach_model(parse_model(data, None), data, None, no_files)

    assert source.digest == hashlib.sha256(data).hexdigest()


def test_a_model_is_called_by_its_file_or_its_graph(tmp_path):
    made = opened(simple())
    assert (made.name, made.where) == ("made", "the model given as bytes")

    made.path = tmp_path / "net.v2.onnx"
    assert (made.name, made.where) == ("net.v2", "net.v2.onnx")


def test_types_are_inferred_where_they_are_not_declared():
    made = model(
        [node("Shape", ["x"], ["s"]), node("Reshape", ["w", "s"], ["y"])],
        [value("x", shape=[2, 450])],
        [value("y", shape=["rows", None])],
        [tensor("w", np.ones(900))],
    )

    types = infer_types(opened(made).proto)

    assert str(types.get("s")) == "int64[2]"
    assert types.get("y").shape == (2, 450)
    assert str(types.get("w")) == "float[900]"
    assert types.get("nothing") is UNKNOWN_TYPE


def test_shapes_that_follow_from_values_are_found():
    made = model(
        [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["z"]), node("Neg", ["z"], ["y"])],
        [value("x", shape=[3, 4])],
        [value("y", shape=[None, None])],
    )

    assert infer_types(opened(made).proto).get("z").shape == (3, 4)


def test_equal_types_are_one_object():
    made = model(
        [node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["b"]), node("Shape", ["b"], ["s"])],
        ["x"],
        ["b", value("s", INT64, [1])],
    )

    types = infer_types(made)

    assert types.get("x") is types.get("a") is types.get("b")
    assert types.get("s") is not types.get("x")


@pytest.mark.parametrize(
    "wrong",
    [
        model([node("Neg", ["x"], ["y"])], ["x"], [value("y", INT64)]),
        model([node("Add", ["x", "i"], ["y"])], ["x", value("i", INT64)], ["y"]),
    ],
    ids=["declared output", "mixed inputs"],
)
def test_element_types_that_contradict_each_other_are_refused(wrong):
    with pytest.raises(InvalidGraph, match="type inference refuses the model"):
        infer_types(wrong)


def test_an_element_type_that_onnx_does_not_have_is_refused():
    types = TypeTable([value("x", 99)])

    with pytest.raises(InvalidGraph, match="element type 99"):
        types.get("x")


def test_of_two_types_of_one_value_the_first_counts():
    types = TypeTable([value("x", INT64, [1]), value("x", shape=[2])])

    assert str(types.get("x")) == "int64[1]"


def test_a_declared_shape_that_is_wrong_is_taken_for_a_hint():
    made = model([node("Neg", ["x"], ["y"])], [value("x", shape=[2])], [value("y", shape=[3])])

    types = infer_types(made)

    assert types.get("y").shape == types.proven("y").shape == (2,)
    assert types.contradictions == {"y": "'y' is declared float[3], its operators give float[2]"}


def declaring(*values):
    made = model([node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["y"])], [value("x", shape=[2])], ["y"])
    made.graph.value_info.extend(values)
    return made


def test_declared_types_cost_no_inference(monkeypatch):
    made = declaring(value("a", shape=[2]))
    types = declared_types(made, lambda: infer_types(made))
    monkeypatch.delattr("onnx.shape_inference.infer_shapes")

    assert str(types.get("a")) == "float[2]"
    assert types.get("") is UNKNOWN_TYPE


@pytest.mark.parametrize("entries", [[], [helper.make_empty_tensor_value_info("a")]], ids=["none", "no type"])
def test_a_type_that_is_not_declared_is_inferred_when_it_is_asked_for(entries):
    made = declaring(*entries)
    for entry in made.graph.value_info:
        entry.ClearField("type")

    assert str(declared_types(made, lambda: infer_types(made)).get("a")) == "float[2]"


def test_inference_of_declared_types_that_contradict_each_other_is_refused_when_one_is_missing():
    made = model([node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["y"])], ["x"], [value("y", INT64)])

    with pytest.raises(InvalidGraph, match="type inference refuses the model"):
        declared_types(made, lambda: infer_types(made)).get("a")


def test_a_large_structure_that_is_checked_on_its_bytes_is_read_the_same(monkeypatch):
    made = simple()
    usual = opened(made)
    monkeypatch.setattr(model_io, "LARGE_STRUCTURE", 1)

    large = opened(made)

    assert (large.proto, large.digest) == (usual.proto, usual.digest)
    assert large.weights["w"].array().tolist() == usual.weights["w"].array().tolist()


def test_a_large_structure_that_is_wrong_is_refused_with_the_checkers_words(monkeypatch):
    monkeypatch.setattr(model_io, "LARGE_STRUCTURE", 1)

    with pytest.raises(InvalidGraph, match="the ONNX checker refuses"):
        opened(model([node("Neg", ["nowhere"], ["y"])], ["x"], ["y"]))


def test_operators_nobody_knows_leave_their_results_untyped():
    made = model(
        [helper.make_node("Own", ["x"], ["a"], domain="own"), node("Neg", ["a"], ["y"])],
        ["x"],
        [value("y", shape=["N"])],
        opsets=[("", 21), ("own", 1)],
    )

    types = infer_types(opened(made).proto)

    assert types.get("a") is UNKNOWN_TYPE
    assert types.get("y").shape == ("N",)


def test_external_weights_are_looked_for_where_the_caller_says_and_nowhere_else(tmp_path, monkeypatch):
    # The checker would look for external data beside the working folder.
    monkeypatch.chdir(tmp_path)
    made = model([node("Add", ["x", "w"], ["y"])], [value("x", shape=[900])], [value("y", shape=[900])])
    made.graph.initializer.append(
        TensorProto(name="w", data_type=1, dims=[900], data_location=TensorProto.EXTERNAL)
    )
    made.graph.initializer[0].external_data.add(key="location", value="w.bin")
    asked = []

    def open_external(location, name):
        asked.append((location, name))
        raise InvalidGraph("not here")

    with pytest.raises(InvalidGraph, match="not here"):
        opened(made, open_external)

    assert asked == [("w.bin", "w")]
    assert list(tmp_path.iterdir()) == []
