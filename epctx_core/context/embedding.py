"""Embedding of payloads and weights into a serialised model.

So that no copy of them passes through protobuf, a node or a tensor holds a marker in
place of its bytes. Protobuf's encoding nests messages with their lengths in front:
the lengths around a marker are all that changes.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.graph.wire import replace_fields

if TYPE_CHECKING:
    from epctx_core.context.payload_files import LoadedPayload
    from epctx_core.graph.weights import Weight
    from epctx_core.graph.wire import Extent, Pieces

_PREFIX = secrets.token_bytes(24)
_NUMBER_BYTES = 8
_MARKER_BYTES = 32
_MARKER = re.compile(re.escape(_PREFIX) + b".{%d}" % _NUMBER_BYTES, re.DOTALL)
_numbers = count()

_JOINED = 1 << 20
"""Chunks are joined up to this many bytes; longer ones stay as they are."""


Embeddable: TypeAlias = "memoryview | Weight | LoadedPayload"
"""Bytes in memory, or read in chunks when they are written."""


class SerializedModel:
    """Bytes of a model, in pieces.

    Attributes:
        size: number of all bytes.
    """

    def __init__(self, pieces: Sequence[Embeddable], size: int) -> None:
        self.size = size
        self._pieces = pieces

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in order; small pieces are joined, payloads are not
        copied.
        """
        waiting: list[memoryview] = []
        length = 0
        for piece in self._pieces:
            for chunk in (piece,) if isinstance(piece, memoryview) else piece.chunks():
                if length + len(chunk) > _JOINED and waiting:
                    yield memoryview(b"".join(waiting))
                    waiting = []
                    length = 0
                if len(chunk) > _JOINED:
                    yield chunk
                else:
                    waiting.append(chunk)
                    length += len(chunk)
        if waiting:
            yield memoryview(b"".join(waiting))


def make_marker() -> bytes:
    """Return bytes that take the place of others and occur nowhere else."""
    return _PREFIX + next(_numbers).to_bytes(_NUMBER_BYTES, "big")


def embed(model: bytes, contents: Mapping[bytes, Embeddable]) -> SerializedModel:
    """Return a serialised model with its markers replaced.

    Args:
        model: in which each marker is the whole of a bytes or string field.
        contents: marker to its replacement; not copied.
    """
    data = memoryview(model)
    markers = deque(
        (match.start(), contents[match.group()]) for match in _MARKER.finditer(model)
    )
    pieces = _replace_markers(data, markers, (0, len(data))) or [data]
    return SerializedModel(pieces, sum(piece.nbytes for piece in pieces))


def _replace_markers(
    data: memoryview, markers: deque[tuple[int, Embeddable]], extent: Extent
) -> Pieces | None:
    """Return the pieces of a message, or of the field that a marker fills; None for one
    without a marker. Takes its markers away.
    """
    start, length = extent
    if not markers or not start <= markers[0][0] < start + length:
        return None
    if length == _MARKER_BYTES:
        # Fields are walked in the order of the markers.
        return [markers.popleft()[1]]
    return replace_fields(
        data,
        extent,
        # Not a closure that calls itself: such a cycle would keep the contents.
        partial(_replace_markers, data, markers),
    )
