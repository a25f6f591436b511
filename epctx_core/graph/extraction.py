"""Groups of nodes extracted from a graph: boundary, model, and the canonical form
behind their name.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidArgument
from epctx_core.graph.index import SPECIAL, GraphIndex, Node
from epctx_core.graph.partition import CyclicGroupsError, find_quantized_groups
from epctx_core.graph.walks import (
    copy_message,
    find_used_functions,
    iter_subgraphs,
    shorten_domain,
)
from epctx_core.graph.weights import (
    INLINE_LIMIT,
    Weight,
    is_detached,
    make_detached_tensor,
    set_external_location,
)
from epctx_core.plugin import ValueInfo
from epctx_core.plugin.protos import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)

if TYPE_CHECKING:
    from epctx_core.graph.mapping import PathInput
    from epctx_core.graph.partition import NodeGroups, Partitioner
    from epctx_core.plugin import NodeView


class GraphSlice:
    """Nodes of a graph that no EP has taken yet; implements `GraphView`.

    Args:
        graph: the graph.
        partitioner: of the graph, with the groups that EPs have.
        is_assigned: for each node whether an EP has it.
        parent_node: the node that holds this graph as a subgraph; None for the main
            graph.

    Attributes:
        index: the graph's index.
        is_assigned: see the argument.
        grouped: result of the last `convex_groups`: an EP that claims exactly these
            groups needs no second check.
        units: parts of those groups; the core may split groups into these.
        left_out: nodes left out of them, with the reason.
        metadata: see `epctx_core.plugin.GraphView.metadata`.
    """

    grouped: NodeGroups = ()
    units: NodeGroups = ()
    left_out: Mapping[int, str] = MappingProxyType({})
    metadata: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        graph: GraphIndex,
        partitioner: Partitioner,
        is_assigned: Sequence[bool],
        parent_node: Node | None = None,
    ) -> None:
        self.parent_node = parent_node
        self.index = graph
        self.is_assigned = is_assigned
        self._partitioner = partitioner
        self._own = {
            i: Node(graph, i) for i, owned in enumerate(is_assigned) if not owned
        }
        self.nodes = tuple(self._own.values())
        self.name = graph.graph.name

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """Graph inputs that no initializer fills, in the model's order."""
        return tuple(map(self.value, self.index.input_names))

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """Graph outputs in the model's order."""
        return tuple(map(self.value, self.index.output_names))

    @property
    def opset_imports(self) -> Mapping[str, int]:
        """Domain to version."""
        return MappingProxyType(self.index.opset_imports)

    def value(self, name: str) -> ValueInfo:
        """Return a value with its type."""
        return ValueInfo(name, self.index.types.get(name))

    def initializer(self, name: str) -> Weight | None:
        """Return the weight behind a name, or None (also for a default that the caller
        may override).
        """
        return self.index.weights.get(name) if name in self.index.constants else None

    def producer(self, name: str) -> Node | None:
        """Return the node that computes a value."""
        index = self.index.producer.get(name)
        return None if index is None else self._get_node(index)

    def consumers(self, name: str) -> Sequence[Node]:
        """Return the nodes that read a value."""
        readers = dict.fromkeys(self.index.consumers.get(name, ()))
        return list(map(self._get_node, readers))

    def _get_node(self, index: int) -> Node:
        return self._own.get(index) or Node(self.index, index)

    def model(self, *, inline_weights: bool = False) -> ModelProto:
        """Return a model of all nodes; see `epctx_core.plugin.GraphView.model`."""
        return self._group_all().model(inline_weights=inline_weights)

    def save(self, path: PathInput) -> None:
        """Write that model and its weights to files; see
        `epctx_core.plugin.GraphView.save`.
        """
        self._group_all().save(path)

    def _group_all(self) -> NodeGroup:
        return NodeGroup(self.index, range(len(self.index.nodes)))

    def convex_groups(self, nodes: Iterable[NodeView]) -> list[list[NodeView]]:
        """Group nodes into the fewest convex partitions; see `Partitioner.group`.

        Raises:
            InvalidArgument: a node that another EP has taken, or one of another graph.
        """
        by_index = {node.index: node for node in nodes}
        for index, node in by_index.items():
            mine = self._own.get(index)
            if mine is not node and mine != node:
                raise InvalidArgument(
                    f"node {node.name!r} ({node.op_type}) cannot be grouped: it is "
                    "not among the view's nodes.",
                    node=node.name,
                    hint=(
                        "Group nodes out of `graph.nodes` only; `producer` and "
                        "`consumers` show taken ones, too."
                    ),
                )

        quantized = find_quantized_groups(self.index)
        enclosing: dict[int, str] = {}
        while True:
            left = [index for index in by_index if index not in enclosing]
            incomplete = quantized.find_incomplete(left, self.is_assigned)
            self.left_out = enclosing | incomplete
            self.units = quantized.make_units(
                index for index in left if index not in incomplete
            )
            try:
                self.grouped = self._partitioner.group(self.units)
                break
            except CyclicGroupsError as error:
                # Single nodes and what EPs have taken make no cycle, so there is a unit
                # of several.
                enclosing |= quantized.find_enclosing(
                    self.units[number] for number in error.groups
                )
        return [[by_index[index] for index in group] for group in self.grouped]


DIGEST_DIGITS = 16


class NodeGroup:
    """Group of nodes of a graph in topological order, with ordered inputs and outputs.

    Args:
        graph: the index the nodes belong to.
        nodes: ascending node indices.
        keep_initializers: True to treat weights as inputs.
    """

    def __init__(
        self,
        graph: GraphIndex,
        nodes: Sequence[int],
        *,
        keep_initializers: bool = False,
    ) -> None:
        self.graph = graph
        self.node_indices = nodes
        self.keeps_initializers = keep_initializers
        entering, numbers, form = _number_names(graph, nodes)
        names = tuple(entering)
        constants = graph.constants
        weights = (
            tuple([name for name in names if name in constants]) if constants else ()
        )
        self.weight_names: tuple[str, ...] = weights
        has_weights_inside = bool(weights) and not keep_initializers
        self.input_names = (
            tuple([n for n in names if n not in constants])
            if has_weights_inside
            else names
        )
        self.output_names = _find_outputs(graph, nodes)
        self._form: tuple[int, ...] | None = None
        if not has_weights_inside and SPECIAL not in form:
            self._form = (
                len(nodes),
                *form,
                *[numbers[name] for name in self.output_names],
            )

    @cached_property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """Values that enter, in the order of first use."""
        return tuple(map(self.value, self.input_names))

    @cached_property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """Values that leave, in the order of production."""
        return tuple(map(self.value, self.output_names))

    @cached_property
    def nodes(self) -> Sequence[Node]:
        """The nodes in topological order."""
        return tuple([Node(self.graph, i) for i in self.node_indices])

    @property
    def plain_form(self) -> tuple[object, ...] | None:
        """Key that is equal for equal groups of one graph; None with attributes,
        weights or functions.

        It takes a fraction of a digest's time, so that of many equal small groups only
        one is digested.
        """
        return None if self._form is None else self._add_types(self._form)

    @property
    def form(self) -> tuple[object, ...] | None:
        """Key that is equal for equal groups of one graph; None with weights."""
        if self._form is not None or self.weight_names:
            return self.plain_form
        return self._add_types((_digest_nodes(self),))

    def _add_types(self, form: tuple[object, ...]) -> tuple[object, ...]:
        # A type table makes equal types once, so their identities represent them.
        types = self.graph.types
        names = self.input_names + self.output_names
        return (
            *form,
            *map(id, map(types.get, names)),
            *map(id, map(types.get_proven, names)),
        )

    @property
    def weights(self) -> Mapping[str, Weight]:
        """Initializers that the nodes read, by name; also those kept as inputs."""
        weights = self.graph.weights
        return MappingProxyType(
            {n: weights[n] for n in self.weight_names if n in weights}
        )

    def value(self, name: str) -> ValueInfo:
        """Return any value's type."""
        return ValueInfo(name, self.graph.types.get(name))

    def model(self, *, inline_weights: bool = False) -> ModelProto:
        """Return a model of these nodes; see `epctx_core.plugin.Partition.model`.

        Its inputs and outputs have only the proven shapes: engines enforce the shapes
        of a model.
        """
        model = ModelProto(ir_version=max(self.graph.ir_version, 4))
        for domain, version in self.graph.opset_imports.items():
            model.opset_import.add(domain=domain, version=version)
        graph = model.graph
        graph.name = "partition"
        graph.node.extend(self.graph.nodes[i] for i in self.node_indices)
        graph.input.extend(map(self._value_proto, self.input_names))
        graph.output.extend(map(self._value_proto, self.output_names))
        for name in () if self.keeps_initializers else self.weight_names:
            weight = self.graph.weights.get(name)
            if weight is None:
                # Text is not a weight: it stays whole in the protobuf.
                tensor = self.graph.special_tensors[name]
            elif inline_weights or weight.nbytes <= INLINE_LIMIT:
                tensor = weight.make_tensor_proto()
            else:
                tensor = make_detached_tensor(weight)
            graph.initializer.append(tensor)

        model.functions.extend(find_used_functions(graph.node, self.graph.functions))
        return model

    def save(self, path: PathInput) -> None:
        """Write model and weights to files; see `epctx_core.plugin.Partition.save`."""
        target = Path(path)
        model = self.model()
        weights = target.with_name(f"{target.stem}.weights")
        with weights.open("wb") as file:
            for tensor in model.graph.initializer:
                if is_detached(tensor):
                    set_external_location(tensor, weights.name, file.tell())
                    for chunk in self.weights[tensor.name].chunks():
                        file.write(chunk)
        target.write_bytes(model.SerializeToString())

    def _value_proto(self, name: str) -> ValueInfoProto:
        value = ValueInfoProto(name=name)
        proto = self.graph.types.get_proven_proto(name)
        if proto is not None:
            value.type.CopyFrom(proto)
        return value


def _find_outputs(graph: GraphIndex, nodes: Sequence[int]) -> tuple[str, ...]:
    """Return the names that a set of nodes makes and others read, in the order of
    production.

    Results of Constant nodes are available in every group that reads them.
    """
    outputs = graph.outputs
    consumers = graph.consumers
    results = graph.results
    constants = graph.constants
    inside = set(nodes)
    leaving = [
        name
        for i in nodes
        for name in outputs[i]
        if name in results
        or not (name in constants or inside.issuperset(consumers.get(name, ())))
    ]
    if not leaving and nodes:
        # Dead code: a node needs an output, so the last results become outputs.
        leaving = [name for name in outputs[nodes[-1]] if name]
    return tuple(leaving)


class GraphPartition(NodeGroup):
    """Group of nodes that one EP compiles; implements `epctx_core.plugin.Partition`.

    The name is computed on first use, because it requires a digest of the weights.

    Attributes:
        ep: the EP.
        prefix, number: begin and end of the name.
        token: what the EP gave with the claim.
        keeps_nodes: whether its nodes stay in the model.
        given_names: that of its graph in a payload and that of its node, where the EP
            named the graph.
    """

    def __init__(
        self,
        graph: GraphIndex,
        nodes: Sequence[int],
        *,
        ep: str,
        keep_initializers: bool = False,
    ) -> None:
        super().__init__(graph, nodes, keep_initializers=keep_initializers)
        self.ep = ep
        self.prefix = ""
        self.number = 0
        self.token: object = None
        self.keeps_nodes = False
        self.given_names: tuple[str, str] | None = None

    def __repr__(self) -> str:
        return f"<partition {self.number} of {self.ep}: {len(self.node_indices)} nodes>"

    @property
    def node_count(self) -> int:
        """Number of its nodes, those inside subgraphs and functions included."""
        return len(self.node_indices) + self.graph.count_inside(self.node_indices)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical form."""
        form = self.plain_form
        if form is None:
            return _digest_nodes(self)
        digests = self.graph.digests
        if form not in digests:
            digests[form] = _digest_nodes(self)
        return digests[form]

    @cached_property
    def name(self) -> str:
        """`[prefix]<EP name>_<16 hex digits>_<index>`."""
        return f"{self.prefix}{self.ep}_{self.digest[:DIGEST_DIGITS]}_{self.number}"

    @property
    def graph_name(self) -> str:
        """Name of its graph in a payload: the EP's, or its own."""
        return self.name if self.given_names is None else self.given_names[0]

    @property
    def node_name(self) -> str:
        """Name of its EPContext node: that of its graph, as in onnxruntime, or its
        own.
        """
        return self.name if self.given_names is None else self.given_names[1]


_OMITTED = -1


def _number_names(
    graph: GraphIndex, nodes: Sequence[int]
) -> tuple[list[str], dict[str, int], list[int]]:
    """Number the names of nodes in topological order.

    Returns:
        The names that they read and do not produce, in order of first use; the number
        of each name, by first appearance (an omitted one is -1); and the form: for each
        node its signature and the numbers of its inputs and outputs. The signature
        includes how many there are, so that only equal groups have equal forms.
    """
    signatures = graph.signatures
    inputs = graph.inputs
    outputs = graph.outputs
    numbers = {"": _OMITTED}
    entering: list[str] = []
    form: list[int] = []
    for i in nodes:
        form.append(signatures[i])
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


def _digest_nodes(group: NodeGroup) -> str:
    """Return SHA-256 (hex) over a group's canonical form.

    That is: operators, domains, versions, attributes, how values connect (by number,
    not by name), types of the boundary, and the weights' types, shapes and bytes.
    Neither names nor options.
    """
    graph = group.graph
    form = _CanonicalForm(graph.opset_imports)
    numbers = form.numbers
    weights = graph.weights
    for value in group.inputs:
        form.add(f"in {numbers[value.name]} {value.type.elem_type} {value.shape}")

    # Initializers of text, which are no weights.
    special = graph.special_tensors
    for index in group.node_indices:
        for name in graph.inputs[index]:
            if name in numbers:
                continue
            if name in weights:
                weight = weights[name]
                form.add(
                    f"weight {numbers[name]} {weight.elem_type} {weight.shape} "
                    f"{weight.digest}"
                )
            elif name in special:
                form.add(f"constant {numbers[name]}")
                form.add(_serialize_without_names(special[name]))
        form.add_node(graph.nodes[index], graph.inputs[index], graph.outputs[index])

    for value in group.outputs:
        form.add(f"out {numbers[value.name]} {value.type.elem_type} {value.shape}")
    for function in find_used_functions(
        (graph.nodes[i] for i in group.node_indices), graph.functions
    ):
        form.add(function.SerializeToString(deterministic=True))
    return form.digest()


class _CanonicalForm:
    """Parts of a digest, with numbers in place of names.

    Attributes:
        numbers: name to number; a new name gets the next one.
    """

    def __init__(self, opset_imports: Mapping[str, int]) -> None:
        self._opset_imports = opset_imports
        self._parts: list[bytes] = []
        self._next = count().__next__
        self.numbers: defaultdict[str, int] = defaultdict(self._next, {"": -1})

    def digest(self) -> str:
        """Return the digest (hex) of all added parts."""
        # The lengths keep two neighbours from being read as one part.
        lengths = repr([len(part) for part in self._parts]).encode()
        return hashlib.sha256(b"".join((lengths, *self._parts))).hexdigest()

    def add(self, part: str | bytes) -> None:
        """Add one part."""
        self._parts.append(part.encode() if isinstance(part, str) else part)

    def add_node(
        self, node: NodeProto, inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        """Add a node; `inputs` includes the outer names that its subgraphs read."""
        domain = shorten_domain(node.domain)
        version = self._opset_imports.get(domain, 1)
        numbers = self.numbers
        reads = [numbers[name] for name in inputs]
        makes = [numbers[name] for name in outputs]
        self.add(
            f"node {domain} {node.op_type} {node.overload} {version} {reads} {makes}"
        )
        attributes = node.attribute
        if attributes:
            for attribute in sorted(attributes, key=lambda a: a.name):
                self.add(_serialize_without_names(attribute))
            for subgraph in iter_subgraphs(node):
                self._add_subgraph(subgraph)

    def _add_subgraph(self, subgraph: GraphProto) -> None:
        outside = self.numbers
        # Subgraphs side by side may use one name for different values.
        self.numbers = numbers = defaultdict(self._next, outside)
        for value in subgraph.input:
            self.add(f"body in {numbers[value.name]}")
            self.add(value.type.SerializeToString(deterministic=True))
        for tensor in subgraph.initializer:
            self.add(f"constant {numbers[tensor.name]}")
            self.add(_serialize_without_names(tensor))
        for node in subgraph.node:
            self.add_node(node, node.input, node.output)
        self.add(f"body out {[numbers[value.name] for value in subgraph.output]}")
        self.numbers = outside


def _serialize_without_names(message: AttributeProto | TensorProto) -> bytes:
    """Serialize an attribute or a tensor without names and documentation."""
    copy = copy_message(message)
    tensors = [copy]
    if isinstance(copy, AttributeProto):
        tensors = [*([copy.t] if copy.HasField("t") else []), *copy.tensors]
        # Subgraphs are added part by part, without their names.
        for field in ("doc_string", "g", "graphs"):
            copy.ClearField(field)
    for tensor in tensors:
        for field in ("name", "doc_string", "metadata_props"):
            tensor.ClearField(field)
    return bytes(copy.SerializeToString(deterministic=True))
