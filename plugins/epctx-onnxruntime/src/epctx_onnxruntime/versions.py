"""The installed onnxruntime: the versions that it reads, and the layout of its convolutions on this CPU.

All of it is found out by giving it models. onnx is often a release ahead: a model of the newest version whose operators
are all older is the same model with an older number on it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi

from epctx_onnxruntime.graphs import bodies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from onnx import ModelProto, NodeProto, OperatorSetIdProto

CPU_EP = "CPUExecutionProvider"
FATAL_ONLY = 4
"""The level of onnxruntime's log at which it says nothing that its exceptions do not say."""
_SURE_IR = 10
_SURE_OPSETS = {"": 21, "ai.onnx": 21, "ai.onnx.ml": 4}
"""Read by every onnxruntime that is new enough for us: nothing to find out."""

_BEYOND = 1000


def quiet_options() -> onnxruntime.SessionOptions:
    """Return options of a session that finds something out and runs nothing: a thread pool would cost more than that."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


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
    # Other domains are left alone: to find out what is read of each would take onnxruntime milliseconds.
    for domain, sure in _SURE_OPSETS.items():
        above = [opset for opset in imports if opset.domain == domain and opset.version > sure]
        highest = max((opset.version for opset in above), default=sure)
        if highest > sure and highest > (newest := newest_opset(domain)):
            fits = all(_since(node, highest) <= newest for node in _all_nodes(nodes, domain))
            for opset in above if fits else ():
                opset.version = min(opset.version, newest)


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


@cache
def newest_ir_version() -> int:
    """Return the newest IR version of those that onnx has which onnxruntime reads, by giving it models."""
    versions = range(onnx.IR_VERSION, _SURE_IR, -1)
    return next((v for v in versions if _reads({"": _SURE_OPSETS[""]}, ir_version=v)), _SURE_IR)


@cache
def newest_opset(domain: str) -> int:
    """Return the newest version of an ONNX domain's operators of those that onnx has which onnxruntime reads."""
    schemas = onnx.defs.get_all_schemas_with_history()
    own = "" if domain == "ai.onnx" else domain
    newest = max(schema.since_version for schema in schemas if schema.domain == own)
    sure = _SURE_OPSETS[domain]
    imports = {"": _SURE_OPSETS[""]}
    return next((v for v in range(newest, sure, -1) if _reads({**imports, domain: v})), sure)


def _reads(imports: Mapping[str, int], *, ir_version: int = _SURE_IR) -> bool:
    """Whether onnxruntime reads a model of these versions."""
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "probe", values[:1], values[1:])
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    try:
        load_structure(helper.make_model(graph, ir_version=ir_version, opset_imports=opsets))
    except Exception:  # noqa: BLE001 - onnxruntime's exception classes have no base of their own
        return False
    return True


def load_structure(model: ModelProto) -> capi.InferenceSession:
    """Have onnxruntime read a model and resolve its types, without looking for kernels."""
    return capi.InferenceSession(quiet_options(), model.SerializeToString(), False, False)


@cache
def block_size() -> int:
    """Return the channels in a block on this CPU, as onnxruntime has it; 0 where there is no such layout."""
    size = 0

    def look(
        _name: str, value: onnxruntime.OrtValue, _info: object
    ) -> onnxruntime.OrtExternalInitializerInfo | None:
        nonlocal size
        shape = value.shape()
        if len(shape) == 4:  # noqa: PLR2004 - that of a filter
            size = shape[0] if shape[0] > 1 else 0
        return None

    weight = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 1, 2, 2]) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "probe", values[:1], values[1:], [weight]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    try:
        onnxruntime.ModelCompiler(
            quiet_options(),
            model.SerializeToString(),
            graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
            get_initializer_location_func=look,
        ).compile_to_bytes()
    except Exception:  # noqa: BLE001 - onnxruntime's exceptions have no base; without an answer there is no layout
        return 0
    return size


def layout_of_this_cpu() -> str:
    """Return what models say that are arranged for this CPU: engine and block size."""
    return f"onnxruntime {onnxruntime.__version__} nchwc{block_size()}"
