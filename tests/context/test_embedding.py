"""Payloads put into a serialised model: the bytes are those that protobuf would have
written.
"""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from epctx_core.context.payload_writer import embed, make_marker

pytestmark = pytest.mark.internal


def context_node(content, number=0):
    return helper.make_node(
        "EPContext",
        ["x"],
        [f"y{number}"],
        f"n{number}",
        domain="com.microsoft",
        a=1,
        ep_cache_context=content,
        z=[1.5],
    )


def model_of(contents, depth=0):
    """A model with one node for each content, the whole of it inside `depth` bodies."""
    nodes = [context_node(content, number) for number, content in enumerate(contents)]
    graph = helper.make_graph(nodes, "inner", [], [])
    for level in range(depth):
        holder = helper.make_node(
            "If", ["c"], ["y"], f"if{level}", then_branch=graph, else_branch=graph
        )
        relu = helper.make_node("Relu", ["x"], ["r"])
        graph = helper.make_graph([relu, holder, relu], f"g{level}", [], [])
    model = helper.make_model(graph, producer_name="p")
    helper.set_model_props(model, {"key": "value" * 50})
    return model


def embedded(payloads, depth=0):
    markers = [make_marker() for _ in payloads]
    data = model_of(markers, depth).SerializeToString(deterministic=True)
    model = embed(
        data, {m: memoryview(p) for m, p in zip(markers, payloads, strict=True)}
    )
    pieces = list(model.chunks())
    assert model.size == sum(map(len, pieces))
    return b"".join(pieces), pieces


SIZES = st.sampled_from([0, 1, 31, 32, 33, 90, 127, 128, 129, 16383, 16384, 70000])


@given(st.lists(SIZES, max_size=5), st.integers(0, 3))
def test_the_bytes_are_those_of_a_model_that_held_the_payloads_from_the_start(
    sizes, depth
):
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]

    found, _ = embedded(payloads, depth)

    assert found == model_of(payloads, depth).SerializeToString(deterministic=True)


def test_a_model_without_payloads_stays_as_it_is():
    data = model_of([b"text"]).SerializeToString(deterministic=True)

    assert b"".join(embed(data, {}).chunks()) == data


def test_a_large_payload_is_not_copied_and_many_small_ones_make_few_pieces():
    large = bytes(3 << 20)

    _, pieces = embedded([large])
    _, many = embedded([b"small" * 10] * 2000)

    assert [piece.obj is large for piece in pieces] == [False, True, False]
    assert len(many) == 1


def test_what_is_written_can_be_read_by_onnx():
    found, _ = embedded([b"\xff\x00", b"", b"x" * 300])

    nodes = onnx.load_from_string(found).graph.node
    assert [helper.get_node_attr_value(n, "ep_cache_context") for n in nodes] == [
        b"\xff\x00",
        b"",
        b"x" * 300,
    ]
