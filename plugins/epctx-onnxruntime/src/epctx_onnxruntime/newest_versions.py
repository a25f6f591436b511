"""Newest versions that the installed onnxruntime reads, found by loading models.

onnx is often a release ahead. A model of the newest version whose operators are all
older is the same model with a lower version number.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from epctx_core.plugin.protos import ModelProto, TensorProto, make_tensor_value_info
from epctx_onnxruntime.graphs import subgraphs
from epctx_onnxruntime.real import native
from epctx_onnxruntime.versions import SURE_IR, SURE_OPSETS, quiet_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from onnx import NodeProto, OperatorSetIdProto

    from epctx_onnxruntime.real import onnxruntime

_BEYOND = 1000
_MOST_LATER = 64
"""Versions after the sure ones that are tried: `ALLOW_RELEASED_ONNX_OPSET_ONLY=0` has
onnxruntime take any number.
"""


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
    import onnx

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
    return _find_newest(SURE_IR, lambda version: make_probe(ir_version=version))


@cache
def newest_opset(domain: str) -> int:
    """Return the newest opset version of an ONNX domain that onnxruntime reads."""
    sure = SURE_OPSETS[domain]
    return _find_newest(sure, lambda version: make_probe({domain: version}))


def _find_newest(sure: int, make: Callable[[int], ModelProto]) -> int:
    """Return the last version of which onnxruntime reads a model; onnx is not asked for
    its own, as it takes long to import.
    """
    newest = sure
    with suppress(Exception):  # onnxruntime's exceptions have no base of their own
        for version in range(sure + 1, sure + _MOST_LATER):
            load_structure(make(version))
            newest = version
    return newest


def make_probe(
    imports: Mapping[str, int] = MappingProxyType({}), *, ir_version: int = SURE_IR
) -> ModelProto:
    """Return a model of one node, which every onnxruntime reads in versions that it
    has.

    Args:
        imports: of operator sets, beside or instead of the default domain's sure one.
        ir_version: of the model.
    """
    model = ModelProto(ir_version=ir_version)
    for domain, version in {"": SURE_OPSETS[""], **imports}.items():
        model.opset_import.add(domain=domain, version=version)
    graph = model.graph
    graph.name = "probe"
    graph.node.add(op_type="Identity", input=["x"], output=["y"])
    graph.input.append(make_tensor_value_info("x", TensorProto.FLOAT, [1]))
    graph.output.append(make_tensor_value_info("y", TensorProto.FLOAT, [1]))
    return model


def load_structure(
    model: ModelProto, options: onnxruntime.SessionOptions | None = None
) -> native.InferenceSession:
    """Load a model and resolve its types, without kernels."""
    return native.InferenceSession(
        options or quiet_options(), model.SerializeToString(), False, False
    )
