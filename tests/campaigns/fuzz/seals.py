"""Makes a changed file of initializers the one that its model says: whoever sends such
a file does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

KEY = "epctx.initializers"
_MARK = b"epctx initializers "
_MOST_PIECES = 5


def sealed_again(
    random: Random, model: onnx.ModelProto, model_name: str, files: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return the model and its file with a seal that fits, over other segments; nothing
    if the model says no file.
    """
    entry = next(
        (entry for entry in model.metadata_props if entry.key == "epctx.initializers"),
        None,
    )
    content = _content(entry.value) if entry is not None else {}
    name = content.get("name")
    if entry is None or not isinstance(name, str) or name not in files:
        return {}
    body = files[name].rpartition(_MARK)[0] or files[name]
    segments = [_segment(random, piece) for piece in _pieces(random, body)]
    root = root_of(segments)
    data = body + _MARK + f"{root}\n".encode()
    entry.value = json.dumps(
        {**content, "bytes": len(data), "digest": root, "segments": segments}
    )
    return {name: data, model_name: model.SerializeToString()}


def root_of(segments: Sequence[Sequence[int | str]]) -> str:
    """Return the digest over the digests of segments that follow each other: of lines
    of offset, length and digest.
    """
    lines, offset = [], 0
    for length, digest, *_ in segments:
        lines.append(f"{offset} {length} {digest}\n")
        offset += int(length)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _content(text: str | bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _pieces(random: Random, body: bytes) -> list[bytes]:
    """Cut somewhere; pieces may be empty."""
    cuts = sorted(
        random.choices(range(len(body) + 1), k=random.randrange(_MOST_PIECES))
    )
    return [
        body[start:end]
        for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)
    ]


def _segment(random: Random, piece: bytes) -> list[int | str]:
    """Return a segment's JSON form: now and then with another digest, and with the mark
    of a weight.
    """
    honest = random.random() < 0.9
    digest = hashlib.sha256(piece).hexdigest() if honest else random.randbytes(32).hex()
    return [len(piece), digest, *random.choice(([], [1]))]
