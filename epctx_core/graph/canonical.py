"""Names from content: equal pieces of any model, in any folder, get equal digests."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from epctx_core.graph.index import GraphIndex
    from epctx_core.plugin import ValueInfo


def partition_digest(
    graph: GraphIndex,
    nodes: Sequence[int],
    inputs: Sequence[ValueInfo],
    outputs: Sequence[ValueInfo],
    weight_digest: Callable[[str], str],
) -> str:
    """Return SHA-256 (hex) over a partition's canonical form.

    That is: operators, domains, versions, attributes, how values connect (by number, not by name),
    types of the boundary, and the weights' types, shapes and bytes. Neither names nor options.
    """
    numbers: dict[str, int] = {"": -1}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers) - 1)

    def described(side: str, values: Sequence[ValueInfo]) -> list[bytes]:
        return [f"{side} {number(v.name)} {v.type.elem_type} {v.shape}".encode() for v in values]

    parts = described("in", inputs)
    for index in nodes:
        node = graph.nodes[index]
        names = graph.inputs[index]
        for name in names:
            if name not in numbers and name in graph.weights:
                weight = graph.weights[name]
                parts.append(
                    f"weight {number(name)} {weight.elem_type} {weight.shape} {weight_digest(name)}".encode()
                )
        version = graph.opset_imports.get("" if node.domain == "ai.onnx" else node.domain, 1)
        reads = [number(name) for name in names]
        makes = [number(name) for name in graph.outputs[index]]
        parts.append(f"node {node.domain} {node.op_type} {version} {reads} {makes}".encode())
        parts.extend(
            attribute.SerializeToString(deterministic=True)
            for attribute in sorted(node.attribute, key=lambda a: a.name)
        )
    parts += described("out", outputs)
    sha = hashlib.sha256()
    for part in parts:
        # The length in front keeps two neighbouring parts from being read as one.
        sha.update(len(part).to_bytes(8, "little"))
        sha.update(part)
    return sha.hexdigest()
