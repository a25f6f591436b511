"""OVEP_BIN: what is written, what onnxruntime's EP wrote, and bytes that are damaged or
hostile.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from epctx_native_formats.openvino import Table, decode_table, encode_head
from epctx_openvino import OpenVINOExecutionProvider
from epctx_openvino.container import Blob, Container, write_container
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import FLOAT, single, two_partitions

import epctx_core as epctx
from epctx_core.errors import InvalidGraph

pytestmark = pytest.mark.internal

PAGE = 65536
DIGEST_IN_0_1 = "2e7a674428d4ee906e19761fd4915f86351d6a4fd301c7daa598d5734e0fdcc7"
"""SHA-256 of a container as MongoDB's codec wrote its table."""


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


def made_by_hand(entries, *, tail=PAGE, **fields):
    """Return a container as onnxruntime's EP lays it out, with entries of one's own."""
    said = {"producer": "onnxruntime-openvino-ep-1.24.1", "version": "1.0.0", **fields}
    head = encode_head(Table(fields=said, entries=entries))
    return Memory(head.ljust(PAGE, b"\0") + bytes(tail))


@pytest.mark.parametrize("sizes", [[1], [PAGE, 3], [7] * 2000])
def test_blobs_come_back_under_their_names(sizes):
    blobs = {f"partition_{i}": bytes([i % 251]) * size for i, size in enumerate(sizes)}

    read = Container(written(blobs))

    assert {name: bytes(blob.data) for name, blob in read.items()} == blobs
    assert {blob.precision for blob in read.values()} == {"FP32"}


def test_each_entry_has_precision_and_digest_and_the_table_its_producer():
    memory = written({"a": b"first", "b": b"second"})
    table = decode_table(memory.view, "net.bin")

    assert memory.content.startswith(b"OVEP_BIN")
    assert table.fields == {"producer": "epctx-openvino-0.1.0", "version": "1.0.0"}
    assert table.entries["b"] == {
        "data_offset": 2 * PAGE,
        "precision": "FP32",
        "sha256": hashlib.sha256(b"second").hexdigest(),
        "size": 6,
    }
    assert len(memory.content) == 3 * PAGE


def test_the_bytes_are_those_of_version_0_1():
    memory = written({"a": b"first", "b": b"second"})

    assert hashlib.sha256(memory.content).hexdigest() == DIGEST_IN_0_1


def test_a_container_of_onnxruntimes_ep_is_read():
    read = Container(made_by_hand({"b0": {"data_offset": PAGE, "size": 10}}))

    assert len(read["b0"].data) == 10
    assert read["b0"].precision is None


@pytest.mark.parametrize(
    ("memory", "fault"),
    [
        (Memory(bytes(PAGE)), "does not begin with OVEP_BIN"),
        (
            made_by_hand({}, weights_metadata_map={"w": {}}),
            "its weights lie in other files",
        ),
        (
            made_by_hand({"b0": {"data_offset": PAGE, "size": 5, "precision": 32}}),
            "the precision of the blob 'b0' is not a text",
        ),
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
    name = next(
        a.s.decode()
        for a in model.graph.node[0].attribute
        if a.name == "partition_name"
    )
    table = {name: {"data_offset": PAGE, "size": 64}}
    payload.s = bytes(made_by_hand(table, producer="a tool").content)

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
    table = {name: {"data_offset": PAGE, "size": len(changed)}}
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
