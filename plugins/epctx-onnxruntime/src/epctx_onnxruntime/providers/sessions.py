"""Sessions of onnxruntime over single EPContext nodes of a vendor, or over optimised
models.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, helper

from epctx_core.errors import InvalidGraph, quote
from epctx_onnxruntime.engine import (
    OnnxRuntimeModel,
    keep_distinct_names,
    place_weights,
)
from epctx_onnxruntime.providers.programs import CONTEXT, DOMAIN
from epctx_onnxruntime.providers.sharing import lend
from epctx_onnxruntime.real import onnxruntime

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onnx import NodeProto, ValueInfoProto

    from epctx_core.plugin import ContextNode, Partition, ValueInfo

EMBED_LIMIT = 16 << 20
"""Bytes up to which a payload in memory is copied into the model of its session; a
larger one gets a file, and one that is a file is always named.
"""
VALUES = "epctx_value_names"
"""Attribute of nodes whose inputs and outputs the EP finds by name: the names, in
order, when it compiled.
"""


class VendorSession(OnnxRuntimeModel):
    """Session over one program of a vendor, with positional inputs and outputs."""

    def set_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Pass options on to the EP while the session lives."""
        self._state[1].set_ep_dynamic_options(dict(options))

    def close(self) -> None:
        """Free the session; nothing of this object may be called any more."""
        del self._state, self._call


def open_context(
    name: str,
    attributes: Mapping[str, Any],
    boundary: tuple[Sequence[ValueInfo], Sequence[ValueInfo]],
    content: Path | bytes,
    options: onnxruntime.SessionOptions,
) -> VendorSession:
    """Create a session over one EPContext node.

    Args:
        name: of the node and of the graph in its payload.
        attributes: those of the node except `ep_cache_context`, `embed_mode` and
            `main_context`.
        boundary: the inputs and outputs.
        content: the payload.
        options: of the session.

    Raises:
        InvalidGraph: onnxruntime or the EP refuses the node.
    """
    cache: bytes | str = content if isinstance(content, bytes) else content.name
    if isinstance(content, Path):
        options.add_session_config_entry(
            "ep.context_file_path", str(content.with_name("model.onnx"))
        )
    node = helper.make_node(
        CONTEXT,
        [value.name for value in boundary[0]],
        [value.name for value in boundary[1]],
        name=name,
        domain=DOMAIN,
        **{
            **attributes,
            "embed_mode": int(isinstance(content, bytes)),
            "main_context": 1,
            "ep_cache_context": cache,
        },
    )
    values = [
        [helper.make_tensor_value_info(v.name, v.elem_type or 0, v.shape) for v in side]
        for side in boundary
    ]
    return open_model(_make_context_model(node, *values), name, options)


def name_values(
    node: ContextNode, names: Any
) -> tuple[list[ValueInfo], list[ValueInfo]]:
    """Return inputs and outputs of a node under the names that its graph knows: by
    default those of the model.

    Raises:
        InvalidGraph: the names fit another node.
    """
    values = [*node.inputs, *node.outputs]
    if names is None:
        names = [value.name for value in values]
    if not isinstance(names, list) or len(names) != len(values):
        raise InvalidGraph(
            f"the attribute {VALUES} of {node.name!r} does not name its "
            f"{len(values)} inputs and outputs.",
            node=node.name,
            hint="Compile the model again.",
        )
    named = [
        value._replace(name=str(name))
        for value, name in zip(values, names, strict=True)
    ]
    return named[: len(node.inputs)], named[len(node.inputs) :]


def open_partition(
    partition: Partition, options: onnxruntime.SessionOptions
) -> VendorSession:
    """Create a session over the nodes of a partition, whose weights stay where they
    are.

    Raises:
        InvalidGraph: onnxruntime or the EP refuses the model.
    """
    weights = {name: view.array() for name, view in partition.weights.items()}
    arrays, model = place_weights(partition.model(), weights)
    keep_distinct_names(model.graph)
    owned = weights, arrays, lend(arrays, options)
    return open_model(model, partition.name, options, owned)


def open_bytes(
    content: bytes, name: str, options: onnxruntime.SessionOptions
) -> VendorSession:
    """Create a session over a model.

    Raises:
        InvalidGraph: it is damaged, or onnxruntime refuses it.
    """
    try:
        model = ModelProto.FromString(content)
    except DecodeError as error:
        raise InvalidGraph(
            f"the model of {name!r} is damaged: {error}", node=name
        ) from error
    return open_model(model, name, options)


def open_model(
    model: ModelProto,
    name: str,
    options: onnxruntime.SessionOptions,
    owned: object = (),
) -> VendorSession:
    """Create a session.

    Args:
        model: the model.
        name: its name in messages.
        options: of the session.
        owned: memory that the session reads.

    Raises:
        InvalidGraph: onnxruntime or the EP refuses the model.
    """
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, enable_fallback=0
        )
    except MemoryError:
        raise
    except Exception as error:  # onnxruntime's exceptions have no base of their own
        raise InvalidGraph(
            f"onnxruntime does not load {name!r}: {quote(error)}",
            node=name,
            hint=(
                "Fetch the context binary again, or compile the model again with the "
                "versions installed here."
            ),
        ) from error
    return VendorSession(session, model, owned)


def try_options(options: onnxruntime.SessionOptions) -> None:
    """Create a session over one node that no EP takes.

    Raises:
        Exception: onnxruntime's: it does not create the EP with the options.
    """
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    node = helper.make_node("Identity", ["x"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "probe", [x], [y]),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    onnxruntime.InferenceSession(model.SerializeToString(), options, enable_fallback=0)


def _make_context_model(
    node: NodeProto,
    inputs: Iterable[ValueInfoProto],
    outputs: Iterable[ValueInfoProto],
) -> ModelProto:
    """Return a model of one EPContext node, as onnxruntime would have written it."""
    graph = helper.make_graph([node], node.name, list(inputs), list(outputs))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
