"""An EP that computes one operator wrongly, in models that have a certain weight, and
the networks of twelve partitions that it compiles.

Its payload is the partition as an ONNX model, changed, which the core's engine
computes. Softsign it refuses: it stands between the partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    Purpose,
    hookimpl,
    supported_partitions,
)

SIZE = 16
ROWS = 32
FAULTS = ("scaled", "transposed", "clipped")
OPERATORS = {
    "Add": np.add,
    "MatMul": np.matmul,
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
    "LeakyRelu": lambda x: np.where(x < 0, 0.01 * x, x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Fault, the bytes of the weight whose reader has it, its block, and the limit of
    what is clipped.
    """

    name: str
    weight: bytes
    block: int
    limit: float


class FaultyProvider(ExecutionProvider):
    """Takes every node but Softsign and If; weights become float16. Counts the partitions that
    are loaded.
    """

    name = "FaultyExecutionProvider"
    vendor = "tests"
    binary_suffix = "faulty"
    fault: Fault | None = None
    loads = 0

    def __init__(self, context):
        super().__init__(context)
        self._partitions = []

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(
            graph, lambda node: node.op_type not in {"Softsign", "If"}
        )

    @hookimpl
    def compile(self, partitions):
        self._partitions += partitions
        return [
            CompiledPartition(None)
            if self.context.purpose is Purpose.EXPORT
            else self._open(spoil(partition.model(), self.fault))
            for partition in partitions
        ]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = []
        for partition in self._partitions:
            model = spoil(partition.model(), self.fault)
            payload = writer.payload(partition.name)
            payload.write(model.SerializeToString(deterministic=True))
            nodes.append(EPContextNode(partition, payload))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        type(self).loads += len(nodes)
        return [
            self._open(onnx.load_from_string(bytes(reader.payload(node).view)))
            for node in nodes
        ]

    def _open(self, model):
        prepared = self.context.engine.prepare(model, {})
        return CompiledPartition(prepared.run, close=prepared.close)


def spoil(model, fault):
    """Return a partition with weights in float16, and with the fault if it has the
    weight.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    planted = plant(changed.graph, fault)
    for tensor in changed.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim and tensor.name != planted:
            _store_in(tensor, array.astype(np.float16))
    return changed


def plant(graph, fault):
    """Give a graph the fault if it has the weight, whose name is returned; else None."""
    tensors = [] if fault is None else graph.initializer
    for tensor in tensors:
        array = numpy_helper.to_array(tensor)
        if array.tobytes() != fault.weight:
            continue
        if fault.name == "scaled":
            array = array * 1.05
            if tensor.data_type == TensorProto.INT8:
                array = np.clip(np.round(array), -127, 127)
            _store_in(tensor, array)
        elif fault.name == "transposed":
            _store_in(tensor, array.T)
        else:
            _clip_result(graph, tensor.name, fault.limit)
        return tensor.name
    return None


def _store_in(tensor, array):
    """Give a tensor other numbers in its type."""
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    array = np.ascontiguousarray(array.astype(dtype))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _clip_result(graph, name, limit):
    """Clip the result of the MatMul that reads a weight; a quantised one by its scale,
    as a wrong calibration does.
    """
    reader = next(node for node in graph.node if name in node.input)
    if reader.op_type == "DequantizeLinear":
        name = reader.output[0]
        reader = next(node for node in graph.node if name in node.input)
        for tensor in graph.initializer:
            if tensor.name == f"{reader.output[0]}_scale":
                _store_in(tensor, np.asarray(limit / 127))
        return
    result = reader.output[0]
    names = [f"{result}_{part}" for part in ("before", "low", "high")]
    reader.output[0] = names[0]
    for each, value in zip(names[1:], (-limit, limit), strict=True):
        graph.initializer.append(numpy_helper.from_array(np.float32(value), each))
    index = list(graph.node).index(reader) + 1
    graph.node.insert(index, helper.make_node("Clip", names, [result]))


def find_block(name):
    """Return the number of the block that computes a value."""
    return int(name[1:].split("_")[0])


class Network:
    """A model of twelve partitions, drawn; quantised, its ranges are calibrated.

    Attributes:
        model: the model.
        quantized: True for 8 bits, False for float32.
        scales: by the name of a quantised value the step of its numbers.
    """

    def __init__(
        self, seed, *, quantized, blocks=12, activations=("Relu", "Tanh", "LeakyRelu")
    ):
        self._draw = np.random.default_rng(seed)
        self.quantized = quantized
        self._activations = activations
        self._nodes = []
        self._initializers = []
        self._places = []
        self.scales = {}
        self._samples = {"x": self._draw.standard_normal((256, SIZE))}
        value = self._quantise("x") if quantized else "x"
        for block in range(blocks):
            value = self._add_block(value, block, is_last=block == blocks - 1)
        shape = [ROWS, SIZE]
        graph = helper.make_graph(
            self._nodes,
            "drawn",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
            self._initializers,
        )
        self.model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        )

    def draw_fault(self, name):
        """Return a fault of this name of one of the MatMuls."""
        weight, block, result = self._places[self._draw.integers(len(self._places))]
        limit = float(np.abs(self._samples[result]).max()) / 2
        return Fault(name=name, weight=weight, block=block, limit=limit)

    def _add_block(self, value, block, *, is_last):
        begin = value
        for step in range(int(self._draw.integers(1, 4))):
            name = f"b{block}_{step}"
            value = self._multiply(value, name, block)
            value = self._compute("Add", value, self._bias(name), to=f"{name}_biased")
            operator = self._draw.choice(self._activations)
            value = self._compute(str(operator), value, to=f"{name}_act")
        if self._draw.random() < 0.5:
            value = self._compute("Add", value, begin, to=f"b{block}_sum")
        if is_last:
            return value
        return self._compute("Softsign", value, to=f"b{block}_end")

    def _multiply(self, value, name, block):
        weight = self._draw.standard_normal((SIZE, SIZE)) / np.sqrt(SIZE)
        array, right = self._weigh(weight, f"{name}_w")
        self._places.append((array.tobytes(), block, f"{name}_product"))
        return self._compute("MatMul", value, right, to=f"{name}_product")

    def _bias(self, name):
        bias = self._draw.standard_normal(SIZE).astype(np.float32) / 2
        return self._weigh(bias, f"{name}_bias")[1]

    def _weigh(self, values, name):
        """Store a weight; return it as it is stored, and the name of its value."""
        if not self.quantized:
            array = values.astype(np.float32)
            value = self._store(array, name)
        else:
            scale = np.float32(np.abs(values).max() / 127)
            array = np.round(values / scale).astype(np.int8)
            value = self._dequantise(array, scale, name)
        self._samples[value] = values
        return array, value

    def _compute(self, operator, *values, to):
        """Add a node, and quantise its result."""
        self._add(operator, *values, to=to)
        sample = OPERATORS[operator](*(self._samples[value] for value in values))
        self._samples[to] = sample
        return self._quantise(to) if self.quantized else to

    def _quantise(self, name):
        """Round a value to 8 bits of its range."""
        sample = self._samples[name]
        step = self.scales[f"{name}_float"] = float(np.abs(sample).max()) / 127
        scale = self._store(np.float32(step), f"{name}_scale")
        zero = self._store(np.int8(0), f"{name}_zero")
        value = self._add("QuantizeLinear", name, scale, zero, to=f"{name}_int8")
        value = self._add("DequantizeLinear", value, scale, zero, to=f"{name}_float")
        self._samples[value] = sample
        return value

    def _dequantise(self, array, scale, name):
        stored = self._store(array, name), self._store(scale, f"{name}_scale")
        return self._add("DequantizeLinear", *stored, to=f"{name}_float")

    def _store(self, array, name):
        self._initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _add(self, operator, *values, to):
        self._nodes.append(helper.make_node(operator, values, [to], name=f"n_{to}"))
        return to
