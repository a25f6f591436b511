"""What comes from a child is checked against what it may be: anything else is no
message, and never a crash.
"""

from __future__ import annotations

import io
import json
import random
import struct

import numpy as np
import pytest
from epctx_isolation.channel import (
    LONGEST_HEAD,
    MOST_BLOBS,
    MOST_ENTRIES,
    SMALL_ENTRIES,
    SMALL_HEAD,
    Message,
    ProtocolError,
    decode_error,
    encode_error,
    receive_message,
    send_message,
    whole_numbers,
)
from support.isolation import turn_bits_over

from epctx_core.errors import InvalidGraph, PluginError

pytestmark = pytest.mark.internal

RESULT = 1
"""First byte of a result; 0 of any other message."""


class Pipe(io.BytesIO):
    """Line to which a child writes, and from which its host reads."""

    sendall = io.BytesIO.write


def sent(head, blobs=()):
    """Return the bytes of a message."""
    pipe = Pipe()
    send_message(pipe, head, blobs)
    return pipe.getvalue()


def received(data, limit=None):
    return receive_message(io.BytesIO(data), limit)


def framed(head, kind=0, length=None):
    """Return the bytes of a message with this head, whatever it is."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<BI", kind, len(text) if length is None else length) + text


def test_a_message_arrives_as_it_was_sent():
    data = sent({"say": "é"}, [b"abc", b"", np.arange(3, dtype=np.int16)])

    message = received(data)

    assert message.text("say") == "é"
    assert [bytes(blob) for blob in message.blobs] == [b"abc", b"", b"\0\0\1\0\2\0"]


def test_a_result_arrives_as_it_was_sent():
    data = sent({"say": "result", "result": {"a": [1, None]}})

    assert received(data).head["result"] == {"a": [1, None]}


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\xff",
        b"\1\xff\xff\xff\xff",
        framed(b"", length=SMALL_HEAD + 1),
        framed(b"", RESULT, length=LONGEST_HEAD + 1),
        framed(b"{"),
        framed(b""),
        framed(b"[" * 50),
        framed(b"\xff\xfe"),
        framed([1]),
        framed("text"),
        framed(None),
        framed({}),
        framed({"say": "result", "sizes": []}),
        framed({"say": "error", "sizes": []}, RESULT),
        framed({"sizes": []}, RESULT),
        framed({"say": ["result"], "sizes": []}, RESULT),
        framed({"sizes": -1}),
        framed({"sizes": None}),
        framed({"sizes": {}}),
        framed({"sizes": "1"}),
        framed({"sizes": [-1]}),
        framed({"sizes": [True]}),
        framed({"sizes": [1.5]}),
        framed({"sizes": ["1"]}),
        framed({"sizes": [1 << 62]}),
        framed({"sizes": [1 << 80]}),
        framed({"sizes": [101]}),
        framed({"sizes": [50, 50]}),
        pytest.param(framed({"text": "x" * 100}), id="a head above the limit"),
        pytest.param(
            framed({"say": "result", "text": "x" * 100}, 1), id="a result, too"
        ),
        framed({"sizes": [90]}),
    ],
)
def test_what_is_no_message_is_noticed_before_anything_is_made_of_it(data):
    with pytest.raises(ProtocolError):
        received(data, limit=100)


@pytest.mark.parametrize(
    "data",
    [
        framed(b"[" * 4000),
        framed(b"[" * 100_000, RESULT),
        framed({"sizes": [1 << 62]}),
        framed({"sizes": [1 << 80]}),
        pytest.param(framed({"say": "result", "sizes": [0] * (MOST_BLOBS + 1)}, RESULT),
                     id="more blobs than any message has"),
        pytest.param(framed(b"1" * 5000), id="a number of too many digits"),
    ],
)  # fmt: skip
def test_a_message_without_a_limit_is_bounded_nevertheless(data):
    with pytest.raises(ProtocolError):
        received(data)


def test_only_a_result_may_have_a_long_head():
    text = "x" * SMALL_HEAD

    assert received(sent({"say": "result", "text": text})).text("text") == text

    with pytest.raises(ProtocolError, match="1,048,576 are allowed"):
        received(sent({"say": "tell", "text": text}))


def lists(count, say="tell"):
    """Return a message with so many entries, most of the smallest kind."""
    head = b'{"say":"' + say.encode() + b'","sizes":[],"":['
    return framed(head + b"[]," * (count // 2 - 5) + b"[]]}", int(say == "result"))


@pytest.mark.parametrize(
    ("say", "entries"), [("tell", SMALL_ENTRIES), ("result", MOST_ENTRIES)]
)
def test_only_a_result_may_have_many_entries(say, entries):
    assert received(lists(SMALL_ENTRIES, say)).head[""]

    if say == "result":
        assert received(lists(2 * SMALL_ENTRIES, say)).head[""]

    with pytest.raises(ProtocolError, match=f"more than {entries:,} entries"):
        received(lists(entries + 12, say))


@pytest.mark.parametrize("say", ["tell", "result"])
def test_the_memory_that_a_head_takes_counts_as_what_a_message_may_have(say):
    assert received(lists(500, say), limit=200_000).head[""]

    with pytest.raises(ProtocolError, match=r"more than 4\d\d entries"):
        received(lists(500, say), limit=50_000)


@pytest.mark.parametrize("end", [0, 3, 5, 20, -1])
def test_a_message_that_ends_early_is_the_end(end):
    data = sent({"say": "chunk"}, [b"x" * 100])

    with pytest.raises(EOFError):
        received(data[:end])


def test_blobs_that_are_announced_and_never_sent_are_the_end():
    with pytest.raises(EOFError):
        received(framed({"sizes": [1 << 20]}))


def test_messages_follow_each_other_without_a_gap():
    line = io.BytesIO(
        sent({"say": "a"}, [b"1"]) + sent({"say": "result"}) + sent({"say": "b"})
    )

    assert [receive_message(line, None).text("say") for _ in range(3)] == [
        "a",
        "result",
        "b",
    ]


def test_messages_with_bits_turned_over_are_messages_or_none():
    good = sent(
        {"say": "result", "result": {"number": 1, "facts": [0, 1]}}, [b"x" * 64]
    )
    generator = random.Random(0)  # noqa: S311 - damage, no secrets
    outcomes = set()

    for _ in range(2000):
        data = turn_bits_over(good, generator)
        try:
            received(data, limit=1 << 20)
        except (ProtocolError, EOFError) as error:
            outcomes.add(type(error))
        else:
            outcomes.add(Message)

    assert outcomes == {ProtocolError, EOFError, Message}


@pytest.mark.parametrize("value", [None, 1, ["text"], {}, True])
def test_a_text_of_a_message_is_a_text(value):
    with pytest.raises(ProtocolError, match="key is"):
        Message({"key": value}).text("key")

    with pytest.raises(ProtocolError, match="other is None"):
        Message({"key": value}).text("other")


@pytest.mark.parametrize("value", [None, "1", 1.0, True, -1, [1]])
def test_a_number_of_a_message_is_whole_and_not_negative(value):
    assert Message({"key": 1 << 80}).number("key") == 1 << 80

    with pytest.raises(ProtocolError, match="key is"):
        Message({"key": value}).number("key")


@pytest.mark.parametrize(
    "values", [None, 1, "12", {"1": 1}, (1, 2), [1, -1], [False], [1.0], [[1]]]
)
def test_a_list_of_whole_numbers_is_nothing_else(values):
    assert whole_numbers([0, 1 << 80]) == [0, 1 << 80]

    with pytest.raises(ProtocolError):
        whole_numbers(values)


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
