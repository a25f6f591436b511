"""Bytes on their way to another process: by the file in which they lie, or behind what describes them."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from epctx_core.errors import InvalidGraph
from epctx_core.graph.mapping import MappedFile
from epctx_core.graph.transfer import pack_weights, unpack_weights
from epctx_core.graph.weights import Weight


@pytest.fixture
def path(tmp_path):
    """A file of weights."""
    path = tmp_path / "w.bin"
    path.write_bytes(bytes(range(8)))
    return path


def weight(data, mapped=None, offset=0):
    return Weight("w", onnx.TensorProto.UINT8, (len(data),), data, mapped=mapped, offset=offset)


def mapped_weight(path):
    with path.open("rb") as file:
        mapped = MappedFile(file.fileno(), str(path))
    return weight(mapped.view[2:6], mapped, 2)


def test_a_weight_in_a_file_arrives_by_its_place_and_one_in_memory_by_its_bytes(path):
    in_file, in_memory = mapped_weight(path), weight(b"abc")
    in_file.source_name, digest = "source", in_memory.digest

    head, sizes, blobs = pack_weights([in_file, in_memory, in_file])
    sent = [memoryview(blob) for blob in blobs]
    found = unpack_weights(json.loads(json.dumps(head)), sent)

    assert [bytes(blob) for blob in sent] == [b"abc"]
    assert sizes == [3]
    assert [w.array().tobytes() for w in found] == [bytes(range(2, 6)), b"abc", bytes(range(2, 6))]
    assert found[0].extent == in_file.extent
    assert (found[0].source_name, found[1].source_name, found[1].lazy_digest.known) == (
        "source",
        None,
        digest,
    )
    assert not np.shares_memory(found[1].array(), in_memory.array())


def test_a_file_is_mapped_as_the_host_has_it_open_whatever_lies_under_its_name_now(path):
    sent = mapped_weight(path)
    path.unlink()
    path.write_bytes(b"other")

    (found,) = unpack_weights(pack_weights([sent])[0], [])

    assert (found.array().tobytes(), found.extent.file) == (bytes(range(2, 6)), str(path))


def test_a_file_of_a_host_that_is_gone_is_not_another_one(path):
    head, _, _ = pack_weights([mapped_weight(path)])
    path.write_bytes(b"another")
    ((places, *_),) = head["files"]
    places[1] = "/proc/0/fd/0"

    with pytest.raises(InvalidGraph, match="was replaced or removed"):
        unpack_weights(head, [])


def test_a_weight_without_elements_arrives(path):
    head, sizes, blobs = pack_weights([weight(b"")])

    (found,) = unpack_weights(head, [memoryview(blob) for blob in blobs])

    assert (found.array().shape, sizes) == ((0,), [0])
