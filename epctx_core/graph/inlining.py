"""Functions that a model defines for itself are put in place of their calls, so that EPs see operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx.inliner

from epctx_core.errors import InvalidGraph
from epctx_core.graph.bodies import bodies
from epctx_core.graph.functions import used_functions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from onnx import FunctionProto, GraphProto, ModelProto, OperatorSetIdProto

    from epctx_core.graph.model_io import SourceModel

FunctionId = tuple[str, str]
"""Domain and name of a function."""


def inline_functions(source: SourceModel, kept: Collection[FunctionId] = ()) -> None:
    """Put function bodies in place of their calls, in place; functions that nothing calls then are dropped.

    A function may be written for other operator versions than the model's: the checker has made sure
    that its operators are the same in both.

    Args:
        source: a model without its large weights.
        kept: functions whose calls stay.

    Raises:
        InvalidGraph: a function is not valid.
    """
    proto = source.proto
    if not proto.functions:
        return
    _add_imports(proto)
    versions = {o.domain: o.version for o in proto.opset_import}
    for function in proto.functions:
        if (function.domain, function.name) not in kept:
            _move_to_versions(function, versions)
    source.proto = inlined = _inlined(source, kept)
    left = used_functions(inlined.graph.node, inlined.functions)
    del inlined.functions[:]
    inlined.functions.extend(left)
    _spell_default_domain(inlined.graph)


def _inlined(source: SourceModel, kept: Collection[FunctionId]) -> ModelProto:
    proto = source.proto
    calls = [key for f in proto.functions if (key := (f.domain, f.name)) in kept]
    try:
        if calls:
            return onnx.inliner.inline_selected_functions(proto, calls, exclude=True)
        return onnx.inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        text = " ".join(str(error).split())
        raise InvalidGraph(
            f"the functions of {source.where} cannot be put in place of their calls: {text}", path=source.path
        ) from error


def _add_imports(proto: ModelProto) -> None:
    """Import the domains that only functions import: their nodes are about to be the model's."""
    known = {o.domain for o in proto.opset_import}
    for function in proto.functions:
        for opset in function.opset_import:
            if opset.domain not in known:
                known.add(opset.domain)
                proto.opset_import.add(domain=opset.domain, version=opset.version)


def _move_to_versions(function: FunctionProto, versions: Mapping[str, int]) -> None:
    """Make a function import the model's versions where its operators are the same in both."""
    for opset in function.opset_import:
        wanted = versions.get(opset.domain, opset.version)
        if wanted != opset.version and all(
            _since(node.op_type, opset) == _since(node.op_type, opset, wanted)
            for node in function.node
            if node.domain == opset.domain
        ):
            opset.version = wanted


def _since(op_type: str, opset: OperatorSetIdProto, version: int | None = None) -> int:
    """Return the version of an operator that an import gives; 0 for one that onnx does not know."""
    try:
        return int(onnx.defs.get_schema(op_type, version or opset.version, opset.domain).since_version)
    except onnx.defs.SchemaError:
        return 0


def _spell_default_domain(graph: GraphProto) -> None:
    """Write the default domain as the empty string; function bodies also call it "ai.onnx"."""
    for node in graph.node:
        if node.domain == "ai.onnx":
            node.domain = ""
        for body in bodies(node):
            _spell_default_domain(body)
