"""Description of a context model (`inspect_model`), which imports no plugin, and the
nodes of each EP of a session.

For caches: a digest of the source, a check of the context model's files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.context.dependencies import list_external_locations, read_dependencies
from epctx_core.context.digests import IN_PLACE
from epctx_core.context.manifest import Manifest, find_manifest, read_manifest
from epctx_core.context.model_formats import decode_model, find_format
from epctx_core.context.node import (
    ContextNodeRecord,
    is_context_node,
    read_context_nodes,
)
from epctx_core.context.paths import ModelFolder
from epctx_core.context.weightless import FILE_ATTRIBUTE, MODE_KEY, list_source_files
from epctx_core.context.weights_folder import WeightsFolder, read_checksum
from epctx_core.errors import InvalidGraph, convert_errors, one_line
from epctx_core.graph.mapping import MappedFile, OpenedFiles
from epctx_core.graph.model_io import (
    decode_name,
    describe_path,
    parse_model,
    read_model,
    require_text_names,
)
from epctx_core.graph.tensor_bytes import read_weight
from epctx_core.graph.type_table import make_tensor_type
from epctx_core.graph.walks import SubgraphPath, walk_graphs, walk_nodes, walk_tensors
from epctx_core.graph.weights import (
    Weight,
    compute_digests_ahead,
    is_detached,
    share_digests,
)
from epctx_core.options import InputBudget, SessionOptions, Verification
from epctx_core.options.choices import CPU_EP
from epctx_core.registry import Registry, default_registry
from epctx_core.sessions.routing import find_maker
from epctx_core.sessions.source import read_one_state, require_one_state

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

    from epctx_core.context.manifest import ProviderFacts
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.mapping import ModelInput
    from epctx_core.sessions.assignment import Assignment


@dataclass(frozen=True, kw_only=True)
class ContextNodeInfo:
    """One EPContext node.

    Attributes:
        body: the body that holds it, such as `loop_3.body/If_0.then_branch`; empty in
            the main graph.
        payload_file: the name of its payload's file, None if it is embedded or refers
            to another node.
        payload_bytes: length of the payload, None for a reference or a missing file.
        problem: the reason for which the payload cannot be read, or empty.
        attributes: all attributes but `ep_cache_context`.
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
        other_nodes: the number of other nodes in the main graph.
        required_files: files that have to lie beside the model: binaries and external
            weights.
        inputs, outputs: name, type and shape as text.
        producer: name and version of the tool that wrote the model.
        manifest: epctx's record of the payloads, or None.
        weightless_mode: the mode it was compiled in, as ONNX Runtime writes it: "1",
            "2", or empty.
        source_files: files of the source model in which payloads left weights: beside
            the model, or in the folder that the host names.
        external_dependencies: dependencies that the model declares, in ONNX Runtime's
            words: `source_model`, `external_weights`, `ep_context_binary`. None without
            a declaration.
        custom_domains: domains of custom operators that a load needs, each with the
            file name of the library to register, empty for an unknown one.
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
    custom_domains: Mapping[str, str]

    @property
    def compiled_by(self) -> ProviderFacts:
        """Compilers of each EP's nodes, as the manifest names them; see
        `Manifest.providers`.
        """
        return self.manifest.providers if self.manifest is not None else {}

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


@convert_errors("inspecting the model")
@require_text_names()
def inspect_model(
    path_or_bytes: str | os.PathLike[str] | bytes,
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
        InvalidGraph: an EPContext node or the manifest is damaged, or a node's, value's
            or file's name is not UTF-8.
    """
    data, path = read_model(path_or_bytes)
    model = decode_model(data, path, budget, find_format(data, path, budget))
    records = read_context_nodes(model.graph)
    graphs = (
        dict(walk_graphs(model.graph)) if any(record.path for record in records) else {}
    )
    manifest = find_manifest(
        model, path, None, (budget or InputBudget()).manifest_entries
    )
    folder = ModelFolder(path.parent, path) if path is not None else None
    own = "" if path is None else path.name
    named = (
        *(record.file_name for record in records),
        *map(decode_name, list_external_locations(model)),
    )
    sources = (
        str(r.attributes[FILE_ATTRIBUTE])
        for r in records
        if FILE_ATTRIBUTE in r.attributes
    )
    return ModelInfo(
        path=path,
        ep_contexts=[
            _node_info(record, graphs, folder, registry, manifest) for record in records
        ],
        other_nodes=len(model.graph.node) - sum(not record.path for record in records),
        required_files=list(
            dict.fromkeys(name for name in named if name and name != own)
        ),
        inputs=_values(model.graph.input, {t.name for t in model.graph.initializer}),
        outputs=_values(model.graph.output, set()),
        producer=f"{_shown(model.producer_name)} "
        f"{_shown(model.producer_version)}".strip(),
        manifest=manifest,
        weightless_mode=_shown(
            next((p.value for p in model.metadata_props if p.key == MODE_KEY), "")
        ),
        source_files=list_source_files(
            manifest.source_weights.values() if manifest else (), sources
        ),
        external_dependencies=read_dependencies(model),
        custom_domains=manifest.custom_domains if manifest else {},
    )


def _node_info(
    record: ContextNodeRecord,
    graphs: Mapping[SubgraphPath, GraphProto],
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
                manifest.check_not_pending(name, record.name)
            with folder.open(name, what="the context binary", node=record.name) as file:
                size = os.fstat(file.fileno()).st_size
        except InvalidGraph as error:
            problem = error.message

    return ContextNodeInfo(
        name=decode_name(record.name),
        body=_body_name(graphs, record),
        source=record.source,
        main_context=int(record.main_context),
        embed_mode=int(record.embed_mode),
        partition_name=record.partition_name,
        payload_file=name,
        payload_bytes=size,
        problem=problem,
        attributes=dict(record.attributes),
        plugin=_plugin(
            record.source, registry, {} if manifest is None else manifest.providers
        ),
    )


def _plugin(
    source: str, registry: Registry, makers: ProviderFacts
) -> dict[str, str | bool | None] | None:
    """Return the plugin that declares a source, by names only: nothing is imported."""
    near = source.casefold()
    takers = [
        r
        for r in registry.records()
        if near in {name.casefold() for name in (r.name, *r.sources)}
    ]
    # As a load decides: the EP name, a source as declared, a source in another case.
    takers.sort(key=lambda r: (not r.usable, r.name != source, source not in r.sources))
    record = find_maker(source, makers, registry) or next(iter(takers), None)
    if record is None:
        return None
    shown = {
        name: getattr(record, name) for name in ("distribution", "version", "simulated")
    }
    return {"ep": record.name, "state": record.state.value, **shown}


def _shown(text: str | bytes) -> str:
    """Return a text for display only, as one line: a load accepts any, also one that is
    not UTF-8.
    """
    return one_line(text.decode(errors="replace") if isinstance(text, bytes) else text)


def _body_name(
    graphs: Mapping[SubgraphPath, GraphProto], record: ContextNodeRecord
) -> str:
    parts = []
    for level, (index, attribute) in enumerate(record.path):
        node = graphs[record.path[:level]].node[index]
        name = decode_name(node.name) or f"{decode_name(node.op_type)}_{index}"
        parts.append(f"{name}.{decode_name(attribute)}")
    return "/".join(parts)


def _values(values: Sequence[ValueInfoProto], initialized: set[str]) -> dict[str, str]:
    return {
        decode_name(v.name): str(make_tensor_type(v.type))
        for v in values
        if v.name not in initialized
    }


class ModelSource:
    """A model and its files of weights.

    Args:
        model: a path or bytes.
        options: the folder of the weights, the initializers that the host replaced
            (which are not read), and the limit of what the model may decode to.
    """

    def __init__(self, model: ModelInput, options: SessionOptions) -> None:
        self._model = model
        self._config = options.config()
        self._path = None if isinstance(model, bytes) else Path(model)

    def status(self, location: str) -> os.stat_result | None:
        """Return the status of the file of weights that a location means now; None if
        there is none.

        Raises:
            EpctxError: the location leads out of the model's folder, or the folder that
                the host named does not exist.
        """
        return WeightsFolder(
            self._path, self._config.external_initializers_folder
        ).status(location)

    @staticmethod
    def check_files(path: Path, *, once: bool = False) -> None:
        """Check the files beside a context model against the digests in the model.

        Args:
            path: the context model.
            once: True to skip files with a receipt, which this machine has checked
                before; False to read every byte.

        Raises:
            InvalidGraph, NoSuchFile: a file is another one or is missing.
            OSError: one cannot be read.
        """
        mode = Verification.ONCE if once else Verification.FULL
        model = parse_model(path.read_bytes(), path)
        manifest = read_manifest(model)
        folder = ModelFolder(path.parent, path)
        for entry in manifest.payloads if manifest is not None else ():
            if not entry.embedded:
                with folder.open(entry.name, what="the context binary") as file:
                    mapped = MappedFile(file.fileno(), file.path)
                IN_PLACE.check(entry, mapped, mode)

        if (checksum := read_checksum(model)) is not None:
            WeightsFolder(path, None, checksum=checksum, verification=mode).open(
                checksum.name, ""
            ).close()

    @require_text_names()
    def read(self) -> tuple[str, bool, Mapping[str, os.stat_result]]:
        """Read the model and its weights; within a `host_call`, a compile does not
        digest the weights again.

        Returns:
            SHA-256 (hex) over the model's bytes and its weights in files, for which the
            names of the folder and of the model's own file do not count; whether it is
            a context model; and the status of each file of weights when it was read, by
            its location as the model names it.

        Raises:
            NoSuchFile, InvalidArgument, InvalidProtobuf, InvalidGraph: as for a load.
        """
        return read_one_state(self._read)

    def _read(
        self, files: OpenedFiles
    ) -> tuple[str, bool, Mapping[str, os.stat_result]]:
        data, path = read_model(self._model, files)
        budget = self._config.input_budget
        other = find_format(data, path, budget)
        proto = decode_model(data, path, budget, other)
        sha = hashlib.sha256(hashlib.sha256(data).digest())
        del data
        replaced = self._config.overrides.initializers
        for tensor in proto.graph.initializer if replaced else ():
            if tensor.name in replaced:
                tensor.ClearField("data_location")
        folder = WeightsFolder(
            self._path, self._config.external_initializers_folder, opened=files
        )
        own = "" if self._path is None else self._path.name
        opened: dict[str, MappedFile] = {}
        weights: dict[tuple[str, int, int], Weight] = {}
        for tensor in filter(is_detached, walk_tensors(proto.graph, proto.functions)):
            weight = read_weight(tensor, opened, folder.open)
            location = next(
                entry.value for entry in tensor.external_data if entry.key == "location"
            )
            # The model's own file is digested as the model; it may have another name
            # next time.
            if location != own:
                offset = weight.mapping[1] if weight.mapping else 0
                weights.setdefault((location, offset, weight.nbytes), weight)

        share_digests(weights.values())
        with compute_digests_ahead(weights.values()):
            for (location, offset, length), weight in sorted(weights.items()):
                text = f"{location}\0{offset} {length} {weight.digest}\n"
                sha.update(text.encode("utf-8", "surrogatepass"))
        roots = (proto.graph.node, *(function.node for function in proto.functions))
        statuses = {
            location: mapped.status
            for location, mapped in opened.items()
            if location != own
        }
        require_one_state(files, describe_path(path))
        return (
            sha.hexdigest(),
            any(map(is_context_node, walk_nodes(chain.from_iterable(roots)))),
            statuses,
        )


@dataclass(frozen=True, kw_only=True)
class OrtEpAssignedNode:
    """One node; attributes as `onnxruntime.OrtEpAssignedNode`."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True, kw_only=True)
class OrtEpAssignedSubgraph:
    """Nodes that an EP runs as one; attributes as `onnxruntime.OrtEpAssignedSubgraph`.

    Attributes:
        ep_name: the EP.
        nodes: the nodes, in the model's order.
    """

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """Return the nodes."""
        return list(self.nodes)


def list_assigned_subgraphs(
    assignment: Assignment,
    eps: Sequence[str],
    loaded: Mapping[str, Sequence[ContextNodeRecord]],
) -> list[OrtEpAssignedSubgraph]:
    """Return the nodes of each EP, those in subgraphs included: EPs in order of
    priority, the CPU EP last.

    A partition is one subgraph; so is each EPContext node, each node that an EP runs by
    a kernel, and each node of the CPU EP.

    Args:
        assignment: of the whole model.
        eps: the session's EPs.
        loaded: EP name to its EPContext nodes.
    """
    graphs: Mapping[object, GraphIndex] = {
        part.graph.path: part.graph for part in assignment.graphs
    }
    groups: list[tuple[str, GraphIndex, Sequence[int]]] = [
        *((p.ep, p.graph, p.node_indices) for p in assignment.partitions),
        *(
            (ep, graphs[r.path], [r.index])
            for ep, records in loaded.items()
            for r in records
        ),
    ]
    for part in assignment.graphs:
        groups += [
            (ep, part.graph, [node]) for node, (ep, _) in part.kernel_nodes.items()
        ]
        groups += [
            (CPU_EP, part.graph, [i])
            for i in sorted({*part.left_over(), *part.executed})
        ]

    order = [*eps, CPU_EP]
    return [
        OrtEpAssignedSubgraph(
            ep_name=ep,
            nodes=tuple(
                OrtEpAssignedNode(
                    name=graph.get_node_name(i),
                    domain=graph.domains[i],
                    op_type=graph.op_types[i],
                )
                for i in nodes
            ),
        )
        for ep, graph, nodes in sorted(groups, key=lambda group: order.index(group[0]))
    ]
