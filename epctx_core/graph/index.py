"""The index over a graph: who makes, who reads each value. Built once, in one pass, read-only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import onnx
from onnx import AttributeProto, GraphProto, NodeProto

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import FunctionProto

    from epctx_core.graph.inference import TypeTable
    from epctx_core.graph.weights import Weight

_GRAPH_KINDS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


class GraphIndex:
    """A graph's nodes in the model's (topological) order, with producers, consumers and constants.

    Attributes:
        graph: the protobuf; never changed.
        nodes: its nodes.
        inputs, outputs: their value names, omitted ones as empty strings. `inputs` holds also the
            outer-scope names that a node's bodies read.
        explicit_inputs: the inputs without those.
        producer: value name to node index.
        constants: names of initializers that nobody can override.
        functions: those that the model defines for itself.
        digests: of small pieces, by their plain form (see `epctx_core.graph.canonical`).

    Raises:
        InvalidGraph: a name that is not UTF-8.
    """

    def __init__(
        self,
        graph: GraphProto,
        *,
        types: TypeTable,
        weights: Mapping[str, Weight],
        opset_imports: Mapping[str, int],
        ir_version: int,
        functions: Sequence[FunctionProto] = (),
    ) -> None:
        self.graph = graph
        self.types = types
        self.weights = weights
        self.opset_imports = opset_imports
        self.ir_version = ir_version
        self.functions = functions
        self.digests: dict[tuple[object, ...], str] = {}
        self.nodes: list[NodeProto] = list(graph.node)
        self.explicit_inputs: list[Sequence[str]] = [tuple(n.input) for n in self.nodes]
        self.outputs: list[Sequence[str]] = [tuple(n.output) for n in self.nodes]
        self.inputs = self._with_outer_names()
        self.producer: dict[str, int] = {
            name: i for i, outputs in enumerate(self.outputs) for name in outputs if name
        }
        input_names = {value.name for value in graph.input}
        initializers = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
        _check_text(self.producer, initializers, input_names, (node.name for node in self.nodes))
        # Since IR version 4 an initializer that is also a graph input is a default the caller may override.
        self.constants = initializers - input_names if ir_version >= 4 else initializers  # noqa: PLR2004
        self.input_names = tuple(v.name for v in graph.input if v.name not in self.constants)
        self.output_names = tuple(v.name for v in graph.output)

    def _with_outer_names(self) -> list[Sequence[str]]:
        inputs = list(self.explicit_inputs)
        for i, node in enumerate(self.nodes):
            if node.domain or node.op_type in _operators_with_bodies():
                outer = outer_names(node)
                if outer:
                    inputs[i] = (*inputs[i], *outer)
        return inputs

    @cached_property
    def special_constants(self) -> frozenset[str]:
        """Constants that are no weights: string and sparse initializers."""
        return frozenset(self.constants - self.weights.keys())

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """For each node the nodes whose results it reads; a node read twice stands twice."""
        producer = self.producer
        return [[producer[name] for name in names if name in producer] for names in self.inputs]

    @cached_property
    def consumers(self) -> dict[str, list[int]]:
        """Value name to the indices of the nodes that read it."""
        consumers: dict[str, list[int]] = {}
        for i, names in enumerate(self.inputs):
            for name in names:
                if name:
                    consumers.setdefault(name, []).append(i)
        return consumers


def _check_text(*names: Iterable[str]) -> None:
    """Raise InvalidGraph for a name that is not UTF-8: the protobuf library gives such a one as bytes."""
    found = list(chain(*names))
    try:
        "".join(found)
    except TypeError:
        wrong = next(name for name in found if not isinstance(name, str))
        raise InvalidGraph(
            f"the model has the name {wrong!r}, which is not UTF-8.",
            hint="The file is damaged, or was written by a tool with a mistake; export the model again.",
        ) from None


_BODIES: set[str] = set()


def _operators_with_bodies() -> set[str]:
    """Operators of the default domain with graph attributes; others need not be looked into."""
    if not _BODIES:
        for schema in onnx.defs.get_all_schemas_with_history():
            if not schema.domain and any(
                a.type in (onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS)
                for a in schema.attributes.values()
            ):
                _BODIES.add(schema.name)
    return _BODIES


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs that a node holds as attributes."""
    for attribute in node.attribute:
        if attribute.type in _GRAPH_KINDS:
            if attribute.type == AttributeProto.GRAPH:
                yield attribute.g
            yield from attribute.graphs


def outer_names(node: NodeProto) -> tuple[str, ...]:
    """Return the names of the enclosing scope that a node's bodies read, in order of first use."""
    found: dict[str, None] = {}
    for body in bodies(node):
        found.update(dict.fromkeys(_free_names(body)))
    return tuple(found)


def _free_names(graph: GraphProto) -> Iterator[str]:
    defined = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    defined.update(t.values.name for t in graph.sparse_initializer)
    for node in graph.node:
        for name in (*node.input, *outer_names(node)):
            if name and name not in defined:
                yield name
        defined.update(node.output)
    for value in graph.output:
        if value.name and value.name not in defined:
            yield value.name
