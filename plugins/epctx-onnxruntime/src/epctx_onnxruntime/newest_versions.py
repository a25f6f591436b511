"""Newest versions that the installed onnxruntime reads, found by loading models.

onnx is often a release ahead. A model of the newest version whose operators are all
older is the same model with a lower version number.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import onnx
from onnx import helper

from epctx_onnxruntime.graphs import subgraphs
from epctx_onnxruntime.real import native
from epctx_onnxruntime.versions import SURE_IR, SURE_OPSETS, quiet_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from onnx import ModelProto, NodeProto, OperatorSetIdProto

    from epctx_onnxruntime.real import onnxruntime

_BEYOND = 1000


def fit_versions(model: ModelProto) -> None:
    """Lower a model's version numbers in place to those that onnxruntime reads, if that
    changes nothing else.
    """
    if model.ir_version > SURE_IR:
        model.ir_version = min(model.ir_version, newest_ir_version())
    _fit_imports(model.opset_import, model.graph.node)
    for function in model.functions:
        _fit_imports(function.opset_import, function.node)


def _fit_imports(
    imports: RepeatedCompositeFieldContainer[OperatorSetIdProto],
    nodes: Iterable[NodeProto],
) -> None:
    # Not other domains: it would take milliseconds to find the newest version of each.
    for domain, sure in SURE_OPSETS.items():
        above = [
            opset
            for opset in imports
            if opset.domain == domain and opset.version > sure
        ]
        if not above:
            continue
        highest = max(opset.version for opset in above)
        of_domain = list(_list_nodes(nodes, domain))
        # Quantisers import domains that no node is of; nothing depends on those, and
        # what onnxruntime reads takes milliseconds to find.
        newest = newest_opset(domain) if of_domain else sure
        if highest > newest and all(
            _find_since(node, highest) <= newest for node in of_domain
        ):
            for opset in above:
                opset.version = min(opset.version, newest)


def _list_nodes(nodes: Iterable[NodeProto], domain: str) -> Iterator[NodeProto]:
    """Yield the nodes of a domain, those in subgraphs too."""
    for node in nodes:
        if node.domain == domain or {node.domain, domain} == {"", "ai.onnx"}:
            yield node
        for subgraph in subgraphs(node):
            yield from _list_nodes(subgraph.node, domain)


def _find_since(node: NodeProto, version: int) -> int:
    try:
        return int(
            onnx.defs.get_schema(node.op_type, version, node.domain).since_version
        )
    except (onnx.defs.SchemaError, TypeError):
        # TypeError: a version of more than 31 bits, or a name that is not text, in an
        # unchecked model.
        return _BEYOND


@cache
def newest_ir_version() -> int:
    """Return the newest IR version of onnx that onnxruntime reads."""
    versions = range(onnx.IR_VERSION, SURE_IR, -1)
    return next(
        (v for v in versions if _reads({"": SURE_OPSETS[""]}, ir_version=v)), SURE_IR
    )


@cache
def newest_opset(domain: str) -> int:
    """Return the newest opset version of an ONNX domain that onnxruntime reads."""
    schemas = onnx.defs.get_all_schemas_with_history()
    onnx_domain = "" if domain == "ai.onnx" else domain
    newest = max(
        schema.since_version for schema in schemas if schema.domain == onnx_domain
    )
    sure = SURE_OPSETS[domain]
    return next(
        (
            v
            for v in range(newest, sure, -1)
            if _reads({"": SURE_OPSETS[""], domain: v})
        ),
        sure,
    )


def _reads(imports: Mapping[str, int], *, ir_version: int = SURE_IR) -> bool:
    """Return whether onnxruntime reads a model of these versions."""
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
        for name in "xy"
    ]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "probe", values[:1], values[1:]
    )
    opsets = [
        helper.make_opsetid(domain, version) for domain, version in imports.items()
    ]
    try:
        load_structure(
            helper.make_model(graph, ir_version=ir_version, opset_imports=opsets)
        )
    except Exception:  # noqa: BLE001 - onnxruntime's exception classes have no base of their own
        return False
    return True


def load_structure(
    model: ModelProto, options: onnxruntime.SessionOptions | None = None
) -> native.InferenceSession:
    """Load a model and resolve its types, without kernels."""
    return native.InferenceSession(
        options or quiet_options(), model.SerializeToString(), False, False
    )
