"""`inspect_model`: what is in a context model, read from its structure; no plugin is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.context.decoding import decode_model
from epctx_core.context.manifest import read_manifest
from epctx_core.context.named_files import external_locations, stated_dependencies
from epctx_core.context.node import ContextNodeRecord, read_context_nodes
from epctx_core.context.paths import ModelFolder
from epctx_core.context.weightless import FILE_ATTRIBUTE, MODE_KEY, files_of
from epctx_core.errors import InvalidGraph, errors_typed
from epctx_core.graph.bodies import all_graphs
from epctx_core.graph.model_io import names_as_text, read_model, text_of
from epctx_core.graph.type_table import tensor_type
from epctx_core.registry import Registry, default_registry
from epctx_core.sessions.loading import find_maker

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

    from epctx_core.context.manifest import Manifest
    from epctx_core.graph.bodies import BodyPath
    from epctx_core.options import InputBudget


@dataclass(frozen=True, kw_only=True)
class ContextNodeInfo:
    """One EPContext node.

    Attributes:
        body: the body that holds it, such as `loop_3.body/If_0.then_branch`; empty in the main graph.
        payload_file: the name of its payload's file, None if it is embedded or refers to another node.
        payload_bytes: length of the payload, None for a reference or a missing file.
        problem: why the payload cannot be read, or empty.
        attributes: all attributes but `ep_cache_context`.
        plugin: EP type, distribution, version and state of the plugin that would load it, None if there is none.
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
    """A model, as far as its structure tells.

    Attributes:
        ep_contexts: its EPContext nodes in the model's order.
        other_nodes: how many other nodes the main graph has.
        required_files: what has to lie beside the model: binaries and external weights.
        inputs, outputs: name, type and shape as text.
        producer: name and version of what wrote the model.
        manifest: what epctx wrote about the payloads, None without.
        weightless_mode: the mode it was compiled in, as ONNX Runtime writes it: "1", "2", or empty.
        source_files: what has to be there of the source model, if payloads left weights in it: beside the
            model, or where the host says.
        external_dependencies: what the model says itself that it needs besides its file, in ONNX Runtime's words:
            `source_model`, `external_weights`, `ep_context_binary`. None if it does not say.
    """

    path: Path | None
    ep_contexts: Sequence[ContextNodeInfo]
    other_nodes: int
    required_files: Sequence[str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    producer: str
    manifest: Manifest | None
    weightless_mode: str
    source_files: Sequence[str]
    external_dependencies: Sequence[str] | None

    @property
    def compiled_by(self) -> Mapping[str, Mapping[str, Any]]:
        """EP type to what the manifest says of who compiled its nodes; see `Manifest.providers`."""
        return self.manifest.providers if self.manifest is not None else {}

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx inspect --json` prints."""
        return {
            "ep_contexts": [
                {
                    **vars(n),
                    "attributes": {k: v for k, v in n.attributes.items() if isinstance(v, (str, int, float))},
                }
                for n in self.ep_contexts
            ],
            "other_nodes": self.other_nodes,
            "required_files": list(self.required_files),
            "inputs": dict(self.inputs),
            "outputs": dict(self.outputs),
            "producer": self.producer,
            "compiled_by": {ep: dict(facts) for ep, facts in self.compiled_by.items()},
            "weightless_mode": self.weightless_mode,
            "source_files": list(self.source_files),
            "external_dependencies": None
            if self.external_dependencies is None
            else list(self.external_dependencies),
        }


@errors_typed("inspecting the model")
@names_as_text()
def inspect_model(
    path_or_bytes: str | os.PathLike[str] | bytes,
    *,
    registry: Registry = default_registry,
    budget: InputBudget | None = None,
) -> ModelInfo:
    """Describe a model without loading anything of its payloads.

    Args:
        path_or_bytes: the model.
        registry: where plugins are looked up.
        budget: what the model may decode to; None for the defaults.

    Raises:
        NoSuchFile, InvalidArgument, InvalidProtobuf: there is no such model, or it is none.
        InvalidGraph: an EPContext node or the manifest is damaged, or a node's, value's or file's name is not UTF-8.
    """
    data, path = read_model(path_or_bytes, budget)
    model = decode_model(data, path, budget)
    records = read_context_nodes(model.graph)
    graphs = dict(all_graphs(model.graph)) if any(record.path for record in records) else {}
    manifest = read_manifest(model, None if budget is None else budget.manifest_entries)
    folder = ModelFolder(path.parent, path) if path is not None else None
    own = "" if path is None else path.name
    named = (*(record.file_name for record in records), *map(text_of, external_locations(model)))
    sources = (str(r.attributes[FILE_ATTRIBUTE]) for r in records if FILE_ATTRIBUTE in r.attributes)
    return ModelInfo(
        path=path,
        ep_contexts=[_node_info(record, graphs, folder, registry, manifest) for record in records],
        other_nodes=len(model.graph.node) - sum(not record.path for record in records),
        required_files=list(dict.fromkeys(name for name in named if name and name != own)),
        inputs=_values(model.graph.input, {t.name for t in model.graph.initializer}),
        outputs=_values(model.graph.output, set()),
        producer=f"{_shown(model.producer_name)} {_shown(model.producer_version)}".strip(),
        manifest=manifest,
        weightless_mode=_shown(next((p.value for p in model.metadata_props if p.key == MODE_KEY), "")),
        source_files=files_of(manifest.source_weights.values() if manifest is not None else (), sources),
        external_dependencies=stated_dependencies(model),
    )


def _node_info(
    record: ContextNodeRecord,
    graphs: Mapping[BodyPath, GraphProto],
    folder: ModelFolder | None,
    registry: Registry,
    manifest: Manifest | None,
) -> ContextNodeInfo:
    size: int | None = None
    problem = ""
    name = record.file_name
    if record.embed_mode and record.cache:
        size = len(record.cache)
    elif name is not None and folder is not None:
        try:
            if manifest is not None:
                manifest.refuse_pending(name, record.name)
            with folder.open(name, what="the context binary", node=record.name) as file:
                size = os.fstat(file.fileno()).st_size
        except InvalidGraph as error:
            problem = error.message
    return ContextNodeInfo(
        name=text_of(record.name),
        body=_body_name(graphs, record),
        source=record.source,
        main_context=int(record.main_context),
        embed_mode=int(record.embed_mode),
        partition_name=record.partition_name,
        payload_file=name,
        payload_bytes=size,
        problem=problem,
        attributes={_shown(key): value for key, value in record.attributes.items()},
        plugin=_plugin(record.source, registry, {} if manifest is None else manifest.providers),
    )


def _plugin(
    source: str, registry: Registry, makers: Mapping[str, Mapping[str, Any]]
) -> dict[str, str | bool | None] | None:
    """Return the plugin that declares a source, by names only: nothing is imported to answer."""
    records = registry.records()
    # In the order in which a load decides: the EP type, a source as declared, a source in another case.
    near = source.casefold()
    takers = [
        *(r for r in records if r.name == source),
        *(r for r in records if source in r.sources),
        *(r for r in records if near in {s.casefold() for s in (r.name, *r.sources)}),
    ]
    record = find_maker(source, makers, registry)
    record = record or next((r for r in takers if r.usable), takers[0] if takers else None)
    if record is None:
        return None
    return {
        "ep": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "state": record.state.value,
        "simulated": record.simulated,
    }


def _shown(text: str | bytes) -> str:
    """Return a text by which nothing is found: a load takes one that is not UTF-8, so it is shown as well as can be."""
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _body_name(graphs: Mapping[BodyPath, GraphProto], record: ContextNodeRecord) -> str:
    parts = []
    for level, (place, attribute) in enumerate(record.path):
        node = graphs[record.path[:level]].node[place]
        name = text_of(node.name) or f"{text_of(node.op_type)}_{place}"
        parts.append(f"{name}.{text_of(attribute)}")
    return "/".join(parts)


def _values(values: Sequence[ValueInfoProto], initialized: set[str]) -> dict[str, str]:
    return {text_of(v.name): str(tensor_type(v.type)) for v in values if v.name not in initialized}
