"""Tensors of text on their way between processes: the length of each element, then all of them in UTF-8.

Knows numpy's kinds of text, and no message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from epctx_core.isolation.channel import ProtocolError

_LENGTH = np.dtype("<u8")


def is_text(dtype: np.dtype[np.generic]) -> bool:
    """Whether arrays of this type hold text: as objects or as one of numpy's own kinds."""
    return dtype.kind in "OUST"


def encode_text(array: np.ndarray) -> np.ndarray:
    """Return the bytes of an array of text.

    Raises:
        TypeError: an element is no text.
        UnicodeError: one that UTF-8 cannot hold.
    """
    texts = [_utf8(place, text) for place, text in enumerate(array.ravel().tolist())]
    lengths = np.array([len(text) for text in texts], _LENGTH)
    return np.frombuffer(b"".join([lengths.tobytes(), *texts]), np.uint8)


def _utf8(place: int, text: object) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise TypeError(f"element {place} of a tensor of text is a {type(text).__name__}")


def decode_text(shape: Sequence[int], blob: memoryview) -> np.ndarray:
    """Return the array that `encode_text` was given, its elements as `str`.

    Raises:
        ProtocolError: the bytes are not those of such an array.
    """
    count = math.prod(shape)
    start = count * _LENGTH.itemsize
    if start > blob.nbytes:
        raise ProtocolError(f"{blob.nbytes:,} bytes for text of shape {list(shape)}")
    lengths = np.frombuffer(blob[:start], _LENGTH).tolist() if count else []
    if start + sum(lengths) != blob.nbytes:
        raise ProtocolError(f"{blob.nbytes:,} bytes for text of {start + sum(lengths):,}")
    array = np.empty(count, object)
    try:
        for place, length in enumerate(lengths):
            array[place] = str(blob[start : start + length], "utf-8")
            start += length
        return array.reshape(shape)
    except ValueError as error:  # no UTF-8, or more dimensions than numpy has
        raise ProtocolError(str(error)) from None
