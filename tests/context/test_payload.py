"""Payload bytes on their way out: where they say they are, stored once, with digests that can be checked."""

from __future__ import annotations

import hashlib
import io
import os

import numpy as np
import pytest
from context.writing import inline_weight, noise, weight_in_file
from hypothesis import given
from hypothesis import strategies as st

from epctx_core.context.payload_writer import BLOCK, PayloadSet, PayloadWriter
from epctx_core.errors import Fail, InvalidGraph, PluginError
from epctx_core.plugin import ContextWriter, Extent, Payload
from epctx_core.publish.staging import StagedFile


class Target:
    """A payload under way: into a file or into memory."""

    def __init__(self, folder, kind):
        self.path = folder / "a_x.bin"
        self._sink = io.BytesIO() if kind == "embedded" else StagedFile(self.path, folder)
        self.writer = PayloadWriter("a_x.bin", self._sink, embedded=kind == "embedded")

    def content(self):
        return self._sink.getvalue() if self.writer.embedded else self.path.read_bytes()

    def close(self):
        self._sink.close()


@pytest.fixture(params=["embedded", "file"])
def target(request, tmp_path):
    made = Target(tmp_path, request.param)
    yield made
    made.close()


def check(entry, content):
    """The entry says of the content what hashlib says."""
    assert entry.size == len(content)
    place = 0
    for segment in entry.segments:
        assert segment.offset == place
        assert segment.digest == hashlib.sha256(content[place : place + segment.length]).hexdigest()
        place += segment.length
    assert place == len(content)
    lines = "".join(f"{s.offset} {s.length} {s.digest}\n" for s in entry.segments)
    assert entry.root == hashlib.sha256(lines.encode()).hexdigest()


def test_bytes_are_where_the_writer_said(target):
    first = target.writer.write(b"head")
    second = target.writer.write(memoryview(b"tail"))

    entry = target.writer.finish()

    assert (first, second, target.writer.size) == (0, 4, 8)
    assert target.content() == b"headtail"
    check(entry, b"headtail")


@pytest.mark.parametrize(
    "buffer",
    [b"", bytearray(b"abc"), np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((0, 3)), np.float64(1)],
    ids=["nothing", "bytearray", "array", "empty array", "scalar"],
)
def test_any_buffer_can_be_written(target, buffer):
    raw = bytes(memoryview(buffer).tobytes())

    assert target.writer.write(b"x") == 0
    assert target.writer.write(buffer) == 1

    entry = target.writer.finish()
    assert target.content() == b"x" + raw
    check(entry, b"x" + raw)


def test_alignment_is_filled_with_zeros(target):
    target.writer.write(b"abc")

    assert target.writer.align(8) == 8
    assert target.writer.align(8) == 8
    assert target.writer.write(b"d") == 8
    assert target.content() == b"abc" + bytes(5) + b"d"
    check(target.writer.finish(), target.content())


def test_a_weight_is_one_segment_with_its_own_digest(target, tmp_path):
    data = noise(3 * BLOCK + 7)
    (tmp_path / "w.bin").write_bytes(b"front" + data + b"rest")
    weight = weight_in_file(tmp_path / "w.bin", 5, len(data))
    target.writer.write(b"head")
    target.writer.align(4096)

    offset = target.writer.write_tensor(weight)
    target.writer.write(b"tail")

    entry = target.writer.finish()
    assert offset == 4096
    assert target.content() == b"head" + bytes(4092) + data + b"tail"
    assert [(s.offset, s.length) for s in entry.segments] == [
        (0, 4096),
        (4096, len(data)),
        (4096 + len(data), 4),
    ]
    assert entry.segments[1].digest == weight.digest
    check(entry, target.content())


def test_an_inline_weight_is_written_from_memory(target):
    offset = target.writer.write_tensor(inline_weight(b"weight"))

    assert (offset, target.content()) == (0, b"weight")
    check(target.writer.finish(), b"weight")


def test_equal_content_is_stored_once(target, tmp_path):
    (tmp_path / "w.bin").write_bytes(b"same")
    views = [
        inline_weight(b"same"),
        inline_weight(b"diff", "v"),
        inline_weight(bytearray(b"same"), "other name"),
        weight_in_file(tmp_path / "w.bin", 0, 4),
    ]

    offsets = [target.writer.write_tensor(view) for view in views]

    assert offsets == [0, 4, 0, 0]
    assert target.content() == b"samediff"
    check(target.writer.finish(), b"samediff")


def test_bytes_that_were_written_by_hand_are_not_taken_for_a_weight(target):
    target.writer.write(b"same")

    assert target.writer.write_tensor(inline_weight(b"same")) == 4


def test_an_empty_weight_has_a_place_and_no_bytes(target):
    target.writer.write(b"x")

    assert target.writer.write_tensor(inline_weight(b"")) == 1
    target.writer.write(b"y")
    check(target.writer.finish(), b"xy")


def test_a_file_that_a_tool_made_is_added(target, tmp_path):
    data = noise(2 * BLOCK + 3)
    (tmp_path / "tool.out").write_bytes(data)
    target.writer.write(b"head")

    offset = target.writer.add_file(tmp_path / "tool.out")

    assert offset == 4
    assert target.content() == b"head" + data
    entry = target.writer.finish()
    check(entry, b"head" + data)
    assert [s.length for s in entry.segments] == [BLOCK, BLOCK, 7]


def test_nothing_written_is_a_payload_of_no_bytes(target):
    entry = target.writer.finish()

    assert (entry.size, entry.segments, target.content()) == (0, (), b"")
    check(entry, b"")


def test_what_the_node_holds_is_the_name_or_what_stands_for_the_bytes(target):
    target.writer.write(b"\xff\x00")

    held, embedded = target.writer.contents(), target.writer.embedded_bytes()
    if target.writer.embedded:
        assert {name: bytes(content) for name, content in embedded.items()} == {held: b"\xff\x00"}
    else:
        assert (held, embedded) == (b"a_x.bin", {})


OPERATIONS = st.lists(
    st.tuples(st.just("write"), st.binary(max_size=40))
    | st.tuples(st.just("align"), st.sampled_from([1, 8, 64]))
    | st.tuples(st.just("tensor"), st.sampled_from([b"", b"a", b"bb", b"a" * 30])),
    max_size=12,
)


@given(OPERATIONS)
def test_any_sequence_of_writes_adds_up(operations):
    sink = io.BytesIO()
    writer = PayloadWriter("n", sink, embedded=True)
    for operation, argument in operations:
        before = writer.size
        if operation == "write":
            assert writer.write(argument) == before
        elif operation == "align":
            assert writer.align(argument) % argument == 0
        else:
            offset = writer.write_tensor(inline_weight(argument))
            assert sink.getvalue()[offset : offset + len(argument)] == argument

    check(writer.finish(), sink.getvalue())


def payload_set(opened, *, final=True, **options):
    def open_sink(name):
        opened.append(name)
        return io.BytesIO()

    return PayloadSet(
        "TestExecutionProvider",
        file_name=lambda name: f"m_test{'_' + name if name else ''}.bin",
        open_sink=open_sink if final else None,
        embedded=True,
        **options,
    )


def test_payloads_are_named_by_the_core_and_opened_when_they_are_started():
    opened = []
    payloads = payload_set(opened)
    assert opened == []

    handles = [payloads.handle.payload(), payloads.handle.payload("extra")]

    assert opened == ["m_test.bin", "m_test_extra.bin"]
    assert list(payloads.writers) == [id(handle) for handle in handles]
    assert payloads.handle.final


def test_an_ep_sees_nothing_of_a_payload_but_what_the_contract_says():
    payloads = payload_set([])
    handle = payloads.handle.payload()

    handle.write(b"abc")

    assert (handle.size, handle.align(8), payloads.writers[id(handle)].size) == (3, 8, 8)
    assert public(handle) == public(Payload)
    assert public(payloads.handle) == public(ContextWriter)


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.parametrize("name", ["w", "W.x-1_y", "x" * 64, ".."])
def test_plain_names_of_payloads_become_part_of_a_files(name):
    opened = []

    payload_set(opened).payload(name)

    assert opened == [f"m_test_{name}.bin"]


@pytest.mark.parametrize("name", ["", "/", "a/b", "a b", "a\n", "x" * 65, "é", 1, b"w", "\0"])
def test_other_names_of_payloads_are_refused(name):
    with pytest.raises(PluginError, match="gave a payload the name") as caught:
        payload_set([]).payload(name)

    assert (caught.value.ep, caught.value.hook) == ("TestExecutionProvider", "get_ep_context_nodes")


def test_names_of_payloads_that_differ_by_case_alone_are_one():
    payloads = payload_set([])
    payloads.payload("w")

    with pytest.raises(PluginError, match="two payloads named 'W'"):
        payloads.payload("W")


def test_a_weight_is_copied_from_the_file_that_was_digested(target, tmp_path):
    path = tmp_path / "w.bin"
    path.write_bytes(b"weight")
    weight = weight_in_file(path, 0, 6)
    assert weight.digest == hashlib.sha256(b"weight").hexdigest()
    (tmp_path / "new.bin").write_bytes(b"waited")
    (tmp_path / "new.bin").replace(path)

    target.writer.write_tensor(weight)

    assert target.content() == b"weight"
    check(target.writer.finish(), b"weight")


@pytest.mark.parametrize("content", [b"waited", b"w", b"weighty"], ids=["written to", "cut", "longer"])
def test_a_weights_file_that_changes_in_place_is_noticed(target, tmp_path, content):
    path = tmp_path / "w.bin"
    path.write_bytes(b"weight")
    weight = weight_in_file(path, 0, 6)
    assert weight.digest
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))

    with pytest.raises(InvalidGraph, match="was written to while it was in use") as caught:
        target.writer.write_tensor(weight)

    assert caught.value.path == str(path)


class Claimed:
    """A weight as an EP may make one: it says what it likes."""

    name, elem_type, shape, extent = "claimed", 2, (4,), Extent("/nowhere/at/all", 0, 4)

    def __init__(self, digest, nbytes=4):
        self.digest, self.nbytes = digest, nbytes

    def chunks(self):
        yield memoryview(b"da")
        yield memoryview(b"ta")


def test_a_weight_of_an_eps_own_is_taken_from_its_chunks(target):
    offset = target.writer.write_tensor(Claimed(hashlib.sha256(b"data").hexdigest()))

    assert (offset, target.content()) == (0, b"data")
    check(target.writer.finish(), b"data")


@pytest.mark.parametrize("claim", [("0" * 64, 4), (hashlib.sha256(b"data").hexdigest(), 5)])
def test_a_weight_that_lies_about_itself_is_refused(target, claim):
    with pytest.raises(PluginError, match="'claimed' says that it has"):
        target.writer.write_tensor(Claimed(*claim))


def test_a_payload_too_large_for_a_model_is_refused_while_it_is_written(monkeypatch):
    monkeypatch.setattr("epctx_core.context.payload_writer.EMBEDDED_LIMIT", 10)
    sink = io.BytesIO()
    writer = PayloadWriter("n", sink, embedded=True)
    writer.write(bytes(10))

    with pytest.raises(Fail, match="'n' has more than 10 bytes") as caught:
        writer.write(b"x")

    assert "ep.context_embed_mode=0" in caught.value.hint
    assert len(sink.getvalue()) == 10


@pytest.mark.parametrize(("name", "said"), [(None, "without a name"), ("w", "named 'w'")])
def test_a_payload_cannot_be_started_twice(name, said):
    payloads = payload_set([], final=False)
    payloads.payload(name)

    with pytest.raises(PluginError, match=f"TestExecutionProvider started two payloads {said}") as caught:
        payloads.payload(name)

    assert caught.value.hook == "get_ep_context_nodes"
    assert not payloads.final
