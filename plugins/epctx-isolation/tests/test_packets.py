"""Bytes on their way to another process: by the file in which they lie, or behind what
describes them.
"""

from __future__ import annotations

import itertools
import json

import numpy as np
import onnx
import pytest
from epctx_isolation.model_copy import pack_weights, unpack_weights

from epctx_core.errors import InvalidGraph
from epctx_core.graph.mapping import MappedFile
from epctx_core.graph.weights import Weight


@pytest.fixture
def path(tmp_path):
    """A file of weights."""
    path = tmp_path / "w.bin"
    path.write_bytes(bytes(range(8)))
    return path


def weight(data, mapped=None, offset=0):
    return Weight(
        "w", onnx.TensorProto.UINT8, (len(data),), data, mapped=mapped, offset=offset
    )


def arrived(packet):
    """Return head and pieces of a packet as another process gets them, and how many
    bytes that took.
    """
    head, portions, sizes = packet
    content = b"".join(portions)
    ends = np.cumsum([0, *sizes]).tolist()
    pieces = [memoryview(content)[start:end] for start, end in itertools.pairwise(ends)]
    return json.loads(json.dumps(head)), pieces, len(content)


def mapped_weight(path):
    with path.open("rb") as file:
        mapped = MappedFile(file.fileno(), str(path))
    return weight(mapped.view[2:6], mapped, 2)


def test_a_weight_in_a_file_arrives_by_its_place_and_one_in_memory_by_its_bytes(path):
    in_file, in_memory = mapped_weight(path), weight(b"abc")
    in_file.source_name, digest = "source", in_memory.digest

    head, pieces, count = arrived(pack_weights([in_file, in_memory, in_file]))
    found = unpack_weights(head, pieces)

    assert count == 3, "what lies in a file does not travel"
    assert [w.array().tobytes() for w in found] == [
        bytes(range(2, 6)),
        b"abc",
        bytes(range(2, 6)),
    ]
    assert found[0].extent == in_file.extent
    assert (found[0].source_name, found[1].source_name, found[1].lazy_digest.known) == (
        "source",
        None,
        digest,
    )


def test_a_large_weight_in_memory_travels_in_portions_that_are_not_copied():
    large = np.arange(9 << 20, dtype=np.uint8)

    _, portions, sizes = pack_weights([weight(large.data)])
    first, second = portions

    assert sizes == [9 << 20]
    assert len(first) + len(second) == 9 << 20
    assert np.shares_memory(np.frombuffer(first, np.uint8), large)


def test_a_file_is_mapped_as_the_host_has_it_open_whatever_lies_under_its_name_now(
    path,
):
    sent = mapped_weight(path)
    path.unlink()
    path.write_bytes(b"other")

    (found,) = unpack_weights(pack_weights([sent])[0], [])

    assert (found.array().tobytes(), found.extent.file) == (
        bytes(range(2, 6)),
        str(path),
    )


def test_a_file_of_a_host_that_is_gone_is_not_another_one(path):
    head, _, _ = pack_weights([mapped_weight(path)])
    path.write_bytes(b"another")
    ((places, *_),) = head["files"]
    places[1] = "/proc/0/fd/0"

    with pytest.raises(InvalidGraph, match="was replaced or removed"):
        unpack_weights(head, [])


def test_a_weight_without_elements_arrives(path):
    head, pieces, _ = arrived(pack_weights([weight(b""), weight(b"a")]))

    empty, other = unpack_weights(head, pieces)

    assert (empty.array().shape, other.array().tobytes()) == ((0,), b"a")
