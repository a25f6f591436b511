"""The container for EPs that store several blobs: what is written is found, and damage
is named.
"""

from __future__ import annotations

import hashlib
import json
import struct

import onnx
import pytest
from epctx_blobs import Blobs, write_blobs
from support.engine_eps import EngineProvider
from support.isolation import options_for, registry_of
from support.small_models import chain, example, saved

import epctx_core as epctx
from epctx_core.errors import InvalidGraph
from epctx_core.plugin import CompiledPartition, EPContextNode, hookimpl

FOOT = struct.Struct("<Q32s8s")


class Blobbing(EngineProvider):
    """One blob for each partition, its number of nodes beside it."""

    name = "BlobbingExecutionProvider"
    binary_suffix = "blobs"
    operators = frozenset({"Relu", "Add"})
    loads_without_device = True

    @hookimpl
    def get_ep_context_nodes(self, writer):
        payload = writer.payload()
        blobs = {partition.name: model for partition, model in self._compiled}
        write_blobs(
            payload, blobs, {p.name: {"nodes": len(p.nodes)} for p, _ in self._compiled}
        )
        return [EPContextNode(partition, payload) for partition, _ in self._compiled]

    @hookimpl
    def load_context(self, nodes, reader):
        self.tables = [Blobs(reader.payload(node)) for node in nodes]
        assert [
            b.facts(n.partition_name) for b, n in zip(self.tables, nodes, strict=True)
        ] == [
            {"nodes": 2},
            {"nodes": 1},
        ]
        found = [
            blobs[node.partition_name]
            for blobs, node in zip(self.tables, nodes, strict=True)
        ]
        return [CompiledPartition(self._runnable(model)) for model in found]


class Memory:
    """A payload in memory, written and then read."""

    name = "here.bin"

    def __init__(self, content=b"", *, verified=False):
        self.content = bytearray(content)
        self.verified = verified

    @property
    def size(self):
        return len(self.content)

    @property
    def view(self):
        return memoryview(bytes(self.content))

    def write(self, buffer):
        self.content += buffer
        return self.size - len(buffer)

    def align(self, alignment):
        self.content += bytes(-self.size % alignment)
        return self.size

    def add_file(self, path):
        return self.write(path.read_bytes())


def written(blobs=None, **arguments):
    payload = Memory(**arguments)
    write_blobs(payload, blobs or {"a": b"first", "b": memoryview(b"second" * 1000)})
    return payload


def with_table(change):
    """Return a payload whose table was changed, its digest made right again."""
    content = bytes(written().content)
    length, _, magic = FOOT.unpack(content[-FOOT.size :])
    end = len(content) - FOOT.size
    table = json.loads(content[end - length : end])
    text = json.dumps({**table, "blobs": change(table["blobs"])}).encode()
    return Memory(
        content[: end - length]
        + text
        + FOOT.pack(len(text), hashlib.sha256(text).digest(), magic)
    )


def test_a_newer_version_of_the_container_is_named_and_not_called_damaged():
    content = bytes(written().content)
    newer = Memory(content[:-1] + b"2")

    with pytest.raises(InvalidGraph, match="version 2 of its format") as caught:
        Blobs(newer)

    assert "reads version 1" in caught.value.message
    assert "damaged" not in caught.value.message
    assert "epctx-blobs" in caught.value.hint


def test_blobs_of_partitions_are_compiled_and_loaded(tmp_path):
    model = saved(chain(("Relu", "Add", "Sigmoid", "Relu")), tmp_path / "m.onnx")
    options, registry = options_for(Blobbing, isolate=""), registry_of(Blobbing)

    epctx.ModelCompiler(options, model, registry=registry).compile_to_file()

    with (
        epctx.InferenceSession(model) as plain,
        epctx.InferenceSession(
            tmp_path / "m_ctx.onnx", options, registry=registry
        ) as session,
    ):
        expected, result = (
            each.run(None, {"x": example()})[0] for each in (plain, session)
        )
    assert abs(result - expected).max() < 1e-6


def test_blobs_are_views_at_multiples_of_4096(tmp_path):
    (tmp_path / "c").write_bytes(b"of a file")
    payload = written(
        {"a": b"first", "b": bytearray(b"second"), "c": tmp_path / "c", "none": b""}
    )

    blobs = Blobs(payload)

    assert {name: bytes(blob) for name, blob in blobs.items()} == {
        "a": b"first", "b": b"second", "c": b"of a file", "none": b"",
    }  # fmt: skip
    assert (payload.content.index(b"second"), payload.content.index(b"of a file")) == (
        4096,
        8192,
    )
    assert blobs["a"].obj is blobs["b"].obj
    assert blobs.get("d") is None


def test_a_changed_blob_is_found_when_it_is_asked_for_unless_the_core_has_digested_the_payload():
    payload = written()
    payload.content[0] ^= 1

    assert bytes(Blobs(payload)["b"]) == b"second" * 1000
    with pytest.raises(
        epctx.InvalidGraph, match=r"here\.bin is damaged .*'a' does not have the digest"
    ):
        Blobs(payload)["a"]
    payload.verified = True
    assert len(Blobs(payload)["a"]) == 5


@pytest.mark.parametrize("end", [0, 10, 4096, -1])
def test_a_truncated_container_is_refused(end):
    with pytest.raises(
        epctx.InvalidGraph, match="does not end as a container of blobs does"
    ):
        Blobs(Memory(written().content[:end]))


def test_a_changed_table_is_refused():
    payload = written()
    payload.content[-60] ^= 1

    with pytest.raises(epctx.InvalidGraph, match="its table cannot be read"):
        Blobs(payload)


@pytest.mark.parametrize(
    "entry",
    [
        {"offset": -1}, {"offset": 1 << 40}, {"length": 1 << 40}, {"length": -5}, {"length": True}, {"length": 1.5},
        {"sha256": 7}, {"facts": []},
    ],
    ids=str,
)  # fmt: skip
def test_a_table_that_contradicts_the_payload_is_refused(entry):
    payload = with_table(lambda table: {**table, "a": {**table["a"], **entry}})

    with pytest.raises(epctx.InvalidGraph, match="its table cannot be read"):
        Blobs(payload)


@pytest.mark.parametrize(
    "ask",
    [lambda blobs: blobs["d"], lambda blobs: blobs.facts("d")],
    ids=["blob", "facts"],
)
def test_a_blob_that_is_missing_is_the_fault_of_the_file_and_of_no_plugin(ask):
    with pytest.raises(epctx.InvalidGraph, match=r"here\.bin has no blob 'd'"):
        ask(Blobs(written()))


def test_a_context_model_that_asks_for_a_missing_blob_is_refused_as_a_bad_file(
    tmp_path,
):
    model = saved(chain(("Relu", "Add", "Sigmoid", "Relu")), tmp_path / "m.onnx")
    options, registry = options_for(Blobbing, isolate=""), registry_of(Blobbing)
    compiled = onnx.load(
        epctx.ModelCompiler(options, model, registry=registry).compile_to_file().output
    )
    for attribute in compiled.graph.node[0].attribute:
        if attribute.name == "partition_name":
            attribute.s = b"another"
    onnx.save(compiled, tmp_path / "m_ctx.onnx")

    with pytest.raises(epctx.InvalidGraph, match="has no blob 'another'"):
        epctx.InferenceSession(tmp_path / "m_ctx.onnx", options, registry=registry)


def test_a_blob_is_digested_once_however_many_names_it_has_and_however_often_it_is_asked_for(
    monkeypatch,
):
    digested = []
    sha256 = hashlib.sha256
    payload = with_table(
        lambda table: {f"b{number}": table["b"] for number in range(50)}
    )
    monkeypatch.setattr(
        hashlib, "sha256", lambda data: digested.append(len(data)) or sha256(data)
    )

    blobs = Blobs(payload)
    for _ in range(3):
        assert all(bytes(blob) == b"second" * 1000 for blob in blobs.values())

    assert digested.count(6000) == 1


@pytest.mark.parametrize(("offset", "length"), [(4096, 5999), (4097, 10), (0, 4097)])
def test_blobs_that_overlap_are_refused(offset, length):
    other = {
        "none": {"offset": 4096, "length": 0},
        "c": {"offset": offset, "length": length},
    }

    with pytest.raises(epctx.InvalidGraph, match="two blobs overlap"):
        Blobs(
            with_table(
                lambda table: {
                    **table,
                    **{name: {**table["b"], **entry} for name, entry in other.items()},
                }
            )
        )


def test_a_table_that_no_load_would_read_is_not_written():
    with pytest.raises(ValueError, match="16,777,216"):
        write_blobs(Memory(), {"a": b""}, {"a": {"text": "x" * (1 << 24)}})


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        (["a"], "facts are of type list"),
        ([], "facts are of type list"),
        ({"a": 5}, "the blob 'a' are of type int"),
        ({"a": [("shape", 1)]}, "the blob 'a' are of type list"),
        ({"a": None}, "the blob 'a' are of type NoneType"),
    ],
)
def test_facts_that_are_not_a_mapping_are_refused(facts, fault):
    with pytest.raises(TypeError, match=fault):
        write_blobs(Memory(), {"a": b"1"}, facts)


def test_facts_about_no_blob_are_refused():
    with pytest.raises(ValueError, match="'c'"):
        write_blobs(Memory(), {"a": b""}, {"c": {}})


def test_a_container_of_another_kind_or_version_is_refused_and_not_called_damaged():
    payload = Memory()
    write_blobs(payload, {"a": b"first"}, kind="ACME0002")

    assert len(Blobs(payload, kind="ACME0002")) == 1
    with pytest.raises(
        InvalidGraph, match="is of the kind 'ACME0002', and this EP reads 'ACME0001'"
    ) as caught:
        Blobs(payload, kind="ACME0001")
    assert "damaged" not in caught.value.message
    assert "version of the plugin" in caught.value.hint


@pytest.mark.parametrize("table", [[], 7, None, {"a": 1}, {"a": {}}], ids=str)
def test_what_is_no_table_is_refused(table):
    with pytest.raises(epctx.InvalidGraph, match="its table cannot be read"):
        Blobs(with_table(lambda _: table))


def test_a_table_nested_too_deeply_is_refused():
    text = b"[" * 100_000
    payload = Memory(
        text + FOOT.pack(len(text), hashlib.sha256(text).digest(), b"EPCTXBL1")
    )

    with pytest.raises(epctx.InvalidGraph, match="its table cannot be read"):
        Blobs(payload)
