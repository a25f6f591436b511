"""Reading models: each way in which a file can be wrong has its error; types are found
once.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.graph_models import INT64, model, node, tensor, value
from support.witness import names, nothing, shown, view

from epctx_core import InferenceSession
from epctx_core.errors import (
    EpctxError,
    InternalError,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    PluginError,
)
from epctx_core.plugin import UNKNOWN_TYPE


def simple():
    return model([node("Add", ["x", "w"], ["y"])], ["x"], ["y"], [tensor("w", [1, 2])])


def opened(source):
    """Open a model of a path or bytes as a host does, and look no further than at its
    graph.
    """
    return shown(source)[0].views[0]


def test_a_model_may_be_given_by_a_path_of_either_kind_or_as_bytes(tmp_path):
    data = simple().SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)

    for source in (path, str(path), data):
        assert names(opened(source).inputs) == ["x"]


@pytest.mark.parametrize("name", ["missing.onnx", "no/folder/m.onnx", "file/m.onnx"])
def test_a_path_that_does_not_exist_is_no_such_file(tmp_path, name):
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(NoSuchFile, match="there is no model file") as caught:
        InferenceSession(tmp_path / name)

    assert caught.value.path == tmp_path / name


@pytest.mark.parametrize(
    ("given_path", "said"),
    [
        ("", "a path or bytes"),
        (None, "a path or bytes"),
        (3, "a path or bytes"),
        ("a\0b", "cannot be read"),
    ],
)
def test_what_is_no_path_is_an_invalid_argument(given_path, said):
    with pytest.raises(InvalidArgument, match=said):
        InferenceSession(given_path)


def test_a_folder_is_an_invalid_argument(tmp_path):
    with pytest.raises(InvalidArgument, match="is a folder"):
        InferenceSession(tmp_path)


def test_a_name_that_no_file_system_takes_is_an_invalid_argument(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        InferenceSession(tmp_path / ("n" * 5000))


@pytest.mark.parametrize(
    "junk", [b"", b"\xff" * 40, b"<html>not found</html>", b"PK\x03\x04 zip"]
)
def test_what_is_no_protobuf_is_said_to_be_none(tmp_path, junk):
    (tmp_path / "m.onnx").write_bytes(junk)

    with pytest.raises(InvalidProtobuf, match=r"m\.onnx is (empty|not an ONNX model)"):
        InferenceSession(tmp_path / "m.onnx")


def test_a_file_larger_than_any_protobuf_is_said_to_be_none_before_it_is_read(tmp_path):
    path = tmp_path / "m.onnx"
    path.touch()
    os.truncate(path, 1 << 40)

    with pytest.raises(
        InvalidProtobuf,
        match="has 1,099,511,627,776 bytes, and a protobuf has less than 2 GiB",
    ):
        InferenceSession(path)


def test_a_truncated_model_is_no_protobuf():
    data = simple().SerializeToString()

    with pytest.raises(
        InvalidProtobuf, match="the model given as bytes is not an ONNX model"
    ):
        InferenceSession(data[:-3])


def test_the_checkers_words_are_passed_on():
    wrong = simple()
    wrong.graph.node[0].input[0] = "nowhere"

    with pytest.raises(
        InvalidGraph,
        match=r"the ONNX checker refuses the model given as bytes.*nowhere",
    ):
        opened(wrong.SerializeToString())


def test_a_value_that_nothing_makes_is_refused():
    wrong = model([node("Neg", ["a"], ["y"]), node("Abs", ["x"], ["b"])], ["x"], ["y"])

    with pytest.raises(InvalidGraph, match="topologically sorted"):
        opened(wrong.SerializeToString())


@pytest.mark.parametrize("elements", [2, 2000], ids=["inline", "detached"])
def test_two_initializers_of_one_name_are_refused(elements):
    weight = tensor("w", np.ones(elements))
    wrong = model([node("Add", ["x", "w"], ["y"])], ["x"], ["y"], [weight, weight])

    with pytest.raises(InvalidGraph, match=r"unique|single static assignment"):
        opened(wrong.SerializeToString())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_model_is_read_or_refused_with_one_of_our_errors(data):
    original = simple().SerializeToString()
    damaged = bytearray(original)
    for place in data.draw(
        st.lists(st.integers(0, len(original) - 1), min_size=1, max_size=4)
    ):
        damaged[place] = data.draw(st.integers(0, 255))
    try:
        shown(bytes(damaged))
    except EpctxError as error:
        assert not isinstance(error, InternalError | PluginError), error


def test_the_digest_is_that_of_the_file():
    data = simple().SerializeToString()
    seen = []

    shown(data, nothing, __init__=lambda self, context: seen.append(context.model))

    assert seen[0].digest == hashlib.sha256(data).hexdigest()
    assert seen[0].name == "made"


def test_a_model_is_called_by_its_file(tmp_path):
    path = tmp_path / "net.v2.onnx"
    path.write_bytes(simple().SerializeToString())
    seen = []

    shown(path, nothing, __init__=lambda self, context: seen.append(context.model))

    assert seen[0].name == "net.v2"


def test_types_are_inferred_where_they_are_not_declared():
    made = model(
        [node("Shape", ["x"], ["s"]), node("Reshape", ["w", "s"], ["y"])],
        [value("x", shape=[2, 450])],
        [value("y", shape=["rows", None])],
        [tensor("w", np.ones(900))],
    )

    seen = view(made)

    assert str(seen.value("s").type) == "int64[2]"
    assert seen.value("y").shape == (2, 450)
    assert str(seen.value("w").type) == "float[900]"
    assert seen.value("nothing").type is UNKNOWN_TYPE


def test_shapes_that_follow_from_values_are_found():
    made = model(
        [
            node("Shape", ["x"], ["s"]),
            node("ConstantOfShape", ["s"], ["z"]),
            node("Neg", ["z"], ["y"]),
        ],
        [value("x", shape=[3, 4])],
        [value("y", shape=[None, None])],
    )

    assert view(made).value("z").shape == (3, 4)


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
        opened(wrong.SerializeToString())


def test_an_element_type_that_onnx_does_not_have_is_refused():
    wrong = model([node("Neg", ["x"], ["y"])], [value("x", 99)], ["y"])

    with pytest.raises(InvalidGraph, match=r"99|element type"):
        opened(wrong.SerializeToString())


def test_a_declared_shape_that_is_wrong_is_taken_for_a_hint():
    made = model(
        [node("Neg", ["x"], ["y"])], [value("x", shape=[2])], [value("y", shape=[3])]
    )

    assert view(made).value("y").shape == (2,)


LARGE = "d" * (9 << 20)
"""Text that makes a model one that is checked on its bytes, without parsing it
twice.
"""


def test_a_large_structure_is_read_the_same():
    made = simple()
    usual = opened(made.SerializeToString())
    made.doc_string = LARGE

    large = opened(made.SerializeToString())

    assert large.model().graph == usual.model().graph
    assert (
        large.initializer("w").array().tolist()
        == usual.initializer("w").array().tolist()
    )


def test_a_large_structure_that_is_wrong_is_refused_with_the_checkers_words():
    wrong = model([node("Neg", ["nowhere"], ["y"])], ["x"], ["y"])
    wrong.doc_string = LARGE

    with pytest.raises(InvalidGraph, match="the ONNX checker refuses"):
        opened(wrong.SerializeToString())


def test_operators_nobody_knows_leave_their_results_untyped():
    made = model(
        [
            helper.make_node("Own", ["x"], ["a"], domain="own"),
            node("Neg", ["a"], ["y"]),
        ],
        ["x"],
        [value("y", shape=["N"])],
        opsets=[("", 21), ("own", 1)],
    )

    seen = view(made)

    assert seen.value("a").type is UNKNOWN_TYPE
    assert seen.value("y").shape == ("N",)


def test_external_weights_are_looked_for_beside_the_model_and_nowhere_else(
    tmp_path, monkeypatch
):
    # The checker would look for external data beside the working folder.
    other_folder, folder = tmp_path / "elsewhere", tmp_path / "folder"
    other_folder.mkdir()
    folder.mkdir()
    (other_folder / "w.bin").write_bytes(bytes(3600))
    monkeypatch.chdir(other_folder)
    made = model(
        [node("Add", ["x", "w"], ["y"])],
        [value("x", shape=[900])],
        [value("y", shape=[900])],
    )
    made.graph.initializer.append(
        TensorProto(
            name="w", data_type=1, dims=[900], data_location=TensorProto.EXTERNAL
        )
    )
    made.graph.initializer[0].external_data.add(key="location", value="w.bin")
    path = folder / "m.onnx"
    path.write_bytes(made.SerializeToString())

    with pytest.raises(InvalidGraph, match=r"w\.bin.*missing"):
        opened(path)

    (folder / "w.bin").write_bytes(np.ones(900, np.float32).tobytes())
    assert opened(path).initializer("w").array().sum() == 900
