"""Payloads written for tests, and weights to put into them."""

from __future__ import annotations

import io

import numpy as np

from epctx_core.context.payload_writer import PayloadWriter
from epctx_core.graph.mapping import MappedFile
from epctx_core.graph.weights import Weight


def written(*pieces, name="a_x.bin"):
    """The entry and the bytes of an embedded payload."""
    sink = io.BytesIO()
    writer = PayloadWriter(name, sink, embedded=True)
    for piece in pieces:
        writer.write(piece)
    return writer.make_entry(), sink.getvalue()


def weight_in_file(path, offset, length, name="w"):
    with path.open("rb") as file:
        mapped = MappedFile(file.fileno(), str(path))
    return Weight(
        name,
        2,
        (length,),
        mapped.view[offset : offset + length],
        mapped=mapped,
        offset=offset,
    )


def noise(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()
