"""Description of a context model (`inspect_model`), which imports no plugin."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.context.dependencies import list_external_locations, read_dependencies
from epctx_core.context.manifest import NO_MANIFEST, Manifest
from epctx_core.context.metadata import MODE_KEY, get_metadata
from epctx_core.context.model_formats import read_with_manifest
from epctx_core.context.node import (
    ContextNodeRecord,
    read_context_nodes,
)
from epctx_core.context.paths import ModelFolder
from epctx_core.context.payload_reader import find_entry
from epctx_core.errors import InvalidGraph, convert_errors, one_line
from epctx_core.frozen import dataclass
from epctx_core.graph.functions import measure_calls
from epctx_core.graph.model_io import require_text_names
from epctx_core.graph.type_table import make_tensor_type
from epctx_core.graph.walks import SubgraphPath, walk_graphs
from epctx_core.graph.wire import decode_name
from epctx_core.options import SessionConfig
from epctx_core.registry import Registry, default_registry
from epctx_core.registry.records import get_facts
from epctx_core.rendering import render
from epctx_core.sessions.routing import find_maker
from epctx_core.sessions.stages import make_stages

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

    from epctx_core.context.manifest import ProviderFacts
    from epctx_core.graph.mapping import ModelInput
    from epctx_core.options import InputBudget


@dataclass(frozen=True, kw_only=True)
class ContextNodeInfo:
    """One EPContext node.

    Attributes:
        name: name of the node.
        body: the subgraph that holds it, such as `loop_3.body/If_0.then_branch`; empty
            in the main graph.
        source: value of its attribute `source`.
        main_context: 1 for a primary node, 0 for a reference.
        embed_mode: 1 if the payload is in the model.
        partition_name: name of the partition.
        payload_file: the name of its payload's file, None if it is embedded or refers
            to another node.
        payload_bytes: length of the payload, None for a reference or a missing file.
        problem: the reason for which the payload cannot be read, or empty.
        attributes: all attributes but `ep_cache_context`; in JSON those that are text
            or numbers.
        plugin: EP name, distribution, version and state of the plugin that would load
            it, or None.
    """

    name: str
    body: str
    source: str
    main_context: int
    embed_mode: int
    partition_name: str
    payload_file: str | None
    payload_bytes: int | None
    problem: str
    attributes: Mapping[str, Any]
    plugin: Mapping[str, str | bool | None] | None


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """Description of a model by its structure.

    Attributes:
        ep_contexts: its EPContext nodes in the model's order.
        other_nodes: the number of other nodes, those inside subgraphs and functions
            included.
        inside_nodes: the number of nodes inside subgraphs and functions.
        required_files: files that have to lie beside the model: binaries and external
            weights.
        inputs: type and shape as text, by name.
        outputs: type and shape as text, by name.
        producer: name and version of the tool that wrote the model.
        manifest: epctx's record of the payloads, or None.
        weightless_mode: the mode it was compiled in, as ONNX Runtime writes it: "1",
            "2", or empty.
        source_files: files of the source model in which payloads left weights: beside
            the model, or in the folder that the host names.
        external_dependencies: dependencies that the model declares, in ONNX Runtime's
            words: `source_model`, `external_weights`, `ep_context_binary`; None without
            a declaration.
        custom_domains: file name of the library to register, empty for an unknown
            one, by domain of custom operators that a load needs.
    """

    path: Path | None
    ep_contexts: Sequence[ContextNodeInfo]
    other_nodes: int
    inside_nodes: int
    required_files: Sequence[str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    producer: str
    manifest: Manifest | None
    weightless_mode: str
    source_files: Sequence[str]
    external_dependencies: Sequence[str] | None
    custom_domains: Mapping[str, str]

    @property
    def compiled_by(self) -> ProviderFacts:
        """Compilers of each EP's nodes, as the manifest names them."""
        return dict((self.manifest or NO_MANIFEST).providers)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx inspect --json` prints."""
        nodes = [
            {
                **vars(n),
                "attributes": {
                    k: v
                    for k, v in n.attributes.items()
                    if isinstance(v, (str, int, float))
                },
            }
            for n in self.ep_contexts
        ]
        compiled_by = {ep: dict(facts) for ep, facts in self.compiled_by.items()}
        whole = {**vars(self), "ep_contexts": nodes, "compiled_by": compiled_by}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in whole.items()
            if key not in {"path", "manifest"}
        }

    def __str__(self) -> str:
        """Return the description as tables."""
        return self._render()

    def _repr_html_(self) -> str:
        """Return the description as a notebook shows it."""
        return self._render(as_html=True)

    def _render(self, *, as_html: bool = False) -> str:
        name = self.path.name if self.path else "model"
        return render(
            (
                f"{name}: EPContext nodes: {len(self.ep_contexts)}, "
                f"other nodes: {self.other_nodes}"
            ),
            self.as_dict(),
            as_html=as_html,
            ep_contexts="name source payload_file payload_bytes problem",
            inputs="input type",
            outputs="output type",
        )


@convert_errors("inspecting the model")
@require_text_names()
def inspect_model(
    path_or_bytes: ModelInput,
    *,
    registry: Registry = default_registry,
    budget: InputBudget | None = None,
) -> ModelInfo:
    """Describe a model without loading anything of its payloads.

    Args:
        path_or_bytes: the model.
        registry: the registry of EPs.
        budget: limits of the decoded model; None for the defaults.

    Raises:
        NoSuchFile, InvalidArgument, InvalidProtobuf: there is no such model, or it is
            not one.
        InvalidGraph: an EPContext node or the manifest is damaged, functions call each
            other in a circle, or a node's, value's or file's name is not UTF-8.
    """
    model, _, path, manifest = read_with_manifest(path_or_bytes, budget)
    records = read_context_nodes(model.graph)
    graphs = dict(walk_graphs(model.graph))
    folder = ModelFolder(path.parent, path) if path is not None else None
    model_name = "" if path is None else path.name
    locations = (
        *(record.file_name for record in records),
        *map(decode_name, list_external_locations(model)),
    )
    stated = manifest or NO_MANIFEST
    facts = make_stages(SessionConfig(), stated.parts).read_facts(stated, records)
    # A model may have very many nodes, all of a few sources.
    plugins = {
        source: _find_plugin(source, registry, stated.providers)
        for source in {record.source for record in records}
    }
    inside = sum(len(graph.node) for path, graph in graphs.items() if path)
    if model.functions:
        inside += measure_calls(model.graph.node, model.functions)[0]
    return ModelInfo(
        path=path,
        ep_contexts=[
            _describe_node(record, graphs, folder, plugins, stated)
            for record in records
        ],
        other_nodes=len(model.graph.node) + inside - len(records),
        inside_nodes=inside,
        required_files=list(
            dict.fromkeys(name for name in locations if name and name != model_name)
        ),
        inputs=_describe_values(
            model.graph.input, {t.name for t in model.graph.initializer}
        ),
        outputs=_describe_values(model.graph.output, set()),
        producer=f"{_show(model.producer_name)} "
        f"{_show(model.producer_version)}".strip(),
        manifest=manifest,
        weightless_mode=_show(get_metadata(model, MODE_KEY) or ""),
        source_files=facts.files,
        external_dependencies=read_dependencies(model),
        # Hosts may change what they get.
        custom_domains=dict(stated.custom_domains),
    )


def _describe_node(
    record: ContextNodeRecord,
    graphs: Mapping[SubgraphPath, GraphProto],
    folder: ModelFolder | None,
    plugins: Mapping[str, Mapping[str, str | bool | None] | None],
    manifest: Manifest,
) -> ContextNodeInfo:
    size: int | None = None
    problem = ""
    name = record.file_name
    if record.embed_mode and record.cache:
        size = len(record.cache)
    elif name is not None and folder is not None:
        try:
            find_entry(record, manifest)
            with folder.open(name, what="the context binary", node=record.name) as file:
                size = os.fstat(file.fileno()).st_size
        except InvalidGraph as error:
            problem = error.message

    return ContextNodeInfo(
        name=decode_name(record.name),
        body=_name_subgraph(graphs, record),
        source=record.source,
        main_context=int(record.main_context),
        embed_mode=int(record.embed_mode),
        partition_name=record.partition_name,
        payload_file=name,
        payload_bytes=size,
        problem=problem,
        attributes=dict(record.attributes),
        plugin=plugins[record.source],
    )


def _find_plugin(
    source: str, registry: Registry, makers: ProviderFacts
) -> dict[str, str | bool | None] | None:
    """Return the plugin that declares a source, by names only: nothing is imported."""
    takers = [r for r in registry.records() if r.resembles(source)]
    # As a load decides: the EP name, a source as declared, a source in another case.
    takers.sort(key=lambda r: (not r.usable, r.name != source, source not in r.sources))
    record = find_maker(source, makers, registry) or next(iter(takers), None)
    if record is None:
        return None
    shown = get_facts(record, "distribution", "version", "simulated")
    return {"ep": record.name, "state": record.state.value, **shown}


def _show(text: str | bytes) -> str:
    """Return a text for display only, as one line: a load accepts any, also one that is
    not UTF-8.
    """
    return one_line(text.decode(errors="replace") if isinstance(text, bytes) else text)


def _name_subgraph(
    graphs: Mapping[SubgraphPath, GraphProto], record: ContextNodeRecord
) -> str:
    parts = []
    for level, (index, attribute) in enumerate(record.path):
        node = graphs[record.path[:level]].node[index]
        name = decode_name(node.name) or f"{decode_name(node.op_type)}_{index}"
        parts.append(f"{name}.{decode_name(attribute)}")
    return "/".join(parts)


def _describe_values(
    values: Sequence[ValueInfoProto], initialized: set[str]
) -> dict[str, str]:
    return {
        decode_name(v.name): str(make_tensor_type(v.type))
        for v in values
        if v.name not in initialized
    }
