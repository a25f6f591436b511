"""Matching of EPs' kernels to nodes: operator, version and types, by ONNX Runtime's
rules (see `KernelDef`).

The operator's table comes from the ONNX schema, from the plugin, or from the model's
metadata, in this order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import onnx

from epctx_core.errors import PluginError
from epctx_core.graph.walks import find_schema
from epctx_core.plugin import OperatorTypes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.graph.type_table import TypeTable
    from epctx_core.plugin import KernelDef, KernelRegistry, NodeView


_TYPE_NAMES = {
    number: name.lower() for name, number in onnx.TensorProto.DataType.items()
}


class KernelMatcher:
    """Kernels of one EP, with the known operators and the types of one graph;
    implements `epctx_core.plugin.KernelLookup`.

    Args:
        registry: the EP's, None for an EP without kernels.
        carried: the operators that the model's metadata describes.
        types: of the graph's values.

    Attributes:
        own: the operators that the EP describes.
    """

    def __init__(
        self,
        registry: KernelRegistry | None,
        carried: Sequence[OperatorTypes],
        types: TypeTable,
    ) -> None:
        self.own: Sequence[OperatorTypes] = (
            registry.operators if registry is not None else ()
        )
        self._registry = registry
        self._carried = carried
        self._types = types

    def for_graph(self, types: TypeTable) -> KernelMatcher:
        """Return a matcher of the same kernels for another graph."""
        return KernelMatcher(self._registry, self._carried, types)

    def lookup(self, node: NodeView) -> KernelDef | None:
        """Return the first kernel that fits the node, or None."""
        return self._find(node)[0]

    def refusal(self, node: NodeView) -> str | None:
        """Return why none of the EP's kernels fits; None if one does, or if it has none
        of the operator.
        """
        kernel, misfits = self._find(node)
        return "; ".join(misfits) if kernel is None and misfits else None

    def _find(self, node: NodeView) -> tuple[KernelDef | None, list[str]]:
        """Return the first kernel that fits a node, or None; and why those before it do
        not.

        Raises:
            PluginError: a kernel constrains a parameter that its operator does not
                have.
        """
        misfits: list[str] = []
        candidates = (
            self._registry.candidates(node.domain, node.op_type)
            if self._registry
            else ()
        )
        if not candidates:
            return None, misfits
        schema = _read_schema(node.domain, node.op_type, node.opset_version)
        table = (
            schema
            or find_operator_types(self.own, node)
            or find_operator_types(self._carried, node)
        )
        for kernel in candidates:
            misfit = self._find_misfit(kernel, node, table)
            if misfit is None:
                return kernel, misfits
            misfits.append(misfit)

        return None, misfits

    def _find_misfit(
        self, kernel: KernelDef, node: NodeView, table: OperatorTypes | None
    ) -> str | None:
        """Return why a kernel does not fit, None if it does."""
        version = node.opset_version if table is None else table.since_version
        since = kernel.since_version
        end = kernel.end_version
        # An end that is not stated is unknown: of an operator with a table, it covers
        # nothing but the start.
        last = end if end is not None else version if table is None else since
        if not since <= version <= last:
            return f"{kernel}: this node is version {version} of the operator"
        if table is not None:
            return self._find_type_misfit(kernel, node, table)
        if kernel.type_constraints:
            return (
                f"{kernel}: it is unknown to which inputs and outputs its type "
                "constraints apply"
            )
        return None

    def _find_type_misfit(
        self, kernel: KernelDef, node: NodeView, table: OperatorTypes
    ) -> str | None:
        for name, allowed in kernel.type_constraints.items():
            sides = ((node.inputs, table.inputs), (node.outputs, table.outputs))
            indices = [
                (values, i)
                for values, names in sides
                for i, other in enumerate(names)
                if other == name
            ]
            if not indices and any(table is carried for carried in self._carried):
                return (
                    f"{kernel}: the model's metadata does not say which values "
                    f"{name!r} is"
                )
            if not indices:
                parameters = ", ".join(dict.fromkeys((*table.inputs, *table.outputs)))
                raise PluginError(
                    f"the kernel {kernel} constrains {name!r}; version "
                    f"{table.since_version} of its operator does not have it.",
                    hook="get_kernel_registry",
                    hint=f"It has: {parameters or 'nothing'}. A parameter's own name "
                    "is valid only if its type is not a variable.",
                )
            # The first that the node has: they all have one type.
            value = next(
                (values[i] for values, i in indices if i < len(values) and values[i]),
                None,
            )
            if value is not None and self._types.get(value).elem_type not in allowed:
                expected = (
                    ", ".join(_TYPE_NAMES.get(t, str(t)) for t in sorted(allowed))
                    or "nothing"
                )
                return (
                    f"{kernel} is for {name} = {expected}; {value!r} is "
                    f"{self._types.get(value)}"
                )
        return None


def find_operator_types(
    operators: Sequence[OperatorTypes], node: NodeView
) -> OperatorTypes | None:
    """Return the newest version of a node's operator that the model's opset has; None
    for one of ONNX's.
    """
    if (
        not operators
        or _read_schema(node.domain, node.op_type, node.opset_version) is not None
    ):
        return None
    candidates = [
        operator
        for operator in operators
        if (operator.op_type, operator.domain) == (node.op_type, node.domain)
        and operator.since_version <= node.opset_version
    ]
    return max(candidates, key=lambda operator: operator.since_version, default=None)


@lru_cache(maxsize=4096)
def _read_schema(domain: str, op_type: str, opset: int) -> OperatorTypes | None:
    """Return the types in ONNX's schema: for each parameter its type variable, or its
    own name if it has none.
    """
    schema = find_schema(domain, op_type, opset)
    if schema is None:
        return None
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    sides = [
        tuple(p.type_str if p.type_str in variables else p.name for p in parameters)
        for parameters in (schema.inputs, schema.outputs)
    ]
    return OperatorTypes(
        domain=domain,
        op_type=op_type,
        since_version=schema.since_version,
        inputs=sides[0],
        outputs=sides[1],
    )
