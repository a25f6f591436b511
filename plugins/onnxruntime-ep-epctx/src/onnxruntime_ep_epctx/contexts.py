"""EPContext nodes between epctx and onnxruntime, which writes the context model.

epctx keeps digests of payloads in a manifest, in the metadata of a model. onnxruntime
lets no EP write metadata, so the manifest travels in an attribute of the EP's first
node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core import (
    GraphOptimizationLevel,
    ModelCompiler,
    OrtExternalInitializerInfo,
    SessionOptions,
)
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.plugin.protos import (
    GraphProto,
    ModelProto,
    NodeProto,
)
from onnxruntime_ep_epctx.graph import MANIFEST

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider
    from onnxruntime_ep_epctx.graph import FusedNode, GraphCopy

MANIFEST_ATTRIBUTE = "epctx_manifest"
_IN_THE_WAY = (
    "onnxruntime writes the model after its binaries, so both cannot be replaced at "
    "once. Remove the model that the file belongs to, choose another output path, or "
    "embed payloads (ep.context_embed_mode=1)."
)
"""Hint for a binary of an older compile."""


def find_context_nodes(
    model: ModelProto,
    cls: type[ExecutionProvider],
) -> list[int]:
    """Return the indices of the EPContext nodes that an EP takes."""
    return [
        index
        for index, node in enumerate(model.graph.node)
        if _is_context_node(node)
        and any(
            each.name == "source"
            and cls.accepts_source(each.s.decode("utf-8", "replace"))
            for each in node.attribute
        )
    ]


def _is_context_node(node: NodeProto) -> bool:
    return (node.op_type, node.domain) == ("EPContext", "com.microsoft")


def name_nodes(
    model: ModelProto,
    fused: Sequence[FusedNode],
) -> list[NodeProto]:
    """Return EPContext nodes under the names that onnxruntime finds them by; the first
    has the manifest.

    Args:
        model: has them, among other nodes.
        fused: onnxruntime's nodes.
    """
    by_output = {name: node for node in model.graph.node for name in node.output}
    compiled = [by_output[each.outputs[0]] for each in fused]
    manifest = _find_manifest(compiled, model)
    names: dict[str, str] = {}
    nodes = []
    for original, each in zip(compiled, fused, strict=True):
        node = NodeProto()
        node.CopyFrom(original)
        _drop_manifest(node)
        names[node.name] = node.name = each.name
        nodes.append(node)
    if manifest:
        text = _rename_embedded(manifest, names).encode()
        nodes[0].attribute.add(name=MANIFEST_ATTRIBUTE, type="STRING", s=text)
    return nodes


def check_folder(
    nodes: Sequence[NodeProto],
    path: str,
    target: str,
) -> None:
    """Check that payloads of a compiled model lie where a copy of it looks for them.

    Raises:
        InvalidArgument: the copy is to be written into another folder.
    """
    folders = {Path(each).parent.resolve() for each in (path, target)}
    is_external = any(
        each.name == "embed_mode" and not each.i
        for node in nodes
        for each in node.attribute
    )
    if is_external and len(folders) > 1:
        raise InvalidArgument(
            "the model is compiled already, and its payloads lie in another folder "
            "than the one to be written.",
            path=path or None,
            hint="Compile its source, or compile it with epctx, which copies them.",
        )


def _find_manifest(
    nodes: Iterable[NodeProto],
    model: ModelProto,
) -> str:
    """Return the manifest of EPContext nodes: onnxruntime's models have it in a node,
    epctx's in their metadata.
    """
    found = [
        each.s.decode("utf-8", "replace")
        for node in nodes
        for each in node.attribute
        if each.name == MANIFEST_ATTRIBUTE
    ]
    found += [each.value for each in model.metadata_props if each.key == MANIFEST]
    return found[0] if found else ""


def _drop_manifest(node: NodeProto) -> None:
    for place, each in reversed(list(enumerate(node.attribute))):
        if each.name == MANIFEST_ATTRIBUTE:
            del node.attribute[place]


def keep_context_nodes(
    copy: GraphCopy,
    indices: Sequence[int] | None = None,
) -> GraphCopy:
    """Return a graph of some of its EPContext nodes alone, by default all, and their
    manifest.

    The others are onnxruntime's and other EPs' business: values between are inputs.
    """
    graph = copy.model.graph
    if indices is None:
        nodes = enumerate(graph.node)
        indices = [index for index, node in nodes if _is_context_node(node)]
    kept = GraphProto(name=graph.name)
    model = ModelProto(ir_version=copy.model.ir_version, graph=kept)
    model.opset_import.extend(copy.model.opset_import)
    kept = model.graph
    types = {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}

    for index in indices:
        node = kept.node.add()
        node.CopyFrom(graph.node[index])
        _drop_manifest(node)

    made = dict.fromkeys(name for node in kept.node for name in node.output if name)
    read = dict.fromkeys(name for node in kept.node for name in node.input if name)
    kept.input.extend(types[name] for name in read if name not in made)
    kept.output.extend(types[name] for name in made)
    manifest = _find_manifest((graph.node[index] for index in indices), copy.model)
    if manifest:
        model.metadata_props.add(key=MANIFEST, value=manifest)
    return replace(copy, model=model, data=model.SerializeToString())


def export(
    copy: GraphCopy,
    options: SessionOptions,
    entries: Mapping[str, str],
) -> ModelProto:
    """Return the context model of a graph; its files are published in the folder of
    the one that onnxruntime writes.

    Raises:
        EpctxError: see `ModelCompiler`.
    """
    # Without a path, onnxruntime names the model after its source.
    default = copy.path and f"{copy.path.removesuffix('.onnx')}_ctx.onnx"
    path = Path(entries.get("ep.context_file_path") or default)
    # A model from bytes has no folder, and of subgraphs onnxruntime writes no EPContext
    # nodes: a file would be nobody's.
    embeds = (
        entries.get("ep.context_embed_mode") == "1" or not path.name or copy.is_subgraph
    )
    compiler = ModelCompiler(
        options,
        copy.data,
        embed_compiled_data_into_model=embeds,
        graph_optimization_level=GraphOptimizationLevel.ORT_DISABLE_ALL,
        # onnxruntime has the others, and writes them.
        get_initializer_location_func=_leave_out,
    )
    if not embeds:
        compiler.set_ep_context_binary_information(path.parent, path.name)
    try:
        model: ModelProto = ModelProto.FromString(compiler.compile_to_bytes())
    except Fail as error:
        if error.path and Path(error.path).is_file():
            error.hint = _IN_THE_WAY
        raise
    return model


def _leave_out(
    _name: str,
    value: Any,
    _present: object,
) -> OrtExternalInitializerInfo:
    """Say that an initializer lies elsewhere, which is true."""
    return OrtExternalInitializerInfo("memory", 0, value.tensor_size_in_bytes())


def _rename_embedded(
    manifest: str,
    names: Mapping[str, str],
) -> str:
    """Return a manifest in which embedded payloads have the names of their nodes in
    onnxruntime's model.
    """
    facts = json.loads(manifest)
    for payload in facts["payloads"]:
        if payload["embedded"]:
            payload["name"] = names.get(payload["name"], payload["name"])
        if "references" in payload:
            payload["references"] = [names.get(n, n) for n in payload["references"]]
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))
