"""Lengths that hosts see of outputs are those that onnxruntime shows: what is declared,
completed by what is inferred, and no name that inference made up.
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any, ClassVar

import epctx_onnxruntime
import onnx
import onnxruntime
import pytest
from onnx import parser
from support.taker import Taker, compile_with, registry_with

import epctx_core as epctx
from epctx_core.plugin import hookimpl

DECLARED = {
    "a name": "M",
    "the input's name": "N",
    "a length": "3",
    "another length": "5",
    "nothing": "?",
    "no rank": None,
}
INFERRED = {
    "a name": ("N", "y = Relu(h)"),
    "a length": ("3", "y = Relu(h)"),
    "an open input": ("?", "y = Relu(h)"),
    "a made-up name": ("N", "y = Concat <axis = 0> (h, h)"),
    "nothing": ("N", "y = Reshape(h, s)"),
}
LISTED: dict[tuple[str, str], tuple[list[Any], list[Any]]] = {
    # A run gives as many rows as the input has: the declared length is a hint.
    ("a length", "a name"): ([3, 4], ["N", 4]),
    ("another length", "a name"): ([5, 4], ["N", 4]),
    ("a length", "an open input"): ([3, 4], [None, 4]),
    ("another length", "an open input"): ([5, 4], [None, 4]),
    # onnxruntime gives both up; of the two the inferred one is right.
    ("another length", "a length"): ([None, 4], [3, 4]),
}
"""Declared and inferred: what onnxruntime shows, and what epctx shows."""

EACH = pytest.mark.parametrize("pair", [*product(DECLARED, INFERRED)], ids=" and ".join)


class First(Taker):
    """Takes the node before the output's."""

    name = "FirstExecutionProvider"
    operators: ClassVar[frozenset[str]] = frozenset({"Neg"})


class Last(Taker):
    """Takes the output's node."""

    name = "LastExecutionProvider"
    operators: ClassVar[frozenset[str]] = frozenset({"Relu", "Concat", "Reshape"})


def read(graph: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {graph}')


def make_model(declared, inferred) -> onnx.ModelProto:
    length, last = INFERRED[inferred]
    shape = f"{DECLARED[declared] or 0},4"
    made = read(
        f"g (float[{length},4] x, int64[2] s) => (float[{shape}] y) "
        f"{{ h = Neg(x) {last} }}"
    )
    if DECLARED[declared] is None:
        made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def list_shapes(session) -> list[list[Any]]:
    return [v.shape for v in (*session.get_inputs(), *session.get_outputs())]


def shapes_in_onnxruntime(model: onnx.ModelProto) -> list[list[Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    return list_shapes(
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers)
    )


def expected_shapes(pair) -> list[list[Any]]:
    """Return what onnxruntime shows, but for what is listed, where EPs are asked."""
    *inputs, output = shapes_in_onnxruntime(make_model(*pair))
    if pair in LISTED:
        theirs, output_here = LISTED[pair]
        assert output == theirs
        assert output_here != theirs
        output = output_here
    return [*inputs, output]


@EACH
@pytest.mark.parametrize(
    "make_session", [epctx.InferenceSession, epctx_onnxruntime.InferenceSession]
)
def test_a_session_without_eps_shows_what_onnxruntime_shows(pair, make_session):
    model = make_model(*pair)

    with make_session(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ) as session:
        assert list_shapes(session) == shapes_in_onnxruntime(model)


@EACH
@pytest.mark.parametrize("ep", [First, Last])
def test_a_session_with_an_ep_shows_what_onnxruntime_shows_or_is_inferred(pair, ep):
    data = make_model(*pair).SerializeToString()

    with epctx.InferenceSession(
        data, providers=[ep.name], registry=registry_with(ep)
    ) as session:
        assert list_shapes(session) == expected_shapes(pair)


@EACH
@pytest.mark.parametrize("ep", [First, Last])
@pytest.mark.parametrize(
    "make_session", [epctx.InferenceSession, epctx_onnxruntime.InferenceSession]
)
def test_the_session_of_a_context_model_shows_what_that_of_its_source_shows(
    tmp_path, pair, ep, make_session
):
    path = tmp_path / "m_ctx.onnx"
    compile_with(ep, make_model(*pair).SerializeToString(), path)

    with make_session(str(path), registry=registry_with(ep)) as session:
        assert list_shapes(session) == expected_shapes(pair)


@EACH
@pytest.mark.parametrize("ep", [First, Last])
def test_a_context_model_declares_of_its_outputs_what_its_session_shows(
    tmp_path, pair, ep
):
    """Other hosts, which cannot look into payloads, see ranks and lengths, too."""
    path = tmp_path / "m_ctx.onnx"
    compile_with(ep, make_model(*pair).SerializeToString(), path)

    info = epctx.inspect_model(path)

    shown = ",".join("?" if d is None else str(d) for d in expected_shapes(pair)[-1])
    assert info.outputs == {"y": f"float[{shown}]"}


@EACH
@pytest.mark.parametrize("ep", [First, Last])
def test_no_file_and_no_report_has_a_name_that_inference_made_up(tmp_path, pair, ep):
    path = tmp_path / "m_ctx.onnx"

    report = compile_with(ep, make_model(*pair).SerializeToString(), path)

    assert b"unk__" not in path.read_bytes()
    assert "unk__" not in json.dumps(report.as_dict())


@pytest.mark.parametrize(
    ("declared", "actual"), [("P,5", "P,4"), ("P,4,1", "?,4")], ids=["length", "rank"]
)
def test_a_wrong_declaration_is_reported_without_made_up_names(
    tmp_path, declared, actual
):
    made = read(
        f"g (float[N,4] x) => (float[{declared}] y) "
        "{ h = Concat <axis = 0> (x, x) y = Relu(h) }"
    )

    report = compile_with(Taker, made.SerializeToString(), tmp_path / "m_ctx.onnx")

    said = f"'y' is declared float[{declared}] but is float[{actual}]"
    assert report.contradictions == (said,)


def test_a_name_that_looks_made_up_stays_where_the_model_declares_it(tmp_path):
    """Exporters write what onnx made up into models."""
    made = read(
        "g (float[N,4] x) => (float[unk__0,4] y, float[unk__1,?] z) "
        "{ h = Neg(x) y = Concat <axis = 0> (h, h) t = Concat <axis = 0> (y, h) "
        "z = Concat <axis = 1> (t, t) }"
    )
    path = tmp_path / "m_ctx.onnx"
    compile_with(Taker, made.SerializeToString(), path)

    for source in (made.SerializeToString(), path):
        with epctx.InferenceSession(source, registry=registry_with(Taker)) as session:
            assert list_shapes(session) == shapes_in_onnxruntime(made)


def test_a_declared_name_is_not_given_to_another_length_that_inference_calls_so():
    made = read(
        "g (float[N,4] x) => (float[?,4] y, float[unk__0,4] z) "
        "{ y = Concat <axis = 0> (x, x) z = Concat <axis = 0> (y, x) }"
    )

    with epctx.InferenceSession(made.SerializeToString()) as session:
        assert list_shapes(session) == shapes_in_onnxruntime(made)
        assert list_shapes(session)[1:] == [[None, 4], ["unk__0", 4]]


def test_what_outputs_say_beyond_shapes_is_in_the_context_model(tmp_path):
    made = make_model("a name", "a length")
    made.graph.output[0].doc_string = "scores"
    made.graph.output[0].type.denotation = "TENSOR"
    made.graph.output[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    path = tmp_path / "m_ctx.onnx"

    compile_with(Last, made.SerializeToString(), path)

    (output,) = onnx.load(path).graph.output
    made.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 3
    assert output == made.graph.output[0]


def test_shapes_of_tensors_in_a_sequence_stay_as_they_are_declared(tmp_path):
    made = read(
        "g (float[N,4] x) => (seq(float[N,4]) y) "
        "{ h = Neg(x) y = SequenceConstruct(h) }"
    )
    path = tmp_path / "m_ctx.onnx"

    compile_with(First, made.SerializeToString(), path)

    assert onnx.load(path).graph.output[0].type == made.graph.output[0].type


def test_a_name_of_a_length_that_is_not_utf8_is_refused(tmp_path):
    made = read("g (float[N,4] x) => (float[UUUU,4] y) { y = Neg(x) }")
    data = made.SerializeToString().replace(b"UUUU", b"unk\xff")

    with pytest.raises(epctx.InvalidGraph):
        compile_with(First, data, tmp_path / "m_ctx.onnx")


def test_a_product_of_symbolic_lengths_has_their_names(tmp_path):
    made = read("g (float[N,K] a, float[K,M] b) => (float y) { y = MatMul(a, b) }")
    made.graph.output[0].type.tensor_type.ClearField("shape")
    path = tmp_path / "m_ctx.onnx"
    compile_with(
        type("Multiplier", (Last,), {"operators": frozenset({"MatMul"})}),
        made.SerializeToString(),
        path,
    )

    assert epctx.inspect_model(path).outputs == {"y": "float[N,M]"}
    assert shapes_in_onnxruntime(made)[-1] == ["N", "M"]


def test_eps_get_lengths_without_names_as_onnxruntime_gives_them():
    seen = []

    class Curious(Last):
        name = "CuriousExecutionProvider"

        @hookimpl
        def get_capability(self, graph):
            seen.append(graph.value("y").shape)
            return super().get_capability(graph)

    data = make_model("nothing", "an open input").SerializeToString()
    options = epctx.SessionOptions()
    options.add_provider(Curious.name)
    with epctx.InferenceSession(data, options, registry=registry_with(Curious)):
        assert seen == [(None, 4)]
