"""A piece of a graph with its boundary: what is handed to an EP or to an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import onnx
from onnx import ModelProto, TensorProto

from epctx_core.graph.canonical import partition_digest, plain_form
from epctx_core.graph.functions import used_functions
from epctx_core.graph.view import Node
from epctx_core.graph.weights import INLINE_LIMIT, Weight, detached_tensor, is_detached, place_externally
from epctx_core.plugin import ValueInfo

if TYPE_CHECKING:
    import os

    from epctx_core.graph.index import GraphIndex

DIGEST_DIGITS = 16


class Subgraph:
    """Some nodes of a graph, in topological order, with ordered inputs and outputs.

    Args:
        graph: the index the nodes belong to.
        nodes: ascending node indices.
        keep_initializers: True to treat weights as inputs.
    """

    def __init__(self, graph: GraphIndex, nodes: Sequence[int], *, keep_initializers: bool = False) -> None:
        self.graph = graph
        self.node_indices = nodes
        self.keeps_initializers = keep_initializers
        self.input_names, self.weight_names, self.output_names = _boundary(graph, nodes, keep_initializers)
        self.kept_names = (
            tuple(n for n in self.input_names if n in graph.constants) if keep_initializers else ()
        )

    def _values(self, names: Sequence[str]) -> tuple[ValueInfo, ...]:
        return tuple(ValueInfo(name, self.graph.types.get(name)) for name in names)

    @cached_property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """What flows in, in the order of first use."""
        return self._values(self.input_names)

    @cached_property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """What flows out, in the order of production."""
        return self._values(self.output_names)

    @cached_property
    def nodes(self) -> Sequence[Node]:
        """The nodes in topological order."""
        return tuple(Node(self.graph, i) for i in self.node_indices)

    @property
    def weights(self) -> Mapping[str, Weight]:
        """The initializers that the nodes read, by name; also those kept as inputs."""
        known = self.graph.weights
        names = (*self.weight_names, *self.kept_names)
        return MappingProxyType({name: known[name] for name in names if name in known})

    def value(self, name: str) -> ValueInfo:
        """Return any value's type."""
        return ValueInfo(name, self.graph.types.get(name))

    def model(self, *, inline_weights: bool = False) -> ModelProto:
        """Return a model of these nodes; see `epctx_core.plugin.Partition.model`."""
        model = ModelProto(ir_version=max(self.graph.ir_version, 4))
        for domain, version in self.graph.opset_imports.items():
            model.opset_import.add(domain=domain, version=version)
        graph = model.graph
        graph.name = "partition"
        graph.node.extend(self.graph.nodes[i] for i in self.node_indices)
        graph.input.extend(self._value_proto(name) for name in self.input_names)
        graph.output.extend(self._value_proto(name) for name in self.output_names)
        for name in self.weight_names:
            weight = self.graph.weights.get(name)
            if weight is not None:
                inline = inline_weights or weight.nbytes <= INLINE_LIMIT
                graph.initializer.append(weight.tensor_proto() if inline else detached_tensor(weight))
        self._add_special_initializers(graph)
        model.functions.extend(used_functions(graph.node, self.graph.functions))
        return model

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model and weights to files; see `epctx_core.plugin.Partition.save`."""
        target = Path(path)
        model = self.model()
        weights = target.with_name(f"{target.stem}.weights")
        with weights.open("wb") as file:
            for tensor in model.graph.initializer:
                if is_detached(tensor):
                    place_externally(tensor, weights.name, file.tell())
                    for chunk in self.weights[tensor.name].chunks():
                        file.write(chunk)
        target.write_bytes(model.SerializeToString())

    def _value_proto(self, name: str) -> onnx.ValueInfoProto:
        value = onnx.ValueInfoProto(name=name)
        proto = self.graph.types.proto(name)
        if proto is not None:
            value.type.CopyFrom(proto)
        return value

    def _add_special_initializers(self, graph: onnx.GraphProto) -> None:
        """Add string and sparse initializers, which are no weights: they stay whole in the protobuf."""
        special = {name for name in self.weight_names if name not in self.graph.weights}
        for name, tensor in self.graph.special_tensors.items() if special else ():
            if name in special:
                (graph.initializer if isinstance(tensor, TensorProto) else graph.sparse_initializer).append(
                    tensor
                )


def _boundary(
    graph: GraphIndex, nodes: Sequence[int], keep_initializers: bool
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the names of inputs, weights and outputs of a set of nodes."""
    made = {name for i in nodes for name in graph.outputs[i]}
    inputs: dict[str, None] = {}
    weights: dict[str, None] = {}
    for i in nodes:
        for name in graph.inputs[i]:
            if name and name not in made:
                is_weight = name in graph.constants and not keep_initializers
                (weights if is_weight else inputs)[name] = None
    inside = set(nodes)
    wanted = set(graph.output_names)
    outputs = [
        name
        for i in nodes
        for name in graph.outputs[i]
        if name and (name in wanted or any(c not in inside for c in graph.consumers.get(name, ())))
    ]
    if not outputs and nodes:
        # Dead code: the last results stand for it, since a node needs an output.
        outputs = [name for name in graph.outputs[nodes[-1]] if name]
    return tuple(inputs), tuple(weights), tuple(outputs)


class GraphPartition(Subgraph):
    """A subgraph that one EP compiles; implements `epctx_core.plugin.Partition`.

    Its name is made on first use, because it takes a digest of the weights.
    """

    def __init__(
        self, graph: GraphIndex, nodes: Sequence[int], *, ep: str, keep_initializers: bool = False
    ) -> None:
        super().__init__(graph, nodes, keep_initializers=keep_initializers)
        self.ep = ep
        self.prefix = ""
        self.number = 0

    def __repr__(self) -> str:
        return f"<partition {self.number} of {self.ep}: {len(self.node_indices)} nodes>"

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical form."""
        form = plain_form(self.graph, self.node_indices, self.inputs, self.outputs)
        known = self.graph.digests.get(form) if form is not None else None
        if known is None:
            known = self._digest()
            if form is not None:
                self.graph.digests[form] = known
        return known

    def _digest(self) -> str:
        weights = self.graph.weights
        return partition_digest(
            self.graph, self.node_indices, self.inputs, self.outputs, lambda name: weights[name].digest
        )

    @cached_property
    def name(self) -> str:
        """`[prefix]<EP type>_<16 hex digits>_<index>`."""
        return f"{self.prefix}{self.ep}_{self.digest[:DIGEST_DIGITS]}_{self.number}"
