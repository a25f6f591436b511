"""What comes from an EP's process is checked against what it may be: anything else is
no answer, and never a crash.
"""

from __future__ import annotations

import io
import json
import random
import struct
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from end_to_end.small_models import chain
from epctx_isolation.channel import (
    LONGEST_HEAD,
    MOST_BLOBS,
    SMALL_ENTRIES,
    SMALL_HEAD,
    Channel,
    Message,
    ProtocolError,
    decode_error,
    encode_error,
)
from epctx_isolation.codecs import decode_claims, decode_descriptions, writer_handlers
from epctx_isolation.proxy import Proxy
from epctx_isolation.values import (
    decode_arrays,
    decode_attribute,
    encode_arrays,
    encode_attribute,
)

from epctx_core import Registry
from epctx_core.errors import InvalidGraph, PluginError
from epctx_core.ext import Work
from epctx_core.graph.extraction import GraphSlice
from epctx_core.graph.partition import Partitioner
from epctx_core.options import SessionOptions


def received(data, limit=None, nodes=0):
    return Channel(io.BytesIO(data), io.BytesIO(), limit=limit).receive(nodes)


def framed(head):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<I", len(text)) + text


@pytest.fixture(scope="module")
def view():
    model = chain(["Add", "Relu", "Mul"]).SerializeToString()
    graph = Work(model, SessionOptions(), Registry(), ()).open().graph
    return GraphSlice(graph, Partitioner(graph.predecessors), [False] * 3)


def test_a_message_arrives_as_it_was_sent():
    pipe = io.BytesIO()
    Channel(io.BytesIO(), pipe).send(
        {"say": "é"}, [b"abc", b"", np.arange(3, dtype=np.int16)]
    )

    message = received(pipe.getvalue())

    assert message.text("say") == "é"
    assert [bytes(blob) for blob in message.blobs] == [b"abc", b"", b"\0\0\1\0\2\0"]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        struct.pack("<I", LONGEST_HEAD + 1),
        framed(b"{"),
        framed(b"[" * 100_000),
        framed(b"\xff\xfe"),
        framed([1]),
        framed("text"),
        framed({"sizes": -1}),
        framed({"sizes": [-1]}),
        framed({"sizes": [True]}),
        framed({"sizes": [1.5]}),
        framed({"sizes": [1 << 62]}),
        framed({"sizes": [1 << 80]}),
        framed({"sizes": [101]}),
        pytest.param(
            framed({"sizes": [0] * (MOST_BLOBS + 1)}),
            id="more pieces than any message has",
        ),
        struct.pack("<I", SMALL_HEAD + 1),
        pytest.param(framed({"text": "x" * 100}), id="a head above the limit"),
        framed({"sizes": [90]}),
    ],
)
def test_what_is_no_message_is_noticed_before_anything_is_made_of_it(data):
    with pytest.raises(ProtocolError):
        received(data, limit=100)


def lists(count):
    """Return a message with so many entries, of the smallest kind."""
    return framed(b'{"":[' + b"[]," * (count // 2 - 1) + b"[]]}")


@pytest.mark.parametrize(
    ("nodes", "entries"), [(0, SMALL_ENTRIES), (1000, SMALL_ENTRIES + 32_000)]
)
def test_a_head_has_as_many_entries_as_its_graph_needs(nodes, entries):
    assert received(lists(entries - 2), nodes=nodes).items("")

    with pytest.raises(ProtocolError, match="more than"):
        received(lists(entries + 10), nodes=nodes)


def test_claims_of_single_nodes_and_reasons_for_each_are_no_more_than_a_graph_needs():
    nodes = 50_000
    flags = {"fuse": True, "keep": False, "exact": False, "token": None}
    reason = "the operator RotaryEmbedding, of domain com.microsoft, has no kernel"
    claims = [{"nodes": [n], **flags} for n in range(nodes)]
    refusals = [{"reason": reason, "nodes": [n]} for n in range(nodes)]

    head = received(framed({"claims": claims + refusals}), nodes=nodes)

    assert len(head.items("claims")) == 2 * nodes


def test_the_memory_that_a_head_takes_counts_as_what_a_message_may_have():
    assert received(lists(1000), limit=200_000).items("")

    with pytest.raises(ProtocolError, match="more than 984 entries"):
        received(lists(1000), limit=100_000)


def test_a_message_that_ends_early_is_the_end():
    with pytest.raises(EOFError):
        received(framed({"sizes": [1 << 20]}))


@pytest.mark.parametrize(
    "claims",
    [None, 1, [1], [[]], [{}], [{"nodes": [0], "fuse": True, "keep": False}],
     [{"nodes": [0], "fuse": 1, "keep": False, "exact": False}], [{"nodes": "0", "reason": "r"}],
     [{"nodes": [True], "reason": "r"}], [{"nodes": ["0"], "reason": "r"}], [{"nodes": [[[], 3]], "reason": "r"}],
     [{"nodes": [[[[0, "body"]], 0]], "reason": "r"}], [{"nodes": [[0]], "reason": "r"}],
     [{"nodes": [0], "reason": {"eval": "r"}}],
     [{"nodes": [0], "fuse": True, "keep": False, "exact": True, "token": -1}]],
)  # fmt: skip
def test_claims_say_all_that_claims_say_and_name_parts_of_the_model(view, claims):
    with pytest.raises(ProtocolError):
        decode_claims(Message({"claims": claims}), view)


def test_what_an_ep_claims_and_is_no_node_of_the_view_is_left_for_the_core_to_judge(
    view,
):
    said = Message({"claims": [{"nodes": [1, 99, -1, None, [[], 2]], "reason": 5}]})

    (refusal,) = decode_claims(said, view)

    assert refusal.reason == 5
    assert refusal.nodes[:3] == [view.nodes[1], 99, -1]
    assert type(refusal.nodes[3]) is object
    assert refusal.nodes[4] == view.nodes[2]


@pytest.mark.parametrize(
    ("nodes", "attributes"),
    [
        ([[1, None, 1, 0, "", None, None, []]], [[]]),
        ([[-2, None, 1, 0, "", None, None, []]], [[]]),
        ([[0, 1, 1, 0, "", None, None, []]], [[]]),
        ([[0, -2, 1, 0, "", None, None, []]], [[]]),
        ([[0, True, 1, 0, "", None, None, []]], [[]]),
        ([[0, None, 1, 1, "", None, None, []]], [[]]),
        ([[0, None, 2, 0, "", None, None, []]], [[]]),
        ([[0, None, 1, 0, {"eval": ""}, None, None, []]], [[]]),
        ([[0, None, 1, 0, "", None, None, [[]]]], [[]]),
        ([[0, None, 1, 0, "", None]], [[]]),
        ([{"place": 0}], [[]]),
        ([], [{}, 1]),
        ([], [[["a"]]]),
        ([], [[["a", {"bytes": "?"}]]]),
        ([], [[["a", {"TensorProto": "////"}]]]),
        ([], [[["a", {"eval": ""}]]]),
        ([], [[["a", {"type": 5}]]]),
        ([], [[["a", {"type": "\0"}]]]),
        ([], [[["a", {"type": "\ud800"}]]]),
        ([], [[["a", {}]]]),
        ([], [[[["a"], 1]]]),
        ([], [[["a", json.loads("[" * 900 + "]" * 900)]]]),
        (None, []),
    ],
)
def test_descriptions_name_what_was_compiled_and_written(nodes, attributes):
    with pytest.raises(ProtocolError):
        decode_descriptions(
            Message({"nodes": nodes, "attributes": attributes}), [object()], [object()]
        )


def test_what_an_ep_describes_and_the_host_does_not_know_is_left_for_the_core_to_judge():
    said = Message(
        {
            "nodes": [[-1, -1, 1, 0, 5, {"type": "set"}, 6, [[7, 8]]]],
            "attributes": [[[5, 5]]],
        }
    )
    known = object()

    (node,) = decode_descriptions(said, [known], [known])

    assert known not in (node.partition, node.payload)
    assert (node.attributes, node.doc_string, type(node.graph_name).__name__) == (
        {5: 5},
        5,
        "set",
    )
    assert node.compatibility_info == 6
    assert node.shapes == {7: 8}


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [([[1, [2]]], [4]), ([[1, [-1]]], [0]), ([[8, [1]]], [7]), ([[99, [1]]], [1]), ([[1, [1 << 40, 1 << 40]]], [4]),
     ([[True, [1]]], [4]), ([[1]], [4]), ([], [4]), ([[1, [1]]], []), ([[1, [1] * 100]], [4]), ([[0, [1]]], [1])],
)  # fmt: skip
def test_an_array_has_the_bytes_that_its_shape_needs(kinds, sizes):
    with pytest.raises(ProtocolError):
        decode_arrays(
            Message({"arrays": kinds}, [memoryview(bytes(size)) for size in sizes])
        )


@pytest.mark.parametrize(
    "key",
    [
        None,
        [],
        [[], 1],
        [[], "nothing"],
        [[[0, "body"]], "w0"],
        [5, "w0"],
        [[[[], []]], "w0"],
    ],
)
def test_a_weight_is_named_by_graph_and_name(view, key):
    reference = writer_handlers(None, view.root, None, [])["reference"]

    with pytest.raises(ProtocolError):
        reference(Message({"weight": key}))


@pytest.mark.parametrize(
    "error",
    [
        {"error": "SystemExit", "message": "", "fields": {}, "trace": ""},
        {"error": "EpctxError", "message": "", "fields": {}, "trace": ""},
        {"error": "Fail", "message": 1, "fields": {}, "trace": ""},
        {"error": "Fail", "message": "", "fields": {"hook": "x"}, "trace": ""},
        {"error": "Fail", "message": "", "fields": {"node": 1}, "trace": ""},
        {"error": "Fail", "message": "", "fields": [], "trace": ""},
        {"error": "Fail", "message": "", "fields": {}},
    ],
)
def test_an_error_is_one_of_the_tree_and_says_what_such_errors_say(error):
    with pytest.raises(ProtocolError):
        decode_error(Message(error))


def test_an_error_keeps_its_class_and_all_that_it_names():
    error = PluginError(
        "m",
        node="n",
        ep="e",
        path="p",
        hint="h",
        hook="k",
        distribution="d",
        version="1",
    )

    found = decode_error(Message(json.loads(json.dumps(encode_error(error)))))

    assert (type(found), vars(found)) == (PluginError, vars(error))
    assert (
        type(decode_error(Message(encode_error(type("Own", (InvalidGraph,), {})("m")))))
        is InvalidGraph
    )


@pytest.mark.parametrize("name", ["message", "node", "ep", "path", "hint", "trace"])
def test_each_text_of_an_error_is_cut_and_made_printable_by_its_receiver(name):
    texts = dict.fromkeys(("node", "ep", "path", "hint"), "")
    said = {"error": "Fail", "message": "", "trace": "", "fields": texts}
    (said if name in said else texts)[name] = "\ud800\x1b\n\u2028" * (1 << 20)

    error = decode_error(Message(said))

    text = str(error.__cause__) if name == "trace" else getattr(error, name)
    assert 1000 < len(text) <= 1 << 16
    # A message is one line.
    lines = text.split(r"\n") if name == "message" else text.splitlines()
    assert set(lines) > {r"\u2028\ud800\x1b"}
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        -(1 << 62),
        0.1,
        float("inf"),
        "é",
        b"\xff\0",
        [1, 2],
        [],
        ["a", b"b"],
        [0.5],
        True,
    ],
)
def test_an_attribute_arrives_as_it_was(value):
    found = decode_attribute(json.loads(json.dumps(encode_attribute(value))))

    assert (found, type(found)) == (value, type(value))


def test_numbers_of_numpy_and_tensors_are_attributes_too():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)

    assert encode_attribute(np.int64(5)) == 5
    assert np.array_equal(
        onnx.numpy_helper.to_array(decode_attribute(encode_attribute(array))), array
    )


def test_of_what_no_attribute_can_hold_the_type_arrives():
    found = decode_attribute(json.loads(json.dumps(encode_attribute({1}))))

    assert type(found).__name__ == "set"
    assert not isinstance(found, set)


@pytest.mark.parametrize(
    "kind", ["float32", "bfloat16", "int4", "uint8", "bool", "float16", "float8_e4m3fn"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_of_every_kind_arrive_as_they_were(kind, shape):
    import ml_dtypes

    array = np.ones(shape, getattr(ml_dtypes, kind, None) or kind)
    kinds, blobs = encode_arrays([array])

    (found,) = decode_arrays(
        Message({"arrays": kinds}, [memoryview(blob.tobytes()) for blob in blobs])
    )

    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)


@pytest.mark.parametrize(
    "array",
    [
        np.array([["a", ""], ["ü\0", "日本"]], object),
        np.array("scalar", object),
        np.empty((0, 3), object),
        np.array(["a", "日本"]),
        np.array([b"a", "é".encode()]),
        np.array([b"a", "é"], object),
        np.array(["a", "é"], object)[::-1],
    ],
    ids=["objects", "scalar", "empty", "unicode", "bytes", "both", "reversed"],
)
def test_text_of_every_kind_arrives_as_text(array):
    kinds, blobs = encode_arrays([array])

    (found,) = decode_arrays(
        Message({"arrays": kinds}, [memoryview(blob.tobytes()) for blob in blobs])
    )

    assert (found.dtype, found.shape) == (np.dtype(object), array.shape)
    assert [str(t) for t in found.flat] == [
        t.decode() if isinstance(t, bytes) else str(t) for t in array.flat
    ]
    assert all(type(text) is str for text in found.flat)


def lengths(*numbers):
    return struct.pack(f"<{len(numbers)}Q", *numbers)


@pytest.mark.parametrize(
    ("shape", "blob"),
    [
        ([1], b""),
        ([1], lengths(1)),
        ([1], lengths(1) + b"ab"),
        ([2], lengths(1) + b"a"),
        ([1], lengths(1) + b"\xff"),
        ([2], lengths(1, 1) + "é".encode()),
        ([2], lengths((1 << 64) - 1, 2) + b"a"),
        ([1 << 40, 1 << 40], lengths(0)),
        ([1] * 100, lengths(1) + b"a"),
        ([0], b"a"),
    ],
)
def test_text_has_the_lengths_that_it_says_and_is_utf_8(shape, blob):
    with pytest.raises(ProtocolError):
        decode_arrays(
            Message({"arrays": [[onnx.TensorProto.STRING, shape]]}, [memoryview(blob)])
        )


@pytest.mark.parametrize(
    ("kind", "shape", "size"), [(1, [1, 3], 12), (1, [], 4), (7, [2, 3], 48)]
)
def test_results_are_not_repeated_or_converted_to_fit_given_arrays(kind, shape, size):
    answer = Message({"arrays": [[kind, shape]]}, [memoryview(bytes(size))])
    remote = SimpleNamespace(
        call=lambda *_: answer, refuse=lambda _hook, error: PluginError(str(error))
    )

    with pytest.raises(PluginError, match=r"for \[\('float32', \(2, 3\)\)\]"):
        Proxy._run(SimpleNamespace(remote=remote), 0, [], [np.ones((2, 3), np.float32)])


def test_messages_with_bits_turned_over_are_messages_or_none():
    pipe = io.BytesIO()
    Channel(io.BytesIO(), pipe).send(
        {
            "say": "result",
            "runnables": [0, 1],
            "nodes": [[0, None, 1, 0, "", None]],
            "attributes": [[]],
        },
        [b"x" * 64],
    )
    generator = random.Random(0)  # noqa: S311 - damage, no secrets
    good = pipe.getvalue()
    outcomes = set()

    for _ in range(2000):
        data = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        try:
            message = received(bytes(data), limit=1 << 20)
            message.numbers("runnables")
            decode_descriptions(message, [object()], [])
        except (ProtocolError, EOFError) as error:
            outcomes.add(type(error))

    assert outcomes == {ProtocolError, EOFError}
