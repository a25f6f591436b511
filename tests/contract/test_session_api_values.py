"""Values from the host: initializers in place of the model's, lengths of open
dimensions.
"""

from __future__ import annotations

from typing import ClassVar

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from support.engine_eps import Alpha, scripted
from support.routes import refused
from support.small_models import finished, saved, tensor
from support.validating_eps import compiled, options_with, registry_with

import epctx_core as epctx
from epctx_core import InvalidArgument
from epctx_core.plugin import hookimpl

SMALL, LARGE = (2, 3), (2, 300)
ROUTES = ["inline", "external", "external and missing"]


def adding(shape, dtype=np.float32):
    """Return `y = Relu(x + w)`."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weight = numpy_helper.from_array(
        np.arange(np.prod(shape)).reshape(shape).astype(dtype), "w"
    )
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], "n0"),
        helper.make_node("Relu", ["a"], ["y"], "n1"),
    ]
    return finished(
        nodes, [tensor("x", kind, shape)], [tensor("y", kind, shape)], [weight]
    )


def stored(model, folder, route):
    path = folder / "m.onnx"
    if route == "inline":
        return saved(model, path)
    onnx.save_model(
        model, path, save_as_external_data=True, location="m.data", size_threshold=0
    )
    if route == "external and missing":
        (folder / "m.data").unlink()
    return path


def with_value(value, *eps, name="w"):
    options = options_with(*eps)
    options.add_initializer(name, value)
    return options


def run(model, options, *eps, **feeds):
    with epctx.InferenceSession(
        model, options, registry=registry_with(*eps)
    ) as session:
        return session.run(None, feeds)[0]


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_value_takes_the_place_of_an_initializer_wherever_that_lies(
    tmp_path, shape, route
):
    model = stored(adding(shape), tmp_path, route)
    value, x = np.full(shape, 7, np.float32), np.ones(shape, np.float32)

    assert (run(model, with_value(value), x=x) == 8).all()
    assert (
        run(model, with_value(onnxruntime.OrtValue.ortvalue_from_numpy(value)), x=x)
        == 8
    ).all()
    assert (run(model, with_value(value, Alpha), Alpha, x=x) == 8).all()


@pytest.mark.parametrize("route", ROUTES)
def test_a_context_model_is_written_with_the_value(tmp_path, route):
    source = stored(adding(LARGE), tmp_path, route)
    value, x = np.full(LARGE, 7, np.float32), np.ones(LARGE, np.float32)

    class RelusOnly(Alpha):
        operators = frozenset({"Relu"})

    for ep in (Alpha, RelusOnly):
        output = tmp_path / f"{ep.__name__}_ctx.onnx"
        compiler = epctx.ModelCompiler(
            with_value(value, ep), source, registry=registry_with(ep)
        )
        compiler.compile_to_file(output)
        assert (run(output, options_with(ep), ep, x=x) == 8).all()


class Looking(Alpha):
    """Alpha that keeps what it is shown: the digests of models, and the weight `w` as
    an array.
    """

    seen: ClassVar[list[tuple[str, np.ndarray]]] = []

    @hookimpl
    def get_capability(self, graph):
        self.seen.append((self.context.model.digest, graph.initializer("w").array()))
        return super().get_capability(graph)


def seen_by_an_ep(model, options):
    """Return the digest of a model and the array of its weight `w`, as an EP of the
    session sees them.
    """
    Looking.seen.clear()
    options.add_provider(Looking.name)
    epctx.ModelCompiler(
        options, model, True, registry=registry_with(Looking)
    ).compile_to_bytes()
    ((digest, weight),) = Looking.seen
    return digest, weight


def test_the_value_is_used_where_it_lies(tmp_path):
    value = np.full(LARGE, 7, np.float32)

    _, weight = seen_by_an_ep(
        saved(adding(LARGE), tmp_path / "m.onnx"), with_value(value)
    )

    assert np.shares_memory(weight, value)


def test_the_weights_of_a_context_model_that_stayed_can_be_replaced(tmp_path):
    source = saved(adding(LARGE), tmp_path / "m.onnx")
    ep = scripted(
        get_capability=lambda honest, _: [
            c for c in honest() if c.nodes[0].op_type == "Relu"
        ]
    )
    ep.operators = frozenset({"Relu"})
    output = compiled(source, ep)

    found = run(
        output,
        with_value(np.full(LARGE, 7, np.float32), ep),
        ep,
        x=np.ones(LARGE, np.float32),
    )

    assert (found == 8).all()


@pytest.mark.parametrize(
    "dtype",
    [np.float64, np.float16, np.int8, np.int64, ml_dtypes.bfloat16, ml_dtypes.int4],
)
def test_values_of_other_types(tmp_path, dtype):
    model = saved(adding(SMALL, dtype), tmp_path / "m.onnx")
    value = np.full(SMALL, 3).astype(dtype)

    _, weight = seen_by_an_ep(model, with_value(value))

    assert (weight == value).all()
    assert weight.dtype == dtype


def test_several_at_once_and_the_default_of_an_input(tmp_path):
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "v"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.zeros(SMALL, np.float32), name)
        for name in ("w", "v")
    ]
    model = saved(
        finished(nodes, [tensor("x"), tensor("v")], [tensor("y")], weights),
        tmp_path / "m.onnx",
    )
    options = epctx.SessionOptions()
    options.add_external_initializers(
        ["w", "v"], [np.full(SMALL, n, np.float32) for n in (10, 100)]
    )

    with epctx.InferenceSession(model, options) as session:
        zeros = np.zeros(SMALL, np.float32)
        assert (session.run(None, {"x": zeros})[0] == 110).all()
        assert (session.run(None, {"x": zeros, "v": zeros})[0] == 10).all()


def test_another_value_is_another_model_to_eps(tmp_path):
    model = saved(adding(SMALL), tmp_path / "m.onnx")
    values = [np.full(SMALL, n, np.float32) for n in (1, 1, 2)]
    plain, _ = seen_by_an_ep(model, epctx.SessionOptions())

    found = [seen_by_an_ep(model, with_value(value))[0] for value in values]

    assert found[0] == found[1]
    assert len({plain, *found}) == 3


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("v", np.zeros(SMALL, np.float32), "has no initializer 'v'"),
        ("x", np.zeros(SMALL, np.float32), "has no initializer 'x'"),
        (
            "w",
            np.zeros((3, 2), np.float32),
            r"is float32\[3, 2\]; the model's initializer is float32\[2, 3\]",
        ),
        (
            "w",
            np.zeros(SMALL, np.int64),
            r"is int64\[2, 3\]; the model's initializer is float32\[2, 3\]",
        ),
    ],
)
def test_a_value_that_fits_no_initializer_is_refused_when_the_model_is_read(
    tmp_path, name, value, words
):
    model = saved(adding(SMALL), tmp_path / "m.onnx")

    with refused(InvalidArgument, words):
        epctx.InferenceSession(model, with_value(value, name=name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (5, np.zeros(1)),
        ("", np.zeros(1)),
        ("w", 5),
        ("w", [1.0]),
        ("w", np.array(["a"])),
        ("w", None),
    ],
)
def test_what_is_no_value_is_refused_at_once(name, value):
    with pytest.raises(InvalidArgument, match="add_initializer"):
        epctx.SessionOptions().add_initializer(name, value)


def test_a_value_that_is_not_an_array_is_refused_by_its_type():
    with refused(
        InvalidArgument, "the value of 'a' is of type int, not an array of numbers"
    ):
        epctx.SessionOptions().add_initializer("a", 3)


def test_a_value_is_given_once_and_each_name_has_one():
    options = with_value(np.zeros(1))

    with refused(InvalidArgument, "'w' was passed before"):
        options.add_initializer("w", np.zeros(1))
    for names, values in ((["a"], []), ("a", [np.zeros(1)])):
        with pytest.raises(InvalidArgument, match="as many values"):
            options.add_external_initializers(names, values)


# --- lengths of open dimensions -------------------------------------------------------


def open_model_file(folder):
    """Return a model whose input and output have the open dimensions `batch` and
    `width`.
    """
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "n0"),
        helper.make_node("Sigmoid", ["a"], ["y"], "n1"),
    ]
    shape = ["batch", "width", 3]
    model = finished(nodes, [tensor("x", shape=shape)], [tensor("y", shape=shape)])
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    return saved(model, folder / "m.onnx")


def sized(*, names=None, denotations=None):
    options = epctx.SessionOptions()
    for name, length in (names or {}).items():
        options.add_free_dimension_override_by_name(name, length)
    for denotation, length in (denotations or {}).items():
        options.add_free_dimension_override_by_denotation(denotation, length)
    return options


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        (sized(names={"batch": 2}), [2, "width", 3]),
        (sized(names={"batch": 2, "width": 4}), [2, 4, 3]),
        (sized(denotations={"DATA_BATCH": 2}), [2, "width", 3]),
        (sized(names={"batch": 2}, denotations={"DATA_BATCH": 2}), [2, "width", 3]),
    ],
)
def test_an_open_dimension_gets_its_length(tmp_path, options, shape):
    model = open_model_file(tmp_path)

    with epctx.InferenceSession(model, options) as session:
        assert session.get_inputs()[0].shape == session.get_outputs()[0].shape == shape
        assert session.run(None, {"x": np.zeros((2, 4, 3), np.float32)})[0].shape == (
            2,
            4,
            3,
        )
        with refused(InvalidArgument, r"has the shape \[1, 4, 3\]"):
            session.run(None, {"x": np.zeros((1, 4, 3), np.float32)})


def test_inputs_are_shown_as_onnxruntime_shows_them(tmp_path):
    model, found = open_model_file(tmp_path), []
    for ort in (onnxruntime, epctx):
        options = ort.SessionOptions()
        options.add_free_dimension_override_by_name("batch", 2)
        options.add_free_dimension_override_by_name("batch", 2)
        session = ort.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        found.append(session.get_inputs()[0].shape)

    assert found[0] == found[1] == [2, "width", 3]


def test_eps_see_the_lengths_and_so_does_the_context_model(tmp_path):
    shapes = []

    def look(honest, graph):
        shapes.extend(
            list(graph.value(name).shape)
            for node in graph.nodes
            for name in node.inputs
        )
        return honest()

    ep = scripted(get_capability=look)
    options = sized(names={"batch": 2, "width": 4})
    options.add_provider(ep.name)

    report = epctx.ModelCompiler(
        options, open_model_file(tmp_path), registry=registry_with(ep)
    ).compile_to_file()

    assert shapes == [[2, 4, 3], [2, 4, 3]]
    for value in (
        *onnx.load(report.output).graph.input,
        *onnx.load(report.output).graph.output,
    ):
        assert [d.dim_value for d in value.type.tensor_type.shape.dim] == [2, 4, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            sized(names={"bacth": 2}),
            "no input of the model has the dimension 'bacth'. Did you mean 'batch'",
        ),
        (
            sized(denotations={"BATCH": 2}),
            "no input of the model has the denotation 'BATCH'",
        ),
        (
            sized(names={"batch": 3}, denotations={"DATA_BATCH": 2}),
            "'batch' would get two lengths, 3 and 2",
        ),
    ],
)
def test_a_length_for_nothing_or_two_for_one_are_refused(tmp_path, options, words):
    with refused(InvalidArgument, words):
        epctx.InferenceSession(open_model_file(tmp_path), options)


@pytest.mark.parametrize(
    ("name", "length"),
    [("n", -1), ("n", 1.5), ("n", "2"), ("n", True), ("", 2), (None, 2)],
)
def test_what_is_no_length_is_refused_at_once(name, length):
    options = epctx.SessionOptions()
    for method in (
        options.add_free_dimension_override_by_name,
        options.add_free_dimension_override_by_denotation,
    ):
        with pytest.raises(InvalidArgument, match="free_dimension_override"):
            method(name, length)


def test_tensors_of_text_have_no_values_to_give(tmp_path):
    weight = helper.make_tensor("w", TensorProto.STRING, [1], [b"a"])
    nodes = [
        helper.make_node("Identity", ["w"], ["t"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    model = saved(
        finished(nodes, [tensor("x")], [tensor("y")], [weight]), tmp_path / "m.onnx"
    )

    with refused(InvalidArgument, "the model's initializer is object"):
        epctx.InferenceSession(model, with_value(np.zeros(1, np.float32)))


def test_a_dimension_has_one_length():
    options = sized(names={"n": 2})
    options.add_free_dimension_override_by_name("n", 2)

    with refused(InvalidArgument, "'n' has been set to the length 2 before, and now 3"):
        options.add_free_dimension_override_by_name("n", 3)


NUMERIC = ["FLOAT", "DOUBLE", "FLOAT16", "INT8", "UINT8", "INT32", "INT64", "BOOL"]


def identity(kind, shape=None):
    element = getattr(TensorProto, kind)
    return finished(
        [helper.make_node("Identity", ["x"], ["y"])],
        [tensor("x", element, shape)],
        [tensor("y", element, shape)],
    ).SerializeToString()


@pytest.fixture(scope="module")
def both():
    """By element type, a session of ours and one of onnxruntime."""
    return {
        k: (
            epctx.InferenceSession(identity(k)),
            onnxruntime.InferenceSession(identity(k)),
        )
        for k in NUMERIC
    }


@st.composite
def number_lists(draw):
    """Evenly nested lists of Python's or numpy's numbers."""
    shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    numbers = draw(
        st.sampled_from([
            st.integers(-100, 300), st.floats(-100, 100, width=16), st.booleans(),
            st.integers(0, 1 << 70), st.integers(-9, 9).map(np.int16),
            st.floats(-9, 9, width=32).map(np.float32),
        ])
    )  # fmt: skip

    def nested(lengths):
        return (
            [nested(lengths[1:]) for _ in range(lengths[0])]
            if lengths
            else draw(numbers)
        )

    return nested(shape)


# numpy before 2.0 wraps what does not fit, with a warning, for both.
@pytest.mark.filterwarnings(
    "ignore:NumPy will stop allowing conversion:DeprecationWarning"
)
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered in cast")
@given(kind=st.sampled_from(NUMERIC), value=number_lists())
@settings(max_examples=150, deadline=None)
def test_lists_of_numbers_become_the_inputs_type_as_in_onnxruntime(both, kind, value):
    ours, theirs = both[kind]
    try:
        (expected,) = theirs.run(None, {"x": value})
    except Exception:  # noqa: BLE001 - its exceptions have no base of their own
        with pytest.raises(InvalidArgument):
            ours.run(None, {"x": value})
        return

    (result,) = ours.run(None, {"x": value})

    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    "value", [[[1, 2], [3]], ["1"], [1, "a"], [None], [1 + 2j], [b"1"], [[1], 2]]
)
def test_lists_that_are_ragged_or_of_something_else_are_refused(value):
    with (
        epctx.InferenceSession(identity("FLOAT")) as session,
        refused(InvalidArgument, "the input 'x' is"),
    ):
        session.run(None, {"x": value})


def test_lists_are_checked_against_the_shape():
    with epctx.InferenceSession(identity("FLOAT", [2, 2])) as session:
        assert session.run(None, {"x": [[1, 2], [3, 4]]})[0].dtype == np.float32
        with refused(InvalidArgument, "has the shape"):
            session.run(None, {"x": [1, 2]})
