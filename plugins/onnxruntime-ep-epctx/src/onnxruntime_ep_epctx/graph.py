"""Graphs of onnxruntime as ONNX models; large weights stay where they are."""

from __future__ import annotations

import ctypes
import io
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from epctx_core.plugin.protos import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

if TYPE_CHECKING:
    from onnxruntime_ep_epctx.capi import Address, Onnxruntime

MANIFEST = "epctx.manifest"
"""Key of the manifest in a model's metadata."""
_SMALL_BYTES = 1024
"""Bytes of a weight up to which it is read with the nodes."""
_IR_VERSION = 13
"""Newest version of ONNX's format that onnx 1.23 checks; graphs need no newer one."""

# OrtOpAttrType
_INT = 1
_INTS = 2
_FLOAT = 3
_FLOATS = 4
_STRING = 5
_STRINGS = 6
ATTRIBUTE_TYPES = {
    _INT: AttributeProto.INT,
    _INTS: AttributeProto.INTS,
    _FLOAT: AttributeProto.FLOAT,
    _FLOATS: AttributeProto.FLOATS,
    _STRING: AttributeProto.STRING,
    _STRINGS: AttributeProto.STRINGS,
}


@dataclass(frozen=True, kw_only=True)
class GraphCopy:
    """Graph of onnxruntime as a model.

    Attributes:
        model: its nodes are in the graph's order; without large initializers.
        nodes: the addresses of the nodes, in that order.
        data: the serialised model, with the only copy of these: onnxruntime frees or
            moves its own after the call in which the graph was read.
        path: the model's file; empty for one from bytes.
        folder: of the files with initializers; None if there are none.
        is_subgraph: whether the graph is a subgraph of a node.
    """

    model: ModelProto
    nodes: list[Address]
    data: bytes = b""
    path: str = ""
    folder: Path | None = None
    is_subgraph: bool = False


class FusedNode(NamedTuple):
    """Node that represents a claim in onnxruntime's graph.

    Attributes:
        name: its name, also that of its EPContext node.
        inputs, outputs: names of its values, in onnxruntime's order.
    """

    name: str
    inputs: list[str]
    outputs: list[str]


def read_graph(
    ort: Onnxruntime,
    address: Address,
    folder: str | None = None,
    *,
    encloses: bool = False,
) -> GraphCopy:
    """Return a graph that onnxruntime passes to an EP, with its manifest.

    Args:
        ort: the onnxruntime.
        address: the graph.
        folder: the host's for files with initializers; None for the model's.
        encloses: True for the If, Loop or Scan around a subgraph, as a graph of that
            node alone.

    Raises:
        StatusError: a function of onnxruntime failed.
    """
    parent = ort.get("Graph_GetParentNode", address)
    path = ort.get_text("Graph_GetModelPath", address)
    place = Path(path).parent if folder is None else Path(folder)
    reader = _Reader(ort, place, is_subgraph=bool(parent))
    graph = reader.read_alone(parent) if encloses else reader.read(address)
    graph.input.extend(reader.captured.values())
    graph.MergeFrom(reader.constants)
    version = ort.get_number("Graph_GetOnnxIRVersion", address)
    model = ModelProto(ir_version=min(version, _IR_VERSION), graph=graph)
    opsets = _list_opsets(ort, address)
    for domain in reader.domains:
        # A partition that an EP has compiled already is a node of a domain of its own.
        opsets.setdefault(domain, 1)
    for domain, number in opsets.items():
        model.opset_import.add(domain=domain, version=number)
    if manifest := read_metadata(ort, address, MANIFEST):
        model.metadata_props.add(key=MANIFEST, value=manifest)
    # Pieces of a message that follow each other are merged when they are decoded.
    reader.data.write(model.SerializeToString())
    return GraphCopy(
        model=model,
        nodes=reader.nodes,
        data=reader.data.getvalue(),
        path=path,
        folder=reader.folder,
        is_subgraph=bool(parent),
    )


def read_fused_node(
    ort: Onnxruntime,
    address: Address,
) -> FusedNode:
    """Return the node that represents a claim."""
    return FusedNode(
        name=ort.get_text("Node_GetName", address),
        inputs=_list_names(ort, address, "Inputs"),
        outputs=_list_names(ort, address, "Outputs"),
    )


def read_metadata(
    ort: Onnxruntime,
    graph: Address,
    key: str,
) -> str:
    """Return an entry of the metadata of a graph's model; empty if it has none."""
    metadata = ort.get("Graph_GetModelMetadata", graph)
    allocator = ort.get("GetAllocatorWithDefaultOptions")
    try:
        text = ort.get(
            "ModelMetadataLookupCustomMetadataMap", metadata, allocator, key.encode()
        )
        if not text:
            return ""
        try:
            return ctypes.string_at(text).decode(errors="surrogateescape")
        finally:
            ort.call("AllocatorFree", allocator, text)
    finally:
        ort.call("ReleaseModelMetadata", metadata)


def _list_names(
    ort: Onnxruntime,
    node: Address,
    members: str,
) -> list[str]:
    return [_get_name(ort, value) for value in ort.list_members("Node", members, node)]


def _get_name(
    ort: Onnxruntime,
    value: Address,
) -> str:
    return ort.get_text("GetValueInfoName", value) if value else ""


def _list_opsets(
    ort: Onnxruntime,
    graph: Address,
) -> dict[str, int]:
    count = ort.get_number("Graph_GetNumOperatorSets", graph)
    domains = (ctypes.c_char_p * count)()
    versions = (ctypes.c_int64 * count)()
    ort.call("Graph_GetOperatorSets", graph, domains, versions, count)
    return {
        (domain or b"").decode(): version
        for domain, version in zip(domains, versions, strict=True)
    }


class _Reader:
    """Reader of one graph and the subgraphs in it.

    Attributes:
        nodes: addresses of the nodes of the graph itself.
        data, folder: see `GraphCopy`.
        captured: values of the scopes around a subgraph that it reads, by name.
        constants: those of them that are constant initializers, as a part of a graph.
        domains: those of all nodes.
    """

    def __init__(
        self,
        ort: Onnxruntime,
        place: Path,
        *,
        is_subgraph: bool,
    ) -> None:
        self.ort = ort
        self.nodes: list[Address] = []
        self.data = io.BytesIO()
        self.folder: Path | None = None
        self.captured: dict[str, ValueInfoProto] = {}
        self.domains: set[str] = set()
        self.constants = GraphProto()
        self._constants: set[str] = set()
        self._place = place
        self._is_subgraph = is_subgraph

    def read(
        self,
        address: Address,
        *,
        is_inner: bool = False,
    ) -> GraphProto:
        """Return a graph."""
        ort = self.ort
        name = ort.get_text("Graph_GetName", address) or "graph"
        graph = GraphProto(name=name)
        values: dict[str, ValueInfoProto] = {}
        for node in ort.list_members("Graph", "Nodes", address):
            graph.node.append(self._read_node(node, values))
            if not is_inner:
                self.nodes.append(node)
                if self._is_subgraph:
                    self._note_captured(node)

        for value in ort.list_members("Graph", "Initializers", address):
            self._read_initializer(value, graph, is_copied=is_inner)

        graph.input.extend(self._read_values("Inputs", address))
        graph.output.extend(self._read_values("Outputs", address))
        for each in (*graph.input, *graph.output):
            values.pop(each.name, None)
        graph.value_info.extend(v for v in values.values() if v.HasField("type"))
        return graph

    def read_alone(self, node: Address) -> GraphProto:
        """Return a graph of one node, with the subgraphs in it."""
        outputs: dict[str, ValueInfoProto] = {}
        graph = GraphProto(name="graph", node=[self._read_node(node, outputs)])
        graph.output.extend(outputs.values())
        self._note_captured(node, is_alone=True)
        return graph

    def _note_captured(
        self,
        node: Address,
        *,
        is_alone: bool = False,
    ) -> None:
        """Note the values that a node, or a subgraph in it, reads from outside of the
        graph; constants are no inputs of a fused node.
        """
        for members in ("Inputs", "ImplicitInputs"):
            for value in filter(None, self.ort.list_members("Node", members, node)):
                if not is_alone and not self.ort.get_number(
                    "ValueInfo_IsFromOuterScope", value
                ):
                    continue
                read = self._read_value(value)
                if not self.ort.get_number("ValueInfo_IsConstantInitializer", value):
                    self.captured[read.name] = read
                elif read.name not in self._constants:
                    self._constants.add(read.name)
                    self._read_initializer(value, self.constants)

    def _read_values(
        self,
        members: str,
        graph: Address,
    ) -> Iterator[ValueInfoProto]:
        for value in self.ort.list_members("Graph", members, graph):
            yield self._read_value(value)

    def _read_value(self, address: Address) -> ValueInfoProto:
        value = ValueInfoProto(name=_get_name(self.ort, address))
        info = self.ort.get("GetValueInfoTypeInfo", address)
        tensor = self.ort.get("CastTypeInfoToTensorInfo", info) if info else None
        if tensor:
            value.type.tensor_type.CopyFrom(self._read_type(tensor))
        return value

    def _read_type(self, info: Address) -> Any:
        ort = self.ort
        found = TypeProto.Tensor(elem_type=ort.get_number("GetTensorElementType", info))
        if not ort.call("TensorTypeAndShape_HasShape", info):
            return found
        rank = ort.get_number("GetDimensionsCount", info)
        lengths = (ctypes.c_int64 * rank)()
        names = (ctypes.c_char_p * rank)()
        if rank:
            ort.call("GetDimensions", info, lengths, rank)
            ort.call("GetSymbolicDimensions", info, names, rank)
        found.shape.SetInParent()
        for length, name in zip(lengths, names, strict=True):
            if length >= 0:
                found.shape.dim.add(dim_value=length)
            else:
                text = (name or b"").decode(errors="backslashreplace")
                found.shape.dim.add(dim_param=text or None)
        return found

    def _read_node(
        self,
        address: Address,
        values: dict[str, ValueInfoProto],
    ) -> NodeProto:
        """Return a node.

        Args:
            address: the node.
            values: gets its outputs.
        """
        ort = self.ort
        node = NodeProto(
            name=ort.get_text("Node_GetName", address),
            op_type=ort.get_text("Node_GetOperatorType", address),
            domain=ort.get_text("Node_GetDomain", address),
        )
        self.domains.add(node.domain)
        node.input.extend(_list_names(ort, address, "Inputs"))
        for value in ort.list_members("Node", "Outputs", address):
            name = _get_name(ort, value)
            node.output.append(name)
            if name:
                values[name] = self._read_value(value)
        for attribute in ort.list_members("Node", "Attributes", address):
            node.attribute.extend(self._read_attribute(attribute))
        node.attribute.extend(self._read_subgraphs(address))
        return node

    def _read_subgraphs(self, node: Address) -> Iterator[AttributeProto]:
        ort = self.ort
        count = ort.get_number("Node_GetNumSubgraphs", node)
        if not count:
            return
        graphs = (ctypes.c_void_p * count)()
        names = (ctypes.c_char_p * count)()
        ort.call("Node_GetSubgraphs", node, graphs, count, names)
        for graph, name in zip(graphs, names, strict=True):
            yield AttributeProto(
                name=(name or b"").decode(),
                type=AttributeProto.GRAPH,
                g=self.read(graph or 0, is_inner=True),
            )

    def _read_attribute(self, address: Address) -> Iterator[AttributeProto]:
        ort = self.ort
        kind = ort.get_number("OpAttr_GetType", address)
        found = AttributeProto(name=ort.get_text("OpAttr_GetName", address))
        if kind not in ATTRIBUTE_TYPES:
            yield from self._read_tensor_attribute(address, found)
            return

        data = self._read_attribute_bytes(address, kind)
        found.type = ATTRIBUTE_TYPES[kind]
        if kind == _STRING:
            found.s = data
        elif kind == _STRINGS:
            found.strings.extend(data.split(b"\0")[:-1])
        else:
            dtype = np.int64 if kind in (_INT, _INTS) else np.float32
            numbers = np.frombuffer(data, dtype).tolist()
            if kind == _INT:
                found.i = numbers[0]
            elif kind == _FLOAT:
                found.f = numbers[0]
            elif kind == _INTS:
                found.ints.extend(numbers)
            else:
                found.floats.extend(numbers)
        yield found

    def _read_attribute_bytes(
        self,
        address: Address,
        kind: int,
    ) -> bytes:
        """Return an attribute's bytes: a call without room says how many there are."""
        ort = self.ort
        size = ctypes.c_size_t()
        try:
            ort.call("ReadOpAttr", address, kind, None, 0, ctypes.byref(size))
        except Exception:
            if not size.value:
                raise
        data = ctypes.create_string_buffer(max(size.value, 1))
        if size.value:
            ort.call("ReadOpAttr", address, kind, data, size.value, ctypes.byref(size))
        return data.raw[: size.value]

    def _read_tensor_attribute(
        self,
        address: Address,
        found: AttributeProto,
    ) -> Iterator[AttributeProto]:
        """Yield an attribute with a tensor; nothing for a subgraph, which the node
        has.
        """
        try:
            tensor = self.ort.get("OpAttr_GetTensorAttributeAsOrtValue", address)
        except Exception:  # noqa: BLE001 - so it says that there is none
            return
        if not tensor:
            return
        try:
            found.type = AttributeProto.TENSOR
            read, data = self._read_tensor(tensor, "")
            found.t.CopyFrom(read)
            if data:
                found.t.raw_data = bytes(data)
        finally:
            self.ort.call("ReleaseValue", tensor)
        yield found

    def _read_initializer(
        self,
        value: Address,
        graph: GraphProto,
        *,
        is_copied: bool = False,
    ) -> None:
        """Read an initializer.

        Args:
            value: the initializer.
            graph: gets it, or the type of one that is in `data`.
            is_copied: whether it is a part of the graph, large or not.
        """
        ort = self.ort
        declared = self._read_value(value)
        graph.value_info.append(declared)
        # The declared type of one that an input may replace need not be its own.
        is_constant = ort.get_number("ValueInfo_IsConstantInitializer", value)
        if is_constant and not is_copied and (file := self._find_file(value)):
            read = declared.type.tensor_type
            tensor = graph.initializer.add(
                name=declared.name,
                data_type=read.elem_type,
                dims=[dim.dim_value for dim in read.shape.dim],
                data_location=TensorProto.EXTERNAL,
            )
            for key, text in zip(("location", "offset"), file, strict=True):
                tensor.external_data.add(key=key, value=text)
            return

        address = ort.get("ValueInfo_GetInitializerValue", value)
        tensor, data = self._read_tensor(address, declared.name)
        piece = ModelProto()
        is_large = not is_copied and len(data) > _SMALL_BYTES
        target = piece.graph if is_large else graph
        target.initializer.append(tensor)
        if data:
            target.initializer[-1].raw_data = bytes(data)
        if is_large:
            self.data.write(piece.SerializeToString())

    def _find_file(self, value: Address) -> tuple[str, ...]:
        """Return the file of an initializer and the offset in it; nothing if it is in
        none, or in one that does not lie where epctx may open it.
        """
        ort = self.ort
        info = ort.get("ValueInfo_GetExternalInitializerInfo", value)
        if not info:
            return ()
        location = ort.call("ExternalInitializerInfo_GetFilePath", info)
        offset = ort.call("ExternalInitializerInfo_GetFileOffset", info)
        ort.call("ReleaseExternalInitializerInfo", info)

        # A link may lead elsewhere, such as to the store of a cache of models.
        path = (self._place / os.fsdecode(location)).resolve()
        self.folder = self.folder or path.parent
        if path.parent != self.folder:
            return ()
        return path.name, str(offset)

    def _read_tensor(
        self,
        address: Address,
        name: str,
    ) -> tuple[TensorProto, Any]:
        """Return a tensor without its data, and these, over onnxruntime's memory; the
        tensor has texts itself.
        """
        ort = self.ort
        info = ort.get("GetTensorTypeAndShape", address)
        try:
            read = self._read_type(info)
        finally:
            ort.call("ReleaseTensorTypeAndShapeInfo", info)
        lengths = [dim.dim_value for dim in read.shape.dim]
        tensor = TensorProto(name=name, data_type=read.elem_type, dims=lengths)
        if read.elem_type == TensorProto.STRING:
            tensor.string_data.extend(self._read_strings(address, math.prod(lengths)))
            return tensor, b""

        size = ort.get_number("GetTensorSizeInBytes", address)
        start = ort.get("GetTensorMutableData", address) if size else None
        return tensor, (ctypes.c_ubyte * size).from_address(start) if start else b""

    def _read_strings(
        self,
        address: Address,
        count: int,
    ) -> Iterator[bytes]:
        for index in range(count):
            size = self.ort.get_number("GetStringTensorElementLength", address, index)
            text = ctypes.create_string_buffer(max(size, 1))
            self.ort.call("GetStringTensorElement", address, size, index, text)
            yield text.raw[:size]


def view_memory(
    address: Address | None,
    dtype: np.dtype[Any],
    lengths: Iterable[int],
) -> np.ndarray:
    """Return an array over memory of onnxruntime."""
    shape = tuple(lengths)
    size = math.prod(shape) * dtype.itemsize
    if not size or not address:
        return np.empty(shape, dtype)
    memory = (ctypes.c_ubyte * size).from_address(address)
    return np.ndarray(shape, dtype, memoryview(memory))
