"""OVEP_BIN: what is written, what onnxruntime's EP wrote, and bytes that are damaged or
hostile.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import bson
import numpy as np
import onnx
import pytest
from epctx_openvino import OpenVINOExecutionProvider
from epctx_openvino.container import Blob, Container, write_container
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import FLOAT, single, two_partitions

import epctx_core as epctx
from epctx_core.errors import InvalidGraph

HEADER = struct.Struct("<8sQQQQ")
PAGE = 65536


class Memory:
    """A payload in memory, as a writer and a reader have it."""

    def __init__(self, content=b"", digest=None):
        self.content, self.name, self.digest, self.verified = (
            bytearray(content),
            "net.bin",
            digest,
            False,
        )

    @property
    def view(self):
        return memoryview(bytes(self.content))

    @property
    def size(self):
        return len(self.content)

    def write(self, buffer):
        self.content += bytes(buffer)
        return len(self.content) - len(buffer)

    def align(self, alignment):
        self.content += bytes(-len(self.content) % alignment)
        return len(self.content)


def written(blobs):
    memory = Memory()
    write_container(
        memory,
        {
            name: Blob(data=memoryview(data), precision="FP32")
            for name, data in blobs.items()
        },
    )
    return memory


def made_by_hand(table, *, magic=b"OVEP_BIN", version=1, size=None, tail=PAGE):
    """Return a container as onnxruntime's EP lays it out, with a table of one's own."""
    text = table if isinstance(table, bytes) else bson.encode(table)
    head = (
        HEADER.pack(magic, version, 40, 40, len(text) if size is None else size) + text
    )
    return Memory(head + bytes(-len(head) % PAGE) + bytes(tail))


def entries(*places):
    return {
        "blob_metadata_map": {
            f"b{i}": {"data_offset": o, "size": s} for i, (o, s) in enumerate(places)
        },
        "producer": "onnxruntime-openvino-ep-1.24.1",
        "version": "1.0.0",
    }


@pytest.mark.parametrize("sizes", [[1], [PAGE, 3], [7] * 2000])
def test_blobs_come_back_under_their_names(sizes):
    blobs = {f"partition_{i}": bytes([i % 251]) * size for i, size in enumerate(sizes)}

    read = Container(written(blobs))

    assert {name: bytes(blob.data) for name, blob in read.items()} == blobs
    assert {blob.precision for blob in read.values()} == {"FP32"}


def test_header_table_and_alignment_are_those_of_onnxruntimes_ep():
    memory = written({"a": b"first", "b": b"second"})
    magic, version, header, offset, size = HEADER.unpack(memory.content[:40])
    table = bson.decode(bytes(memory.content[offset : offset + size]))

    assert (magic, version, header, offset) == (b"OVEP_BIN", 1, 40, 40)
    assert list(table) == sorted(table)
    assert table["version"] == "1.0.0"
    assert {
        name: entry["data_offset"] % PAGE
        for name, entry in table["blob_metadata_map"].items()
    } == {
        "a": 0,
        "b": 0,
    }
    assert len(memory.content) % PAGE == 0


def test_a_container_of_onnxruntimes_ep_is_read():
    read = Container(made_by_hand(entries((PAGE, 10))))

    assert len(read["b0"].data) == 10
    assert read["b0"].precision is None


@pytest.mark.parametrize(
    ("memory", "fault"),
    [
        (Memory(b""), "does not begin with OVEP_BIN"),
        (Memory(bytes(PAGE)), "does not begin with OVEP_BIN"),
        (
            Memory(bytes(written({"a": b"x"}).content)[:-1]),
            "its length is not a multiple",
        ),
        (made_by_hand(entries(), version=2), "has version 2"),
        (made_by_hand(entries(), size=1 << 40), "lies outside of it, or is too long"),
        (made_by_hand(b"no bson"), "its table cannot be read"),
        (
            made_by_hand({**entries(), "version": "2.0.0"}),
            "its table has version '2.0.0'",
        ),
        (made_by_hand({"blob_metadata_map": {}}), "its table has version None"),
        (made_by_hand({"version": "1.0.0"}), "its table has no blobs"),
        (
            made_by_hand({**entries(), "weights_metadata_map": {"w": {}}}),
            "its weights lie in other files",
        ),
        (made_by_hand(entries((PAGE, PAGE + 1))), "the blob 'b0' lies outside of it"),
        (made_by_hand(entries((-1, 5))), "the blob 'b0' lies outside of it"),
        (made_by_hand(entries((0, 5))), "the blob 'b0' lies outside of it"),
        (
            made_by_hand(entries((PAGE, "5"))),
            "no offset, size and precision of the blob 'b0'",
        ),
        (made_by_hand(entries((PAGE, 20), (PAGE + 19, 5))), "two of its blobs overlap"),
    ],
)
def test_what_is_damaged_or_foreign_is_refused_with_its_fault(memory, fault):
    with pytest.raises(InvalidGraph) as caught:
        Container(memory)

    assert fault in caught.value.message
    assert "compile the model again" in caught.value.hint


def test_a_blob_that_was_changed_is_refused_before_openvino_sees_it():
    memory = written({"a": b"some bytes"})
    memory.content[PAGE + 3] ^= 1

    with pytest.raises(InvalidGraph, match="does not have the digest"):
        Container(memory)["a"]


def test_a_blob_is_not_digested_again_where_the_model_has_digests():
    memory = written({"a": b"some bytes"})
    memory.content[PAGE + 3] ^= 1
    memory.digest = "the core checks it"

    assert len(Container(memory)["a"].data) == 10


@settings(deadline=None)
@given(st.data())
def test_no_change_of_a_few_bytes_does_more_than_be_refused(data):
    memory = written({"a": b"first", "b": bytes(300)})
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 420))
        memory.content[place] = data.draw(st.integers(0, 255))
    try:
        for name, blob in Container(memory).items():
            assert isinstance(name, str)
            assert 0 < len(blob.data) <= len(memory.content)
    except InvalidGraph:
        pass


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_as_a_table_are_read_or_refused(table):
    try:
        Container(made_by_hand(table))
    except InvalidGraph as error:
        assert error.hint


def stripped(path):
    """Return a context model with its payload inside, without the manifest and its
    digests.
    """
    model = onnx.load(path)
    del model.metadata_props[:]
    return model


def test_damage_that_only_openvino_can_find_is_refused_by_name(harness, compile_into):
    path, _ = compile_into(
        harness, single("Relu", {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])}), embed=True
    )
    model = stripped(path)
    (payload,) = [
        a for a in model.graph.node[0].attribute if a.name == "ep_cache_context"
    ]
    table = {"blob_metadata_map": {}, "producer": "a tool", "version": "1.0.0"}
    name = next(
        a.s.decode()
        for a in model.graph.node[0].attribute
        if a.name == "partition_name"
    )
    table["blob_metadata_map"][name] = {"data_offset": PAGE, "size": 64}
    payload.s = bytes(made_by_hand(table).content)

    with pytest.raises(InvalidGraph, match="OpenVINO refuses the program of the node"):
        harness.run(model.SerializeToString(), {"x": np.zeros(4, np.float32)})


def test_a_node_whose_blob_is_missing_is_refused(harness, compile_into):
    path, _ = compile_into(
        harness, single("Relu", {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])}), embed=True
    )
    model = stripped(path)
    (name,) = [a for a in model.graph.node[0].attribute if a.name == "partition_name"]
    name.s = b"another"

    with pytest.raises(epctx.InvalidGraph, match="has no blob 'another'"):
        harness.run(model.SerializeToString(), {"x": np.zeros(4, np.float32)})


def with_blob_of(path, change):
    """Return a context model without a manifest, whose blob was changed and has no
    digest in its container.
    """
    model = stripped(path)
    attributes = {a.name: a for a in model.graph.node[0].attribute}
    payload = Memory(attributes["ep_cache_context"].s)
    ((name, blob),) = Container(payload).items()
    changed = change(bytes(blob.data))
    table = {
        **entries(),
        "blob_metadata_map": {name: {"data_offset": PAGE, "size": len(changed)}},
    }
    container = made_by_hand(table, tail=0).content + changed
    attributes["ep_cache_context"].s = bytes(container + bytes(-len(container) % PAGE))
    return model


def test_a_program_of_another_version_fails_a_verification_and_a_load(
    harness, compile_into, tmp_path
):
    path, _ = compile_into(
        harness, single("Relu", {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])}), embed=True
    )
    onnx.save(
        with_blob_of(path, lambda blob: blob.replace(b"ov=20", b"ov=19")),
        tmp_path / "old.onnx",
    )

    found = epctx.verify_model(tmp_path / "old.onnx", registry=harness.registry)

    assert [f.code for f in found.findings if f.severity.value == "error"] == [
        "container-refused"
    ]
    with pytest.raises(InvalidGraph, match="OpenVINO refuses the program"):
        harness.run(tmp_path / "old.onnx", {"x": np.zeros(4, np.float32)})


LOAD_DAMAGED = """
import random, sys
import numpy as np
from epctx_openvino.native import core, import_openvino
package, program = import_openvino(), open(sys.argv[1], "rb").read()
for seed in range(150):
    numbers, damaged = random.Random(seed), bytearray(program)
    for _ in range(numbers.choice([1, 4, 40])):
        damaged[numbers.randrange(len(damaged))] = numbers.randrange(256)
    if seed % 3 == 0:
        del damaged[numbers.randrange(len(damaged)) :]
    try:
        model = core().import_model(package.Tensor(np.frombuffer(bytes(damaged) or b"-", np.uint8).copy()), "CPU", {})
        model.create_infer_request().infer()
    except (RuntimeError, ValueError):
        pass
print("alive")
"""


def test_openvino_survives_programs_that_are_damaged(harness, compile_into, tmp_path):
    """So the EP need not ask for payloads that were digested before."""
    path, _ = compile_into(harness, two_partitions(rows=2), embed=True)
    (payload,) = [
        a.s
        for a in onnx.load(path).graph.node[0].attribute
        if a.name == "ep_cache_context"
    ]
    (tmp_path / "program").write_bytes(
        next(iter(Container(Memory(payload)).values())).data
    )

    done = subprocess.run(
        [sys.executable, "-c", LOAD_DAMAGED, tmp_path / "program"],
        check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip

    assert done.stdout == "alive\n", done.stderr
    assert not OpenVINOExecutionProvider.needs_verified_payloads
