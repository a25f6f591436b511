"""Payload bytes on their way out: where they say they are, stored once, with digests
that can be checked.
"""

from __future__ import annotations

import hashlib
import json
import os
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from context.compiling import EP, Writing, model_of
from context.loading import BLOCK, MANIFEST, noise, root_of
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from epctx_core.errors import InvalidGraph, PluginError
from epctx_core.plugin import ContextWriter, EPContextNode, Extent, Payload


def manifest_of(model):
    return json.loads(
        {entry.key: entry.value for entry in model.metadata_props}[MANIFEST]
    )


class Target:
    """Target of a payload: the model, or a file of a folder."""

    def __init__(self, folder=None):
        self.path = None if folder is None else folder / "m_ctx.onnx"

    def written(self, write, source=None):
        """Compile a model while its EP writes; return the bytes, the manifest's entry
        and what `write` gave.
        """
        given = []

        def describe(partitions, writer):
            payload = writer.payload()
            weights = {
                name: w for each in partitions for name, w in each.weights.items()
            }
            given.append(write(payload, *([weights["w"]] if source else [])))
            return [EPContextNode(partitions[0], payload)]

        made = Writing(describe, path=self.path).compiled(source or model_of(1))
        (entry,) = manifest_of(made)["payloads"]
        (node,) = (each for each in made.graph.node if each.op_type == "EPContext")
        held = next(a.s for a in node.attribute if a.name == "ep_cache_context")
        if self.path is not None:
            held = (self.path.parent / held.decode()).read_bytes()
        return SimpleNamespace(
            content=held, entry=entry, said=given[-1], all_said=given
        )


@pytest.fixture(params=["embedded", "file"])
def target(request, tmp_path):
    return Target(None if request.param == "embedded" else tmp_path)


def check(written, content):
    """The manifest says of the content what hashlib says."""
    assert written.content == content
    assert written.entry["bytes"] == len(content)
    place = 0
    for length, digest, *_ in written.entry["segments"]:
        assert digest == hashlib.sha256(content[place : place + length]).hexdigest()
        place += length
    assert place == len(content)
    assert written.entry["root"] == root_of(written.entry["segments"])


class View:
    """A weight as an EP may make one: it says what it likes."""

    elem_type, dtype, source_name, extent = (
        TensorProto.UINT8,
        np.dtype(np.uint8),
        None,
        None,
    )

    def __init__(self, data, name="w", *, digest=None, nbytes=None):
        self.name, self._data = name, bytes(data)
        self.nbytes = len(self._data) if nbytes is None else nbytes
        self.shape = (self.nbytes,)
        self.digest = digest or hashlib.sha256(self._data).hexdigest()

    def array(self):
        return np.frombuffer(self._data, np.uint8)

    def chunks(self):
        half = len(self._data) // 2
        yield memoryview(self._data)[:half]
        yield memoryview(self._data)[half:]


def source_with(folder, data, offset=0):
    """Write a model with a weight in a file, at an offset; return the model's path and
    the file's.
    """
    made = model_of(1)
    made.graph.node[0].input.append("w")
    weight = TensorProto(
        name="w",
        data_type=TensorProto.UINT8,
        dims=[len(data)],
        data_location=TensorProto.EXTERNAL,
    )
    for key, text in (
        ("location", "w.bin"),
        ("offset", str(offset)),
        ("length", str(len(data))),
    ):
        weight.external_data.add(key=key, value=text)
    made.graph.initializer.append(weight)
    (folder / "w.bin").write_bytes(b"f" * offset + data + b"rest")
    onnx.save(made, folder / "m.onnx")
    return folder / "m.onnx"


def test_bytes_are_where_the_writer_said(target):
    def write(payload):
        return payload.write(b"head"), payload.write(memoryview(b"tail")), payload.size

    made = target.written(write)

    assert made.said == (0, 4, 8)
    check(made, b"headtail")


@pytest.mark.parametrize(
    "buffer",
    [
        b"",
        bytearray(b"abc"),
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.zeros((0, 3)),
        np.float64(1),
    ],
    ids=["nothing", "bytearray", "array", "empty array", "scalar"],
)
def test_any_buffer_can_be_written(target, buffer):
    made = target.written(lambda payload: (payload.write(b"x"), payload.write(buffer)))

    assert made.said == (0, 1)
    check(made, b"x" + memoryview(buffer).tobytes())


def test_alignment_is_filled_with_zeros(target):
    def write(payload):
        payload.write(b"abc")
        return payload.align(8), payload.align(8), payload.write(b"d")

    made = target.written(write)

    assert made.said == (8, 8, 8)
    check(made, b"abc" + bytes(5) + b"d")


def test_a_weight_is_one_segment_with_its_own_digest(target, tmp_path):
    data = noise(3 * BLOCK + 7)

    def write(payload, weight):
        payload.write(b"head")
        payload.align(4096)
        offset = payload.write_tensor(weight)
        payload.write(b"tail")
        return offset, weight.digest

    made = target.written(write, source_with(tmp_path, data, offset=5))

    assert made.said == (4096, hashlib.sha256(data).hexdigest())
    assert [length for length, *_ in made.entry["segments"]] == [4096, len(data), 4]
    assert made.entry["segments"][1][1] == made.said[1]
    check(made, b"head" + bytes(4092) + data + b"tail")


def test_an_inline_weight_is_written_from_memory(target):
    made = target.written(lambda payload: payload.write_tensor(View(b"weight")))

    assert made.said == 0
    check(made, b"weight")


def test_equal_content_is_stored_once(target, tmp_path):
    def write(payload, weight):
        views = (
            View(b"same"),
            View(b"diff", "v"),
            View(bytearray(b"same"), "other name"),
            weight,
        )
        return [payload.write_tensor(view) for view in views]

    made = target.written(write, source_with(tmp_path, b"same"))

    assert made.said == [0, 4, 0, 0]
    check(made, b"samediff")


def test_bytes_that_were_written_by_hand_are_not_taken_for_a_weight(target):
    made = target.written(
        lambda payload: (payload.write(b"same"), payload.write_tensor(View(b"same")))
    )

    assert made.said == (0, 4)


def test_an_empty_weight_has_a_place_and_no_bytes(target):
    def write(payload):
        return payload.write(b"x"), payload.write_tensor(View(b"")), payload.write(b"y")

    made = target.written(write)

    assert made.said == (0, 1, 1)
    check(made, b"xy")


def test_a_file_that_a_tool_made_is_added(target, tmp_path):
    data = noise(2 * BLOCK + 3)
    (tmp_path / "tool.out").write_bytes(data)

    made = target.written(
        lambda payload: (
            payload.write(b"head"),
            payload.add_file(tmp_path / "tool.out"),
        )
    )

    assert made.said == (0, 4)
    assert [length for length, *_ in made.entry["segments"]] == [BLOCK, BLOCK, 7]
    check(made, b"head" + data)


OPERATIONS = st.lists(
    st.tuples(st.just("write"), st.binary(max_size=40))
    | st.tuples(st.just("align"), st.sampled_from([1, 8, 64]))
    | st.tuples(st.just("tensor"), st.sampled_from([b"", b"a", b"bb", b"a" * 30])),
    min_size=1,
    max_size=12,
)


@given(OPERATIONS)
def test_any_sequence_of_writes_adds_up(operations):
    def write(payload):
        payload.write(b"begun")
        places = []
        for operation, argument in operations:
            before = payload.size
            if operation == "write":
                assert payload.write(argument) == before
            elif operation == "align":
                assert payload.align(argument) % argument == 0
            else:
                places.append((payload.write_tensor(View(argument)), argument))
        return places

    made = Target().written(write)

    for offset, data in made.said:
        assert made.content[offset : offset + len(data)] == data
    check(made, made.content)


def named(*names, folder):
    """Compile with a payload of each name, one for each node; return what the folder
    holds.
    """

    def describe(partitions, writer):
        nodes = []
        for partition, name in zip(partitions, names, strict=True):
            payload = writer.payload() if name is None else writer.payload(name)
            payload.write(repr(name).encode())
            nodes.append(EPContextNode(partition, payload))
        return nodes

    Writing(describe, path=folder / "m_ctx.onnx").compiled(model_of(len(names)))
    return {path.name: path.read_bytes() for path in folder.glob("*.bin")}


def test_payloads_are_named_by_the_core(tmp_path):
    assert named(None, "extra", folder=tmp_path) == {
        "m_test.bin": b"None",
        "m_test_extra.bin": b"'extra'",
    }


def test_an_ep_sees_nothing_of_a_payload_but_what_the_contract_says():
    seen = []

    def describe(partitions, writer):
        payload = writer.payload()
        payload.write(b"abc")
        seen.append(
            (
                public(writer),
                public(payload),
                payload.size,
                payload.align(8),
                writer.final,
            )
        )
        return [EPContextNode(partitions[0], payload)]

    Writing(describe).compiled(model_of(1))

    assert seen[0] == (public(ContextWriter), public(Payload), 3, 8, True)


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.parametrize("name", ["w", "W.x-1_y", "x" * 64, ".."])
def test_plain_names_of_payloads_become_part_of_a_files(name, tmp_path):
    assert named(name, folder=tmp_path).keys() == {f"m_test_{name}.bin"}


@pytest.mark.parametrize(
    "name", ["", "/", "a/b", "a b", "a\n", "x" * 65, "é", 1, b"w", "\0"]
)
def test_other_names_of_payloads_are_refused(name, tmp_path):
    with pytest.raises(PluginError, match="gave a payload the name") as caught:
        named(name, folder=tmp_path)

    assert (caught.value.ep, caught.value.hook) == (EP, "get_ep_context_nodes")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((None, None), "None"),
        (("w", "w"), "'w'"),
        (("w", "W"), "'W'"),
    ],
    ids=["without a name", "of one name", "by case alone"],
)
def test_two_payloads_of_one_name_are_refused(names, said, tmp_path):
    with pytest.raises(
        PluginError, match=f"the name {said} .* another payload"
    ) as caught:
        named(*names, folder=tmp_path)

    assert caught.value.hook == "get_ep_context_nodes"


def test_a_weight_is_copied_from_the_file_that_was_digested(target, tmp_path):
    source = source_with(tmp_path, b"weight")

    def write(payload, weight):
        assert weight.digest == hashlib.sha256(b"weight").hexdigest()
        (tmp_path / "new.bin").write_bytes(b"waited")
        (tmp_path / "new.bin").replace(tmp_path / "w.bin")
        return payload.write_tensor(weight)

    check(target.written(write, source), b"weight")


@pytest.mark.parametrize(
    "content",
    [b"waited", b"w", b"weighty, and more"],
    ids=["written to", "cut", "longer"],
)
def test_a_weights_file_that_changes_in_place_is_noticed(target, tmp_path, content):
    source = source_with(tmp_path, b"weight")

    def write(payload, weight):
        assert weight.digest
        (tmp_path / "w.bin").write_bytes(content)
        os.utime(tmp_path / "w.bin", ns=(1, 1))
        payload.write_tensor(weight)

    with pytest.raises(
        InvalidGraph, match="was written to while it was in use"
    ) as caught:
        target.written(write, source)

    assert str(caught.value.path) == str(tmp_path / "w.bin")


class Claimed(View):
    """A weight of an EP's own that claims to lie in a file."""

    extent = Extent("/nowhere/at/all", 0, 4)


def test_a_weight_of_an_eps_own_is_taken_from_its_chunks(target):
    check(
        target.written(lambda payload: payload.write_tensor(Claimed(b"data"))), b"data"
    )


@pytest.mark.parametrize("claim", [{"digest": "0" * 64}, {"nbytes": 5}])
def test_a_weight_that_lies_about_itself_is_refused(target, claim):
    with pytest.raises(PluginError, match="'claimed' states its size and digest as"):
        target.written(
            lambda payload: payload.write_tensor(Claimed(b"data", "claimed", **claim))
        )
