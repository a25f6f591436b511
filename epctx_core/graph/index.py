"""Linear index over a graph and the graphs in its nodes: producers, consumers,
constants; and nodes as EPs see them.

The subgraphs of control flow have an index each, so that a model is a tree of indices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_core.graph.model_io import require_text_names
from epctx_core.graph.walks import (
    DEFAULT_DOMAINS,
    EXECUTABLE,
    OVERRIDABLE_SINCE,
    SubgraphPath,
    can_have_subgraphs,
    copy_message,
    find_free_names,
    find_outer_names,
    iter_named_subgraphs,
    read_opset_imports,
    shorten_domain,
    walk_nodes,
)
from epctx_core.graph.weights import Weight, is_detached
from epctx_core.graph.wire import decode_name
from epctx_core.plugin.protos import (
    AttributeProto,
    GraphProto,
    TensorProto,
    tensor_dtype_to_np_dtype,
)

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto

    from epctx_core.graph.functions import FunctionSizes
    from epctx_core.graph.type_table import TypeTable

SPECIAL = -2
"""The signature of every node with attributes: two of those may differ in more than
their connections.
"""

OPERATORS = frozenset({("", "Constant"), ("ai.onnx", "Constant")})
_VALUES = {
    "value_float": (AttributeProto.FLOAT, "f", TensorProto.FLOAT),
    "value_floats": (AttributeProto.FLOATS, "floats", TensorProto.FLOAT),
    "value_int": (AttributeProto.INT, "i", TensorProto.INT64),
    "value_ints": (AttributeProto.INTS, "ints", TensorProto.INT64),
}
"""Attributes of a Constant node that are numbers: kind, field and element type."""


def find_constants(nodes: Iterable[NodeProto]) -> Iterator[tuple[str, TensorProto]]:
    """Yield the results of Constant nodes by name, except sparse tensors, and text
    outside of tensors.
    """
    for node in nodes:
        if (
            (node.domain, node.op_type) in OPERATORS
            and len(node.attribute) == len(node.output) == 1
            and node.output[0]
        ):
            (attribute,), (name,) = node.attribute, node.output
            kind, field, elem_type = _VALUES.get(attribute.name, (None, "", 0))
            if attribute.name == "value":
                yield name, attribute.t
            elif attribute.type == kind:
                value = np.array(
                    getattr(attribute, field), tensor_dtype_to_np_dtype(elem_type)
                )
                yield (
                    name,
                    TensorProto(
                        data_type=elem_type, dims=value.shape, raw_data=value.tobytes()
                    ),
                )


class GraphIndex:
    """A graph's nodes in the model's (topological) order, with producers, consumers and
    constants.

    Args:
        graph, types, weights: the protobuf, types of its values, and the data of a main
            graph's initializers.
        owner: the model, or for a subgraph the index of the graph around it.
        path: from the main graph to a subgraph.

    Attributes:
        graph: the protobuf; never changed.
        nodes: its nodes.
        op_types, domains, names: of each node; names may be empty.
        operators: the distinct pairs of domain and operator.
        inputs, outputs: their value names, omitted ones as empty strings. `inputs`
            includes the outer-scope names that a node's subgraphs read.
        explicit_inputs: the inputs without those.
        producer: value name to node index.
        results: the names of the graph's outputs.
        constants: names of initializers that cannot be overridden, and results of
            Constant nodes; also those of enclosing scopes that the graph reads.
        node_constants: the Constant nodes with results among them, so that nothing
            need run these nodes.
        weights: the constants' data, for a main graph also that of overridable
            initializers.
        captured: names of enclosing scopes that the graph reads, in order of first use;
            empty for a main graph.
        subgraphs: index of a control-flow node to its subgraphs by attribute, for the
            nodes that a session can execute (see `EXECUTABLE`).
        path: from the main graph to this one; empty for a main graph.
        opset_imports, ir_version: of the model; the default domain is the empty string.
        special_tensors: the constants that are no weights (text) by name, those of
            enclosing scopes included, in the graphs' order.
        functions: those that the model defines for itself.
        digests: of small groups, by their plain form (see
            `epctx_core.graph.extraction`).

    Raises:
        InvalidGraph: a name that is not UTF-8, or an initializer in a subgraph or a
            constant whose bytes do not fit.
    """

    def __init__(
        self,
        graph: GraphProto,
        *,
        types: TypeTable,
        weights: Mapping[str, Weight],
        owner: ModelProto | GraphIndex,
        path: SubgraphPath = (),
    ) -> None:
        self.graph = graph
        # Of few graphs anybody asks for them; see `find_quantized_groups`.
        self.quantized: Any = None
        self.types = types

        # Not kept: it would be a cycle, which keeps a model's weights alive until the
        # next collection.
        outer = owner if isinstance(owner, GraphIndex) else None
        self.opset_imports: Mapping[str, int] = (
            owner.opset_imports
            if isinstance(owner, GraphIndex)
            else read_opset_imports(owner)
        )
        self.ir_version: int = owner.ir_version
        self.functions: Sequence[FunctionProto] = owner.functions
        self.digests: dict[tuple[object, ...], str] = {}
        self.nodes: list[NodeProto] = list(graph.node)
        self.op_types = [node.op_type for node in self.nodes]
        self.domains = [node.domain for node in self.nodes]
        self.names = [node.name for node in self.nodes]
        self.operators = frozenset(zip(self.domains, self.op_types, strict=True))

        # A slice of names is made in C; a tuple would be made name by name.
        self.explicit_inputs: list[Sequence[str]] = [
            node.input[:] for node in self.nodes
        ]
        self.outputs: list[Sequence[str]] = [node.output[:] for node in self.nodes]
        self.producer: dict[str, int] = {
            name: i for i, names in enumerate(self.outputs) for name in names
        }
        self.producer.pop("", None)
        input_names = {value.name for value in graph.input}
        initializers = {t.name for t in graph.initializer}
        check_names(self.producer, initializers, input_names, self.names)
        self.captured: tuple[str, ...] = ()

        # Since IR version 4 an initializer that is also a graph input is a default the
        # caller may override.
        self.constants = (
            initializers - input_names
            if self.ir_version >= OVERRIDABLE_SINCE
            else initializers
        )
        self.weights = weights
        self.path = path
        if outer is not None:
            self._find_captured(outer, initializers)
        self.node_constants: frozenset[int] = frozenset()
        if self.ir_version >= OVERRIDABLE_SINCE and not OPERATORS.isdisjoint(
            self.operators
        ):
            self._add_node_constants()
        self.special_tensors = self._find_special_tensors(outer)
        self.input_names = tuple(
            v.name for v in graph.input if v.name not in self.constants
        )
        self.output_names = tuple(v.name for v in graph.output)
        self.results = frozenset(self.output_names)
        self.subgraphs: dict[int, dict[str, GraphIndex]] = {}
        self.inputs = self._add_outer_names()

    def _add_node_constants(self) -> None:
        """Add results of Constant nodes to the constants, except text and sparse
        tensors.
        """
        from epctx_core.graph.tensor_bytes import read_initializers

        graph = GraphProto()
        for name, tensor in find_constants(self.nodes):
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = name
        initializers = read_initializers(graph, {})
        self.constants |= initializers.keys()
        self.weights = {**self.weights, **initializers}
        self.node_constants = frozenset(self.producer[name] for name in initializers)

    def _find_special_tensors(self, outer: GraphIndex | None) -> dict[str, TensorProto]:
        """Return the constants that are no weights by name, the graph's own before
        those of its scope.
        """
        special = self.constants - self.weights.keys()
        if not special:
            return {}

        outside = {} if outer is None else outer.special_tensors
        inherited = {name: t for name, t in outside.items() if name in special}
        return inherited | {
            t.name: t for t in self.graph.initializer if t.name in special
        }

    def _find_captured(self, outer: GraphIndex, initializers: set[str]) -> None:
        """Find the names that a subgraph reads of its scope.

        Its initializers cannot be overridden: it has no caller.
        """
        from epctx_core.graph.tensor_bytes import read_initializers

        self.captured = tuple(dict.fromkeys(find_free_names(self.graph)))
        constants = [name for name in self.captured if name in outer.constants]
        self.constants = initializers.union(constants)
        shared = {
            name: outer.weights[name] for name in constants if name in outer.weights
        }
        self.weights = {**shared, **read_initializers(self.graph, {})}

    def _add_outer_names(self) -> list[Sequence[str]]:
        inputs = list(self.explicit_inputs)
        for i in self.holders:
            node = self.nodes[i]
            since = (
                EXECUTABLE.get(node.op_type) if node.domain in DEFAULT_DOMAINS else None
            )
            if since is not None and self.opset_imports.get("", 1) >= since:
                self.subgraphs[i] = {
                    name: GraphIndex(
                        subgraph,
                        types=self.types.get_subgraph(i, name),
                        weights={},
                        owner=self,
                        path=(*self.path, (i, name)),
                    )
                    for name, subgraph in iter_named_subgraphs(node)
                }
                outer = tuple(
                    dict.fromkeys(
                        chain(*(b.captured for b in self.subgraphs[i].values()))
                    )
                )
            else:
                outer = find_outer_names(node)
            if outer:
                inputs[i] = (*inputs[i], *outer)
        return inputs

    @cached_property
    def holders(self) -> list[int]:
        """Nodes that can have subgraphs."""
        kinds = {
            operator for operator in self.operators if can_have_subgraphs(*operator)
        }
        if not kinds:
            return []
        return [
            i
            for i, o in enumerate(zip(self.domains, self.op_types, strict=True))
            if o in kinds
        ]

    @cached_property
    def _inside(self) -> dict[int, int]:
        """Number of nodes inside each of `holders`: in its subgraphs, and in the
        functions that are called there.
        """
        inside = {}
        for i in self.holders:
            node = self.nodes[i]
            nested = sum(1 for _ in walk_nodes([node])) - 1
            inside[i] = nested + self.count_called([node])
        return inside

    @cached_property
    def _function_sizes(self) -> FunctionSizes:
        from epctx_core.graph.functions import measure_functions

        return measure_functions(self.functions)

    def count_called(self, nodes: Iterable[NodeProto]) -> int:
        """Return the number of nodes inside the functions that nodes, and those in
        their subgraphs, call.
        """
        if not self.functions:
            return 0
        # Most models have none.
        from epctx_core.graph.functions import add_calls

        return add_calls(nodes, self._function_sizes)[0]

    def count_inside(self, indices: Iterable[int]) -> int:
        """Return the number of nodes inside the subgraphs of some nodes, and inside
        the functions that they call; it may be asked of each node.
        """
        inside = self._inside
        return sum(map(inside.__getitem__, inside.keys() & indices))

    def find_subgraph(self, path: SubgraphPath) -> GraphIndex | None:
        """Return the index of a subgraph inside, or None if it is in a node that a
        session does not execute.
        """
        graph: GraphIndex | None = self
        for node, attribute in path:
            graph = (
                graph.subgraphs.get(node, {}).get(attribute)
                if graph is not None
                else None
            )
        return graph

    def walk(self) -> Iterator[GraphIndex]:
        """Yield all indexed subgraphs and then this graph: each subgraph before the
        graph around it.
        """
        for subgraphs in self.subgraphs.values():
            for subgraph in subgraphs.values():
                yield from subgraph.walk()
        yield self

    def get_node_name(self, index: int) -> str:
        """Return a node's name; one without a name is named by operator and index."""
        return self.names[index] or f"{self.op_types[index]}_{index}"

    @cached_property
    def signatures(self) -> list[int]:
        """For each node a number for its operator and how many values it reads and
        makes, or `SPECIAL`.
        """
        if self.functions:
            # A call does not show the content of its function.
            return [SPECIAL] * len(self.nodes)
        forms = zip(
            self.domains,
            self.op_types,
            map(len, self.inputs),
            map(len, self.outputs),
            strict=True,
        )
        numbers: dict[tuple[str, str, int, int], int] = {}
        signatures = [numbers.setdefault(form, len(numbers)) for form in forms]
        for i, node in enumerate(self.nodes):
            if node.attribute:
                signatures[i] = SPECIAL
        return signatures

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """For each node the nodes whose results it reads; a node read twice is listed
        twice.
        """
        producer = self.producer
        return [
            [producer[name] for name in names if name in producer]
            for names in self.inputs
        ]

    @cached_property
    def consumers(self) -> dict[str, list[int]]:
        """Value name to the indices of the nodes that read it."""
        consumers: defaultdict[str, list[int]] = defaultdict(list)
        for i, names in enumerate(self.inputs):
            for name in names:
                consumers[name].append(i)
        consumers.pop("", None)
        return dict(consumers)


def check_names(*names: Iterable[str]) -> None:
    """Raise InvalidGraph for a name that is not UTF-8, which the protobuf library
    returns as bytes.
    """
    texts = list(chain(*names))
    try:
        "".join(texts)
    except TypeError:
        with require_text_names():
            for name in texts:
                decode_name(name)


class Node:
    """One node of an index, read-only; implements `epctx_core.plugin.NodeView`."""

    __slots__ = ("__dict__", "_graph", "index")

    def __init__(self, graph: GraphIndex, index: int) -> None:
        self._graph = graph
        self.index = index

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Node)
            and other.index == self.index
            and other._graph is self._graph
        )

    def __hash__(self) -> int:
        return self.index

    def __repr__(self) -> str:
        return f"<node {self.index} {self.op_type} {self.name!r}>"

    def is_in(self, graph: GraphIndex) -> bool:
        """Return whether the node belongs to a graph itself, not to its subgraphs."""
        return self._graph is graph

    @property
    def name(self) -> str:
        """The node's name, possibly empty."""
        return self._graph.names[self.index]

    @property
    def op_type(self) -> str:
        """The operator."""
        return self._graph.op_types[self.index]

    @property
    def domain(self) -> str:
        """The operator's domain; the default domain is the empty string."""
        return shorten_domain(self._graph.domains[self.index])

    @property
    def opset_version(self) -> int:
        """The version of the operator's domain that the model imports."""
        return self._graph.opset_imports.get(self.domain, 1)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names; an omitted optional input is the empty string."""
        return tuple(self._graph.explicit_inputs[self.index])

    @property
    def implicit_inputs(self) -> tuple[str, ...]:
        """Names of outer scopes that the node's subgraphs read, in the order of first
        use.
        """
        return tuple(self._graph.inputs[self.index][len(self.inputs) :])

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names; an omitted optional output is the empty string."""
        return tuple(self._graph.outputs[self.index])

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """Attribute values as Python objects."""
        attributes = self._graph.nodes[self.index].attribute
        return MappingProxyType({a.name: decode_attribute(a) for a in attributes})

    def proto(self) -> NodeProto:
        """Return a copy of the node."""
        node: NodeProto = copy_message(self._graph.nodes[self.index])
        return node


def decode_attribute(attribute: AttributeProto) -> Any:
    """Decode an attribute: str where UTF-8, arrays for tensors, copies of everything
    that can change.

    A tensor with its bytes in a file stays a `TensorProto`: which file a name out of a
    model means is not for onnx to say, which would look for it where the process
    happens to be.

    Raises:
        ValueError, TypeError: the attribute contradicts itself, or has a type that ONNX
            does not have.
    """
    from onnx import helper

    value = helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.STRING:
        return decode_text(value)
    if attribute.type == AttributeProto.STRINGS:
        return [decode_text(v) for v in value]
    if attribute.type == AttributeProto.TENSOR and not is_detached(value):
        from onnx import numpy_helper

        try:
            array = numpy_helper.to_array(value)
        except KeyError:
            raise ValueError(
                f"the element type {value.data_type} is none of ONNX's"
            ) from None
        array.setflags(write=False)
        return array

    if attribute.type in (AttributeProto.INT, AttributeProto.FLOAT):
        return value
    if hasattr(value, "CopyFrom"):
        return copy_message(value)
    return [copy_message(v) if hasattr(v, "CopyFrom") else v for v in value]


def decode_text(data: bytes) -> str | bytes:
    """Decode a text; one that is not UTF-8 stays bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
