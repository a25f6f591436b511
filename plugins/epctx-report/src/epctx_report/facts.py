"""Facts of a model beside its cut: what its head says, its files and payloads, and what
a verification found.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from epctx_cli.command import byte_size

from epctx_core import verify_model
from epctx_core.errors import InvalidGraph
from epctx_core.ext import ModelFolder
from epctx_report.reading import walk_weights

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

    from epctx_core import (
        ContextNodeInfo,
        ModelInfo,
        SessionOptions,
    )
    from epctx_report.cut import Cut


def list_facts(info: ModelInfo, model: ModelProto) -> list[dict[str, str]]:
    """Return facts by name, in the order to read them."""
    return [{"name": name, "value": value} for name, value in _iter_facts(info, model)]


def _iter_facts(info: ModelInfo, model: ModelProto) -> Iterator[tuple[str, str]]:
    for name, type_ in info.inputs.items():
        yield "input", f"{name}: {type_}"
    for name, type_ in info.outputs.items():
        yield "output", f"{name}: {type_}"
    if info.producer:
        yield "written by", info.producer
    yield "IR version", str(model.ir_version)
    for opset in model.opset_import:
        yield "opset", f"{opset.domain or 'ai.onnx'} {opset.version}"

    yield from _describe_makers(info)
    if info.weightless_mode:
        yield "weights", f"left in the source (weightless mode {info.weightless_mode})"
    for dependency in info.external_dependencies or ():
        yield "declared dependency", dependency
    for domain, library in info.custom_domains.items():
        yield "custom operators", f"{domain}, of {library or 'an unknown library'}"


def _describe_makers(info: ModelInfo) -> Iterator[tuple[str, str]]:
    """Yield what the manifest says about the compile."""
    for ep, compiler in info.compiled_by.items():
        for key, value in compiler.items():
            if value:
                yield f"{ep}: {key}", str(value)

    manifest = info.manifest
    if manifest is None:
        if info.ep_contexts:
            yield "manifest", "none; epctx seal adds digests to what another tool wrote"
    elif manifest.sealed is not None:
        yield "manifest", f"a seal by {manifest.sealed.by}"
    else:
        yield "SHA-256 of the source", manifest.source_digest


def list_context_facts(info: ModelInfo, cut: Cut) -> list[dict[str, Any]]:
    """Return facts of each EPContext node, with the number of the node."""
    boxes = cut.contexts
    return [
        {
            "node": cut.boxes[boxes[node.name]].nodes[0],
            "facts": [
                {"name": name, "value": value}
                for name, value in _iter_context_facts(node)
            ],
        }
        for node in info.ep_contexts
        if node.name in boxes
    ]


def _iter_context_facts(node: ContextNodeInfo) -> Iterator[tuple[str, str]]:
    yield "source", node.source
    if node.embed_mode:
        yield "payload", "embedded"
    elif node.payload_file:
        yield "payload", node.payload_file
    else:
        yield "payload", "that of a primary node"
    if node.payload_bytes is not None:
        yield "size", byte_size(node.payload_bytes)
    if node.problem:
        yield "problem", node.problem
    yield "primary", "yes" if node.main_context else "no"
    if node.partition_name and node.partition_name != node.name:
        yield "partition_name", node.partition_name
    given = {"source", "embed_mode", "main_context", "partition_name"}
    for key, value in node.attributes.items():
        if key not in given:
            yield key, str(value)
    if node.plugin is not None:
        yield "given to", " ".join(
            str(node.plugin[key]) for key in ("distribution", "version")
            if node.plugin.get(key)
        )  # fmt: skip


def list_files(info: ModelInfo, model: ModelProto, cut: Cut) -> list[dict[str, Any]]:
    """Return name, bytes and content of the model's parts and of the files that it
    needs.
    """
    rows = []
    if info.path is not None:
        size = info.path.stat().st_size
        rows.append(_make_file(info.path.name, size, "the model", is_file=True))
    embedded = sum(n.payload_bytes or 0 for n in info.ep_contexts if n.embed_mode)
    inline = sum(len(tensor.raw_data) for tensor in walk_weights(model.graph))
    rows += [
        _make_file(
            "graph",
            max(0, model.ByteSize() - inline - embedded),
            "nodes and names, in the model",
        ),
        _make_file(
            "weights",
            sum(cut.weight_bytes.values()),
            "initializers and tensors of Constant nodes, in the model or in files",
        ),
    ]
    if embedded:
        rows.append(_make_file("embedded payloads", embedded, "in the model"))

    readers = _list_readers(info)
    for name in info.required_files:
        nodes = readers.get(name, [])
        holds = f"payload of {nodes[0]}" if nodes else "weights"
        if len(nodes) > 1:
            holds = f"payload shared by {len(nodes):,} EPContext nodes"
        rows.append(_make_file(name, _measure(info.path, name), holds, is_file=True))

    left: dict[str, int] = {}
    for weight in (info.manifest.source_weights if info.manifest else {}).values():
        left[weight.location] = left.get(weight.location, 0) + weight.nbytes
    rows += [
        _make_file(name or "the source model", size, "weights that payloads left there")
        for name, size in left.items()
    ]
    return rows


def _list_readers(info: ModelInfo) -> dict[str, list[str]]:
    """Return the EPContext nodes that read each file, by its name.

    A node without a payload reads one of its source's primary nodes, which it does not
    name.
    """
    files: dict[str, list[str]] = {}
    by_source: dict[str, set[str]] = {}
    for node in info.ep_contexts:
        if node.payload_file:
            files.setdefault(node.payload_file, []).append(node.name)
            by_source.setdefault(node.source, set()).add(node.payload_file)
    for node in info.ep_contexts:
        names = by_source.get(node.source, set())
        if not node.main_context and len(names) == 1:
            files[min(names)].append(node.name)
    return files


def _make_file(
    name: str, size: int | None, holds: str, *, is_file: bool = False
) -> dict[str, Any]:
    return {"name": name, "bytes": size, "holds": holds, "is_file": is_file}


def _measure(model: Path | None, name: str) -> int | None:
    """Return the size of a file beside a model, None for one that cannot be opened."""
    if model is None:
        return None
    try:
        folder = ModelFolder(model.parent, model)
        with folder.open(name, what="the file", node=None) as file:
            return os.fstat(file.fileno()).st_size
    except InvalidGraph:
        return None


def describe_checks(info: ModelInfo, options: SessionOptions) -> dict[str, Any]:
    """Verify a context model; return its payloads, the verdict, and what was found.

    A plain model has nothing to verify.
    """
    if not info.ep_contexts or info.path is None:
        return {"payloads": [], "verdict": None, "findings": []}

    report = verify_model(info.path, options)
    refused = {f.node for f in report.findings if f.severity.value == "error"}
    # Of two with one name, the first counts.
    read = {payload.name: payload for payload in reversed(report.payloads)}
    return {
        "payloads": [
            {
                "node": node.name,
                "source": node.source,
                "file": node.payload_file or "embedded",
                "bytes": node.payload_bytes,
                "state": _describe_state(node, refused, read),
            }
            for node in info.ep_contexts
            if node.main_context
        ],
        "verdict": report.verdict.replace("-", " "),
        "findings": [
            {
                "severity": finding.severity.value,
                "code": finding.code,
                "message": finding.message,
                "hint": finding.hint,
            }
            for finding in report.findings
        ],
    }


def _describe_state(
    node: ContextNodeInfo,
    refused: Collection[str | None],
    read: Mapping[str, Any],
) -> str:
    if node.problem:
        return node.problem
    if node.name in refused:
        return "refused, see what was found"
    payload = read.get(node.payload_file or node.name)
    if payload is None:
        return "not read"
    digests = "digests right" if payload.digests else "without digests"
    seen = payload.looked_into_by
    return f"{digests}, checked by {seen}" if seen else digests
