"""Types of values that onnx cannot infer, because it does not know an operator: asked of onnxruntime.

Operators of `com.microsoft` have their schemas in onnxruntime alone. Without it such types stay unknown.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from typing import TYPE_CHECKING, Any

import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger("epctx.kernels")
_ONNX_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training"}
)
_TENSOR = re.compile(r"tensor\((\w+)\)")
_ELEMENTS = {name.lower(): number for name, number in TensorProto.DataType.items()}


def resolve_types(inferred: ModelProto) -> list[ValueInfoProto]:
    """Return declarations for values of the main graph that inference left without a type.

    Empty at no cost where all operators are onnx's own, and where onnxruntime is not installed or
    cannot read the model.

    Args:
        inferred: a model after onnx's inference, without detached weights.
    """
    if all(opset.domain in _ONNX_DOMAINS for opset in inferred.opset_import):
        return []
    unknown = _unknown_names(inferred)
    if not unknown or not onnxruntime_is_installed():
        return []
    probe = ModelProto()
    probe.CopyFrom(inferred)
    declared = {value.name for value in probe.graph.output}
    for name in unknown:
        if name not in declared:
            probe.graph.output.add(name=name)
    try:
        from epctx_core.kernels.versions import fit_versions, load_structure

        fit_versions(probe)
        found = load_structure(probe).outputs_meta
    except Exception as error:  # noqa: BLE001 - onnxruntime's exception classes have no base of their own
        _log.debug("onnxruntime does not resolve the types of %d values: %s", len(unknown), error)
        return []
    return [declared for value in found if value.name in unknown for declared in _declared(value)]


def onnxruntime_is_installed() -> bool:
    """Whether there is an onnxruntime to ask."""
    return importlib.util.find_spec("onnxruntime") is not None


def _unknown_names(model: ModelProto) -> set[str]:
    """Return the outputs without a type; none if no operator of another domain made one of them."""
    graph = model.graph
    typed = {v.name for values in (graph.value_info, graph.output) for v in values if _is_typed(v)}
    unknown: set[str] = set()
    foreign = False
    for node in graph.node:
        missing = [name for name in node.output if name and name not in typed]
        if missing:
            unknown.update(missing)
            foreign = foreign or node.domain not in _ONNX_DOMAINS
    return unknown if foreign else set()


def _is_typed(value: ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or bool(value.type.tensor_type.elem_type))


def _declared(value: Any) -> Iterator[ValueInfoProto]:
    """Yield onnxruntime's finding as ONNX writes it, for tensors."""
    match = _TENSOR.fullmatch(value.type)
    element = _ELEMENTS.get(match.group(1)) if match else None
    if element is not None:
        # It says [] both for a scalar and where not even the rank is known.
        yield onnx.helper.make_tensor_value_info(value.name, element, value.shape or None)
