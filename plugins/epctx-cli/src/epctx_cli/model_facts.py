"""Facts of a plain model by its structure: operators, versions, weights, quantisation.

Knows no command.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_cli.graphs import OF_ONNX, decode_text, get_initializers, walk_graphs

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from epctx_cli.graphs import AnyGraph

_SHOWN_WEIGHTS = 5
_BITS_OF_PACKED = {
    "uint4": 4,
    "int4": 4,
    "float4e2m1": 4,
    "uint2": 2,
    "int2": 2,
    "float6e2m3": 6,
    "float6e3m2": 6,
}
"""Bits of an element where it is no whole number of bytes."""
_MOST_ELEMENTS = 1 << 59
"""Elements of a weight; more would take 2^63 bytes with the widest type."""
FIX_UNNAMED = (
    "  python -m onnxruntime.tools.make_dynamic_shape_fixed IN.onnx OUT.onnx \\\n"
    "    --input_name NAME --input_shape 1,512"
)
"""Command that gives an input lengths; `--free-dimension` needs names of them."""
_OF_QUANTIZATION = ("QLinear", "QGemm", "QAttention", "QMoE")


@dataclass(frozen=True, kw_only=True)
class Weight:
    """Weight of a model.

    Attributes:
        name: name of the initializer, or of the result of the Constant node.
        type: element type.
        shape: its lengths.
        bytes: length of its data, or what they would take if they were dense; 0 for a
            shape that no memory holds.
    """

    name: str
    type: str
    shape: list[int]
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts of a model.

    Attributes:
        ir_version: version of the file's format.
        opsets: version by domain; ONNX's own is `ai.onnx`.
        operators: number of nodes by operator, the most frequent first: of all graphs,
            and of functions, each of which counts once.
        functions: the number of functions that the model defines.
        subgraphs: the number of graphs in nodes, such as the branches of an If.
        open_dimensions: names of the inputs' open lengths; at the end `?` for those
            without a name.
        unnamed_dimensions: number of open lengths without a name.
        parameters: number of elements of all weights, those in files of their own
            included, but none of a weight whose shape no memory holds.
        weight_bytes: bytes of the same weights.
        weight_types: number of weights, parameters and bytes, by element type.
        largest_weights: a few.
        external_weights: the number of weights in files of their own.
        quantization: the operators that quantise or compute on quantised values, with
            the number of nodes of each.
    """

    ir_version: int
    opsets: Mapping[str, int]
    operators: Mapping[str, int]
    functions: int
    subgraphs: int
    open_dimensions: Sequence[str]
    unnamed_dimensions: int
    parameters: int
    weight_bytes: int
    weight_types: Mapping[str, Mapping[str, int]]
    largest_weights: Sequence[Weight]
    external_weights: int
    quantization: Mapping[str, int]


def read_facts(path: Path) -> ModelFacts | None:
    """Return the facts of a file; None if it is no ONNX model but of another format.

    Files of external weights are not opened.
    """
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    try:
        model = ModelProto.FromString(path.read_bytes())
    except DecodeError:
        return None
    return _describe(model) if model.HasField("graph") else None


def _describe(model: ModelProto) -> ModelFacts:
    from onnx import TensorProto

    graphs = list(walk_graphs(model))
    operators = Counter(
        _join(node.domain, node.op_type) for graph in graphs for node in graph.node
    )
    external = 0
    weights = []
    types: dict[str, Counter[str]] = {}
    for name, tensor in chain.from_iterable(map(_list_weights, graphs)):
        weight = _measure(name, tensor)
        elements = count_elements(weight.shape) or 0
        weights.append(weight)
        external += tensor.data_location == TensorProto.EXTERNAL
        types.setdefault(weight.type, Counter()).update(
            weights=1, parameters=elements, bytes=weight.bytes
        )

    dimensions, unnamed = list_open_dimensions(model)
    return ModelFacts(
        ir_version=model.ir_version,
        opsets={
            decode_text(each.domain) or "ai.onnx": each.version
            for each in model.opset_import
        },
        operators=dict(operators.most_common()),
        functions=len(model.functions),
        subgraphs=len(graphs) - len(model.functions) - 1,
        # Names first, as a model may name a dimension "?", too.
        open_dimensions=[*dimensions, "?"] if unnamed else dimensions,
        unnamed_dimensions=unnamed,
        parameters=sum(total["parameters"] for total in types.values()),
        weight_bytes=sum(total["bytes"] for total in types.values()),
        weight_types=types,
        largest_weights=heapq.nlargest(
            _SHOWN_WEIGHTS, weights, key=lambda weight: weight.bytes
        ),
        external_weights=external,
        quantization={
            name: count
            for name, count in operators.most_common()
            if _is_of_quantization(name)
        },
    )


def _join(domain: str, operator: str) -> str:
    own = decode_text(domain)
    name = decode_text(operator)
    return name if own in OF_ONNX else f"{own}::{name}"


def _list_weights(graph: AnyGraph) -> Iterator[tuple[str, TensorProto]]:
    """Yield the initializers and the tensors of Constant nodes, with their names."""
    for tensor in get_initializers(graph):
        yield decode_text(tensor.name), tensor
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in OF_ONNX:
            for attribute in node.attribute:
                if attribute.HasField("t") and node.output:
                    yield decode_text(node.output[0]), attribute.t


def _measure(name: str, tensor: TensorProto) -> Weight:
    from onnx import TensorProto, helper

    kind = tensor.data_type
    shape = [max(0, length) for length in tensor.dims]
    try:
        label = TensorProto.DataType.Name(kind).lower()
        bits = _BITS_OF_PACKED.get(label) or (
            8 * helper.tensor_dtype_to_np_dtype(kind).itemsize
        )
    except (KeyError, ValueError):
        # A type that this onnx does not know.
        label = f"type {kind}"
        size = len(tensor.raw_data)
    else:
        size = -(-(count_elements(shape) or 0) * bits // 8)
        if kind == TensorProto.STRING:
            size = sum(map(len, tensor.string_data))
    return Weight(name=name, type=label, shape=shape, bytes=size)


def count_elements(shape: Sequence[int]) -> int | None:
    """Return the product of lengths; None for a shape that no memory holds."""
    if 0 in shape:
        return 0
    count = 1
    for length in shape:
        count *= length
        if count > _MOST_ELEMENTS:
            return None
    return count


def read_open_dimensions(path: Path) -> list[str] | None:
    """Return the names of a file's open dimensions; None if it is no ONNX file, such as
    one of onnxruntime's own format.
    """
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    try:
        return list_open_dimensions(ModelProto.FromString(path.read_bytes()))[0]
    except (OSError, DecodeError):
        return None


def list_open_dimensions(model: ModelProto) -> tuple[list[str], int]:
    """Return the names of open lengths of inputs, and the number of those without."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    lengths = chain.from_iterable(
        value.type.tensor_type.shape.dim
        for value in model.graph.input
        if value.name not in initialized
    )
    names = [
        decode_text(length.dim_param)
        for length in lengths
        if not length.HasField("dim_value")
    ]
    return list(dict.fromkeys(filter(None, names))), names.count("")


def _is_of_quantization(operator: str) -> bool:
    name = operator.rpartition("::")[2]
    return (
        "quantize" in name.lower()
        or name.startswith(_OF_QUANTIZATION)
        or name.endswith(("Integer", "NBits"))
    )
