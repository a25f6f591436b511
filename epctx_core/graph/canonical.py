"""Canonical form of a piece of a graph: value numbering, and the digest that a partition's name has."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING

import onnx

from epctx_core.graph.bodies import bodies
from epctx_core.graph.normalise import used_functions
from epctx_core.graph.view import copied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

    from epctx_core.graph.index import GraphIndex
    from epctx_core.plugin import ValueInfo

_OMITTED = -1
SPECIAL = -2
"""The kind of every node with attributes: two of those may differ in more than their wiring."""


def wire(graph: GraphIndex, nodes: Sequence[int]) -> tuple[list[str], dict[str, int], list[int]]:
    """Number the names of some nodes, given in topological order.

    Returns:
        The names that they read and do not make, in order of first use; each of their names' number, by first
        appearance (an omitted one is -1); and the form: for each node its kind, the numbers that it reads and those
        that it makes. A kind says how many there are of each, so that forms are equal only where pieces are.
    """
    kinds, inputs, outputs = graph.kinds, graph.inputs, graph.outputs
    numbers = {"": _OMITTED}
    entering: list[str] = []
    form: list[int] = []
    for i in nodes:
        form.append(kinds[i])
        for name in inputs[i]:
            if name not in numbers:
                numbers[name] = len(numbers)
                entering.append(name)
            form.append(numbers[name])
        for name in outputs[i]:
            if name:
                numbers[name] = len(numbers)
            form.append(numbers[name])
    return entering, numbers, form


def node_kinds(graph: GraphIndex) -> list[int]:
    """Return for each node a number for its operator and how many values it reads and makes."""
    if graph.functions:
        # What a function does, its call does not say.
        return [SPECIAL] * len(graph.nodes)
    places = zip(graph.domains, graph.op_types, map(len, graph.inputs), map(len, graph.outputs), strict=True)
    numbers: dict[tuple[str, str, int, int], int] = {}
    kinds = [numbers.setdefault(place, len(numbers)) for place in places]
    some = {operator for operator in graph.operators if _may_have_attributes(graph, *operator)}
    if some:
        for i, operator in enumerate(zip(graph.domains, graph.op_types, strict=True)):
            if operator in some and graph.nodes[i].attribute:
                kinds[i] = SPECIAL
    return kinds


def _may_have_attributes(graph: GraphIndex, domain: str, op_type: str) -> bool:
    """Whether an operator can have attributes; cheaper than to look at those of every node."""
    domain = "" if domain == "ai.onnx" else domain
    try:
        schema = onnx.defs.get_schema(op_type, graph.opset_imports.get(domain, 1), domain)
    except (onnx.defs.SchemaError, TypeError):
        return True
    return bool(schema.attributes)


def partition_digest(
    graph: GraphIndex,
    nodes: Sequence[int],
    inputs: Sequence[ValueInfo],
    outputs: Sequence[ValueInfo],
) -> str:
    """Return SHA-256 (hex) over a partition's canonical form.

    That is: operators, domains, versions, attributes, how values connect (by number, not by name),
    types of the boundary, and the weights' types, shapes and bytes. Neither names nor options.
    """
    form = _CanonicalForm(graph.opset_imports)
    numbers, weights = form.numbers, graph.weights
    for value in inputs:
        form.add(f"in {numbers[value.name]} {value.type.elem_type} {value.shape}")
    # Initializers of text, which are no weights.
    special = graph.special_tensors
    for index in nodes:
        for name in graph.inputs[index]:
            if name in numbers:
                continue
            if name in weights:
                weight = weights[name]
                form.add(f"weight {numbers[name]} {weight.elem_type} {weight.shape} {weight.digest}")
            elif name in special:
                form.add(f"constant {numbers[name]}")
                form.add(_tensor_bytes(special[name]))
        form.add_node(graph.nodes[index], graph.inputs[index], graph.outputs[index])
    for value in outputs:
        form.add(f"out {numbers[value.name]} {value.type.elem_type} {value.shape}")
    for function in used_functions((graph.nodes[i] for i in nodes), graph.functions):
        form.add(function.SerializeToString(deterministic=True))
    return form.digest()


class _CanonicalForm:
    """The parts that are digested, with numbers in place of names.

    Attributes:
        numbers: gives a name its number; a new name gets the next one.
    """

    def __init__(self, opset_imports: Mapping[str, int]) -> None:
        self._opset_imports = opset_imports
        self._parts: list[bytes] = []
        self._next = count().__next__
        self.numbers: defaultdict[str, int] = defaultdict(self._next, {"": -1})

    def digest(self) -> str:
        """Return the digest (hex) of what was added."""
        # The lengths keep two neighbours from being read as one part.
        lengths = repr([len(part) for part in self._parts]).encode()
        return hashlib.sha256(b"".join((lengths, *self._parts))).hexdigest()

    def add(self, part: str | bytes) -> None:
        """Add one part."""
        self._parts.append(part.encode() if isinstance(part, str) else part)

    def add_node(self, node: NodeProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Add a node; `inputs` holds also what its bodies read from outside."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = self._opset_imports.get(domain, 1)
        numbers = self.numbers
        reads = [numbers[name] for name in inputs]
        makes = [numbers[name] for name in outputs]
        self.add(f"node {domain} {node.op_type} {node.overload} {version} {reads} {makes}")
        attributes = node.attribute
        if attributes:
            for attribute in sorted(attributes, key=lambda a: a.name):
                self.add(_attribute_bytes(attribute))
            for body in bodies(node):
                self._add_body(body)

    def _add_body(self, body: GraphProto) -> None:
        outside = self.numbers
        # Bodies side by side may use one name for different values.
        self.numbers = numbers = defaultdict(self._next, outside)
        for value in body.input:
            self.add(f"body in {numbers[value.name]}")
            self.add(value.type.SerializeToString(deterministic=True))
        for tensor in body.initializer:
            self.add(f"constant {numbers[tensor.name]}")
            self.add(_tensor_bytes(tensor))
        for node in body.node:
            self.add_node(node, node.input, node.output)
        self.add(f"body out {[numbers[value.name] for value in body.output]}")
        self.numbers = outside


def _attribute_bytes(attribute: AttributeProto) -> bytes:
    copy = copied(attribute)
    copy.ClearField("doc_string")
    # Bodies are added part by part, without their names.
    copy.ClearField("g")
    copy.ClearField("graphs")
    for tensor in (*([copy.t] if copy.HasField("t") else []), *copy.tensors):
        _clear_names(tensor)
    data: bytes = copy.SerializeToString(deterministic=True)
    return data


def _tensor_bytes(tensor: TensorProto) -> bytes:
    copy = copied(tensor)
    _clear_names(copy)
    data: bytes = copy.SerializeToString(deterministic=True)
    return data


def _clear_names(tensor: TensorProto) -> None:
    for field in ("name", "doc_string", "metadata_props"):
        tensor.ClearField(field)
