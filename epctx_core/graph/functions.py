"""Functions that a model defines for itself: which of them a piece of its graph needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from epctx_core.graph.bodies import bodies

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto


def used_functions(nodes: Iterable[NodeProto], functions: Sequence[FunctionProto]) -> list[FunctionProto]:
    """Return the functions that nodes call, directly or through others, in the model's order."""
    if not functions:
        return []
    known = {(f.domain, f.name, f.overload): f for f in functions}
    used: set[tuple[str, str, str]] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        for body in bodies(node):
            pending.extend(body.node)
        key = (node.domain, node.op_type, node.overload)
        if key in known and key not in used:
            used.add(key)
            pending.extend(known[key].node)
    return [f for key, f in known.items() if key in used]
