"""Matching of an EP's kernels to the nodes of a graph: operator, version and types, by
ONNX Runtime's rules (see `KernelDef`).

The operator's table comes from the ONNX schema, from the plugin, or from the model's
metadata, in this order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import onnx

from epctx_core.errors import PluginError
from epctx_core.plugin import ComputeCapability
from epctx_kernels.definitions import OperatorTypes
from epctx_kernels.tables import (
    OPERATOR_TYPES,
    dump_operator_types,
    read_operator_types,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from epctx_core.plugin import GraphView, NodeView
    from epctx_kernels.definitions import KernelDef, KernelRegistry

    _Tables: TypeAlias = dict[tuple[str, str], list[OperatorTypes]]


_TYPE_NAMES = {
    number: name.lower() for name, number in onnx.TensorProto.DataType.items()
}


class KernelLookup:
    """Kernels of one EP for the nodes of one graph.

    Args:
        registry: the EP's kernels.
        graph: has the types of values, and in its metadata what is known of operators
            that no schema describes.

    Raises:
        InvalidGraph: the metadata are damaged; see `read_operator_types`.
    """

    def __init__(self, registry: KernelRegistry, graph: GraphView) -> None:
        self._registry = registry
        self._graph = graph
        self._described = read_operator_types(graph.metadata.get(OPERATOR_TYPES))
        self._carried = _group(self._described)
        self._own = _group(registry.operators)

    def lookup(self, node: NodeView) -> KernelDef | None:
        """Return the first kernel that fits the node, or None."""
        return self._find(node)[0]

    def refusal(self, node: NodeView) -> str | None:
        """Return why none of the EP's kernels fits; None if one does, or if it has none
        of the operator.
        """
        kernel, misfits = self._find(node)
        return "; ".join(misfits) if kernel is None and misfits else None

    def claim(self, node: NodeView) -> ComputeCapability:
        """Return the claim of a node that one of the kernels runs; it has the table of
        an operator without a schema, for where the model is loaded.

        Raises:
            PluginError: no kernel fits.
        """
        kernel = self.lookup(node)
        if kernel is None:
            why = self.refusal(node) or "there is none of this operator"
            raise PluginError(
                f"node {node.name!r} ({node.op_type}) is claimed for a kernel, but "
                f"none fits: {why}.",
                node=node.name,
                hook="get_capability",
                hint="Claim nodes for which `KernelLookup.lookup` returns a kernel.",
            )
        return ComputeCapability(
            [node],
            keep_nodes=True,
            # Kernels get weights like any other input.
            keep_initializers=True,
            token=kernel,
            metadata=self._describe(node),
        )

    def _describe(self, node: NodeView) -> dict[str, str]:
        """Return what a node adds to the model's metadata: its operator, after those
        before it.
        """
        table = (
            self._find_description(node)
            if _read_schema(node.domain, node.op_type, node.opset_version) is None
            else None
        )
        if table is None or table in self._described:
            return {}
        self._described = (*self._described, table)
        return {OPERATOR_TYPES: dump_operator_types(self._described)}

    def _find_description(self, node: NodeView) -> OperatorTypes | None:
        """Return the plugin's table of a node's operator, or else the model's."""
        return _find_newest(self._own, node) or _find_newest(self._carried, node)

    def _find(self, node: NodeView) -> tuple[KernelDef | None, list[str]]:
        """Return the first kernel that fits a node, or None; and why those before it do
        not.

        Raises:
            PluginError: a kernel constrains a parameter that its operator does not
                have.
        """
        misfits: list[str] = []
        candidates = self._registry.candidates(node.domain, node.op_type)
        if not candidates:
            return None, misfits
        table = _read_schema(
            node.domain, node.op_type, node.opset_version
        ) or self._find_description(node)
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
            if not indices and table is _find_newest(self._carried, node):
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
            if value is not None and self._graph.value(value).elem_type not in allowed:
                expected = (
                    ", ".join(_TYPE_NAMES.get(t, str(t)) for t in sorted(allowed))
                    or "nothing"
                )
                return (
                    f"{kernel} is for {name} = {expected}; {value!r} is "
                    f"{self._graph.value(value).type}"
                )
        return None


def _group(operators: Iterable[OperatorTypes]) -> _Tables:
    """Return tables of operators by domain and operator: a model may have many nodes,
    and a file many tables.
    """
    tables: _Tables = {}
    for each in operators:
        tables.setdefault((each.domain, each.op_type), []).append(each)
    return tables


def _find_newest(operators: _Tables, node: NodeView) -> OperatorTypes | None:
    """Return the newest version of a node's operator that the model's opset has."""
    candidates = [
        operator
        for operator in operators.get((node.domain, node.op_type), ())
        if operator.since_version <= node.opset_version
    ]
    return max(candidates, key=lambda operator: operator.since_version, default=None)


@lru_cache(maxsize=4096)
def _read_schema(domain: str, op_type: str, opset: int) -> OperatorTypes | None:
    """Return the types in ONNX's schema: for each parameter its type variable, or its
    own name if it has none.
    """
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
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
