"""The blocked layout that onnxruntime's convolutions use on one kind of CPU, and the
way back from it.

A graph that the host's engine optimised may hold operators of onnxruntime's internal
domain `com.microsoft.nchwc`. Their weights are arranged for one block size, the width
of this CPU's vectors. Such a graph is marked; where the engine refuses it, it is
rewritten with ONNX's operators.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from epctx_core.errors import InvalidGraph
from epctx_sim_sdk.compiler import WEIGHT_LOCATION, with_types
from epctx_sim_sdk.device import read_mark

if TYPE_CHECKING:
    from typing import Any

DOMAIN = "com.microsoft.nchwc"

_log = logging.getLogger("epctx.sim")
_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})
_DEFAULTS: dict[str, int] = {
    "ceil_mode": 0,
    "storage_order": 0,
    "count_include_pad": 0,
    "channels_last": 0,
}
_SLICE_INPUTS = 10
_CLIP_INPUTS = 11
_RANK = 4

Rearrange = Callable[[np.ndarray], np.ndarray]


class NotPlainError(Exception):
    """A model has something in a blocked layout that has no equal among ONNX's
    operators here.
    """


def without_blocks(
    model: ModelProto, weights: Mapping[str, np.ndarray], refusal: InvalidGraph
) -> tuple[ModelProto, Mapping[str, np.ndarray]]:
    """Return a plain model, with rearranged copies of weights, in place of a marked one
    that the engine refuses.

    Raises:
        InvalidGraph: the model is not marked, is damaged, or was made by a version that
            knew more.
    """
    if read_mark(model) is None:
        raise refusal
    try:
        plain, changes = to_plain(model, _read_block_size(model))
        rearranged = {
            name: change(weights[base]) for name, (base, change) in changes.items()
        }
    except (NotPlainError, KeyError) as error:
        what = (
            f"the weight {error} is missing" if isinstance(error, KeyError) else error
        )
        why = f"{refusal.message} It cannot be rewritten: {what}."
        raise InvalidGraph(why, hint=refusal.hint) from refusal
    _log.info("%s Compiling again would make it faster.", refusal.message)
    return plain, {**weights, **rearranged}


def has_way_back(model: ModelProto) -> bool:
    """Return whether `without_blocks` can rewrite a marked model that was just
    optimised.

    A `ReorderInput` may add channels of zeros, and nothing says how many: such a model
    has no way back.
    """
    try:
        block = _read_block_size(model)
        plain, _ = to_plain(model, block)
    except NotPlainError:
        return False
    typed = with_types(plain)
    shapes = {
        v.name: v.type.tensor_type.shape.dim for v in (*typed.input, *typed.value_info)
    }
    channels = [
        shapes.get(node.input[0], ())[1:2]
        for node in model.graph.node
        if node.domain == DOMAIN and node.op_type == "ReorderInput"
    ]
    return all(
        dims and dims[0].dim_value and not dims[0].dim_value % block
        for dims in channels
    )


def _read_block_size(model: ModelProto) -> int:
    layout = read_mark(model) or ""
    block = layout.rpartition("nchwc")[2]
    if not block.isdecimal() or not 0 < int(block) <= 1024:  # noqa: PLR2004 - far above any vector's width
        raise NotPlainError(f"its layout {layout!r} is unknown")
    return int(block)


def to_plain(
    model: ModelProto, block: int
) -> tuple[ModelProto, dict[str, tuple[str, Rearrange]]]:
    """Rewrite blocked operators as ONNX's own.

    Returns:
        The new model, and for each weight that must be rearranged: the one it is made
        from, and how.

    Raises:
        NotPlainError: something has no equal.
    """
    return _Plain(model, block).rewrite()


class _Plain:
    def __init__(self, model: ModelProto, block: int) -> None:
        self._model = ModelProto()
        self._model.CopyFrom(model)
        self._block = block
        self._opset = next(
            (o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1
        )
        self._tensors = {t.name: t for t in model.graph.initializer}
        self._nodes: list[NodeProto] = []
        self._made: dict[str, onnx.TensorProto] = {}
        self._changes: dict[str, tuple[str, Rearrange]] = {}
        self._channels: dict[str, int] = {}

    def rewrite(self) -> tuple[ModelProto, dict[str, tuple[str, Rearrange]]]:
        graph = self._model.graph
        for node in list(graph.node):
            if node.domain == DOMAIN:
                self._rewrite(node)
            else:
                self._nodes.append(node)
        del graph.node[:], graph.value_info[:]
        graph.node.extend(self._nodes)
        used = {name for node in self._nodes for name in node.input}
        used |= {value.name for value in graph.output}
        tensors = (*graph.initializer, *self._made.values())
        kept = [tensor for tensor in tensors if tensor.name in used]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        del self._model.metadata_props[:]
        imports = [o for o in self._model.opset_import if o.domain != DOMAIN]
        del self._model.opset_import[:]
        self._model.opset_import.extend(imports)
        return self._model, self._changes

    def _rewrite(self, node: NodeProto) -> None:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Conv":
            self._rewrite_convolution(node, attributes)
        elif node.op_type in _POOLS:
            self._rewrite_pool(node, attributes)
        elif node.op_type == "ReorderInput" and not attributes.get("channels_last"):
            self._rewrite_into_blocks(node)
        elif node.op_type == "ReorderOutput" and not attributes.get("channels_last"):
            self._rewrite_out_of_blocks(node, int(attributes["channels"]))
        else:
            raise NotPlainError(f"it has {node.op_type} in blocks")

    def _add(
        self, op: str, inputs: list[str], outputs: list[str], **attributes: Any
    ) -> None:
        self._nodes.append(helper.make_node(op, inputs, outputs, **attributes))

    def _rewrite_into_blocks(self, node: NodeProto) -> None:
        self._add("Identity", [node.input[0]], [node.output[0]])

    def _rewrite_out_of_blocks(self, node: NodeProto, channels: int) -> None:
        source = node.input[0]
        target = node.output[0]
        if self._channels.get(source) == channels:
            self._add("Identity", [source], [target])
        elif self._opset < _SLICE_INPUTS:
            self._add(
                "Slice", [source], [target], axes=[1], starts=[0], ends=[channels]
            )
        else:
            numbers = [
                self._add_constant(np.array([n], np.int64)) for n in (0, channels, 1)
            ]
            self._add("Slice", [source, *numbers], [target])

    def _rewrite_pool(self, node: NodeProto, attributes: dict[str, Any]) -> None:
        kept = {k: v for k, v in attributes.items() if v != _DEFAULTS.get(k)}
        if set(kept.get("dilations", [1])) == {1}:
            kept.pop("dilations", None)
        if "ceil_mode" in kept or "dilations" in kept:
            raise NotPlainError(
                f"it has a {node.op_type} with {sorted(kept)} in blocks"
            )
        channels = self._channels.get(node.input[0], 0)
        self._channels[node.output[0]] = channels
        self._add(node.op_type, list(node.input), list(node.output), **kept)

    def _rewrite_convolution(self, node: NodeProto, attributes: dict[str, Any]) -> None:
        name = node.input[1]
        tensor = self._tensors.get(name)
        if tensor is None or len(tensor.dims) != _RANK or tensor.dims[0] % self._block:
            raise NotPlainError(
                f"the weight {name!r} of a convolution is not in blocks"
            )
        shape = tuple(tensor.dims)
        group = attributes.get("group", 1)
        inputs_of_group = shape[1]
        is_depthwise = group > 1 and inputs_of_group == 1
        per_input = inputs_of_group % self._block == 0 and not is_depthwise
        if not per_input and inputs_of_group >= self._block:
            raise NotPlainError(
                f"the weight {name!r} of a convolution is not in whole blocks"
            )
        weight = self._rearrange(tensor, per_input=per_input)
        activation = attributes.pop("activation", b"").decode()
        parameters = list(attributes.pop("activation_params", []))
        result = node.output[0]
        self._channels[result] = shape[0]
        inputs = [node.input[0], weight, *(n for n in node.input[2:3] if n)]
        extra = node.input[3] if len(node.input) > 3 else ""  # noqa: PLR2004 - the Sum input
        last = f"{result}:sum" if activation else result
        first = f"{result}:conv" if extra else last
        self._add("Conv", inputs, [first], **attributes)
        if extra:
            self._add("Add", [first, extra], [last])
        if activation:
            self._add_activation(activation, parameters, last, result)

    def _add_activation(
        self, operator: str, parameters: list[float], source: str, target: str
    ) -> None:
        names = {
            "LeakyRelu": ("alpha",),
            "HardSigmoid": ("alpha", "beta"),
            "Clip": ("min", "max"),
        }
        if operator in ("Relu", "Sigmoid", "Tanh") and not parameters:
            self._add(operator, [source], [target])
        elif operator == "Clip" and self._opset >= _CLIP_INPUTS:
            bounds = [self._add_constant(np.array(p, np.float32)) for p in parameters]
            self._add(operator, [source, *bounds], [target])
        elif operator == "HardSwish" and not parameters:
            self._add(
                "HardSigmoid", [source], [f"{target}:gate"], alpha=1 / 6, beta=0.5
            )  # from version 1 on
            self._add("Mul", [source, f"{target}:gate"], [target])
        elif operator in names and len(parameters) == len(names[operator]):
            self._add(
                operator,
                [source],
                [target],
                **dict(zip(names[operator], parameters, strict=True)),
            )
        else:
            raise NotPlainError(
                f"it has the activation {operator!r} in a convolution in blocks"
            )

    def _add_constant(self, value: np.ndarray) -> str:
        name = f"plain:{len(self._made)}"
        self._made[name] = numpy_helper.from_array(value, name)
        return name

    def _rearrange(self, tensor: onnx.TensorProto, *, per_input: bool) -> str:
        name = f"{tensor.name}:plain{'' if per_input else '_outputs'}"
        if name not in self._made:
            change = functools.partial(
                _restore_order, block=self._block, per_input=per_input
            )
            made = onnx.TensorProto(
                name=name, data_type=tensor.data_type, dims=tensor.dims
            )
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                made.data_location = onnx.TensorProto.EXTERNAL
                made.external_data.add(key="location", value=WEIGHT_LOCATION)
                self._changes[name] = (tensor.name, change)
            else:
                changed = change(numpy_helper.to_array(tensor))
                made.CopyFrom(numpy_helper.from_array(changed, name))
            self._made[name] = made
        return name


def _restore_order(array: np.ndarray, *, block: int, per_input: bool) -> np.ndarray:
    """Return a filter in ONNX's order: outputs, inputs, rows, columns."""
    outputs, inputs, rows, columns = array.shape
    if per_input:
        blocks = array.reshape(
            outputs // block, inputs // block, rows, columns, block, block
        )
        ordered = blocks.transpose(0, 5, 1, 4, 2, 3)
    else:
        blocks = array.reshape(outputs // block, inputs, rows, columns, block)
        ordered = blocks.transpose(0, 4, 1, 2, 3)
    return np.ascontiguousarray(ordered.reshape(array.shape))
