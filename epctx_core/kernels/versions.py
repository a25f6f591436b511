"""Which IR and operator versions onnxruntime reads, and models written so that it reads them.

onnx is often a release ahead: a model of the newest version whose operators are all older is the same
model with an older number on it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import onnx
import onnxruntime
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi

from epctx_core.graph.bodies import bodies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from onnx import ModelProto, NodeProto, OperatorSetIdProto

_FATAL_ONLY = 4
_SURE_IR = 10
_SURE_OPSETS = {"": 21, "ai.onnx": 21, "ai.onnx.ml": 4}
"""Read by every onnxruntime that is new enough for us: nothing to find out."""

_BEYOND = 1000
_IR_LIMIT = re.compile(r"max supported IR version: (\d+)")
_OPSET_LIMIT = re.compile(r"support for domain \S+ is till opset (\d+)")


def fit_versions(model: ModelProto) -> None:
    """Lower a model's version numbers to what onnxruntime reads, in place, where that changes nothing."""
    if model.ir_version > _SURE_IR:
        model.ir_version = min(model.ir_version, newest_ir_version())
    _fit_imports(model.opset_import, model.graph.node)
    for function in model.functions:
        _fit_imports(function.opset_import, function.node)


def _fit_imports(
    imports: RepeatedCompositeFieldContainer[OperatorSetIdProto], nodes: Iterable[NodeProto]
) -> None:
    for opset in imports:
        if opset.version > _SURE_OPSETS.get(opset.domain, _BEYOND):
            newest = newest_opset(opset.domain)
            if opset.version > newest and all(
                _since(node, opset.version) <= newest for node in _all_nodes(nodes, opset.domain)
            ):
                opset.version = newest


def _all_nodes(nodes: Iterable[NodeProto], domain: str) -> Iterator[NodeProto]:
    """Yield the nodes of a domain, those in bodies too."""
    for node in nodes:
        if node.domain == domain or {node.domain, domain} == {"", "ai.onnx"}:
            yield node
        for body in bodies(node):
            yield from _all_nodes(body.node, domain)


def _since(node: NodeProto, version: int) -> int:
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except (onnx.defs.SchemaError, TypeError):
        # TypeError: a version of more than 31 bits, or a name that is no text, in a model that nobody checked.
        return _BEYOND


@lru_cache(maxsize=1)
def newest_ir_version() -> int:
    """Return the newest IR version that onnxruntime reads, by asking it for one that is too new."""
    return _limit(_IR_LIMIT, ir_version=_BEYOND)


@lru_cache(maxsize=16)
def newest_opset(domain: str) -> int:
    """Return the newest version of a domain's operators that onnxruntime reads."""
    return _limit(_OPSET_LIMIT, domain=domain, opset=_BEYOND)


def _limit(pattern: re.Pattern[str], *, ir_version: int = _SURE_IR, domain: str = "", opset: int = 21) -> int:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "probe",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])],
    )
    imports = {"": 21, domain: opset}
    probe = helper.make_model(
        graph, ir_version=ir_version, opset_imports=[helper.make_opsetid(d, v) for d, v in imports.items()]
    )
    try:
        load_structure(probe)
    except Exception as error:  # noqa: BLE001 - onnxruntime's exception classes have no base of their own
        found = pattern.search(str(error))
        if found:
            return int(found.group(1))
    return _BEYOND


def load_structure(model: ModelProto) -> capi.InferenceSession:
    """Have onnxruntime read a model and resolve its types, without looking for kernels."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    return capi.InferenceSession(options, model.SerializeToString(), False, False)
