"""Which kernel of an EP fits a node: operator, version range and type constraints.

As ONNX Runtime matches since version 5 of its format: the constraints come from the operator's schema.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING:
    from epctx_core.graph.inference import TypeTable
    from epctx_core.plugin import KernelDef, KernelRegistry, NodeView


class RegistryLookup:
    """Answers from one EP's kernel registry; implements `epctx_core.plugin.KernelLookup`."""

    def __init__(self, registry: KernelRegistry | None, types: TypeTable) -> None:
        self._registry = registry
        self._types = types

    def lookup(self, node: NodeView) -> KernelDef | None:
        """Return the first kernel that matches the node, or None."""
        if self._registry is None:
            return None
        version, variables = _type_variables(node.op_type, node.domain, node.opset_version)
        for kernel in self._registry.candidates(node.domain, node.op_type):
            if _covers(kernel, version) and self._types_match(kernel, node, variables):
                return kernel
        return None

    def _types_match(
        self, kernel: KernelDef, node: NodeView, variables: dict[str, list[tuple[str, int]]]
    ) -> bool:
        sides = {"in": node.inputs, "out": node.outputs}
        return all(
            self._types.get(sides[side][place]).elem_type in allowed
            for variable, allowed in kernel.type_constraints.items()
            for side, place in variables.get(variable, ())
            if place < len(sides[side]) and sides[side][place]
        )


def _covers(kernel: KernelDef, version: int) -> bool:
    return kernel.since_version <= version and (kernel.end_version is None or version <= kernel.end_version)


@lru_cache(maxsize=4096)
def _type_variables(op_type: str, domain: str, opset: int) -> tuple[int, dict[str, list[tuple[str, int]]]]:
    """Return the operator's own version and, for each type variable, the inputs and outputs it types."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return opset, {}
    variables: dict[str, list[tuple[str, int]]] = {}
    for side, parameters in (("in", schema.inputs), ("out", schema.outputs)):
        for place, parameter in enumerate(parameters):
            variables.setdefault(parameter.type_str, []).append((side, place))
    return schema.since_version, variables
