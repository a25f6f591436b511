"""Result of `epctx inspect`, and what it consists of; see `results`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PluginOfNode:
    """Plugin that would load an EPContext node.

    Attributes:
        ep: the EP's name.
        state: state of the plugin.
        distribution: package that provides it.
        version: version of that package.
        simulated: true if the EP is simulated; null before it was imported.
    """

    ep: str
    state: str
    distribution: str | None
    version: str | None
    simulated: bool | None


@dataclass(frozen=True, kw_only=True)
class ContextNodeFacts:
    """EPContext node.

    Attributes:
        name: name of the node.
        body: subgraph that holds it; empty in the main graph.
        source: value of its attribute `source`.
        main_context: 1 for a primary node, 0 for a reference.
        embed_mode: 1 if the payload is in the model.
        partition_name: name of the partition.
        payload_file: file of the payload; null if it is embedded or elsewhere.
        payload_bytes: length of the payload; null for a reference or a missing file.
        problem: why the payload cannot be read, or empty.
        attributes: attributes that are text or numbers, but the payload.
        plugin: the plugin that would load it.
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
    attributes: dict[str, Any]
    plugin: PluginOfNode | None


@dataclass(frozen=True, kw_only=True)
class RequiredFile:
    """File that has to lie beside a model.

    Attributes:
        name: its name in the model.
        bytes: its length; null if it cannot be opened.
        problem: why it cannot be opened, or empty.
    """

    name: str
    bytes: int | None
    problem: str


@dataclass(frozen=True, kw_only=True)
class Weight:
    """Weight of a model.

    Attributes:
        name: name of the initializer, or of the result of the Constant node.
        type: element type.
        shape: its lengths.
        bytes: length of its data, or what they would take if they were dense; 0 for a
            shape that no memory holds.
    """

    name: str
    type: str
    shape: list[int]
    bytes: int


@dataclass(frozen=True, kw_only=True)
class InspectResult:
    """Result of `epctx inspect`. The keys from `ir_version` to `quantization` are those
    of a plain model.

    Attributes:
        model: the model as it was named.
        ep_contexts: EPContext nodes in the model's order.
        other_nodes: number of other nodes, those inside subgraphs and functions
            included.
        inside_nodes: number of nodes inside subgraphs and functions.
        required_files: files that have to lie beside the model.
        inputs: type and shape by name.
        outputs: type and shape by name.
        producer: name and version of the tool that wrote the model.
        compiled_by: compilers of each EP's nodes, as the manifest names them.
        weightless_mode: "1" or "2", or empty.
        source_files: files of the source model in which payloads left weights.
        external_dependencies: those that the model declares; null without any.
        custom_domains: library to register, or empty, by domain of custom operators.
        sealed_by: tool that gave digests to a model that another one compiled.
        files: the required files with their sizes.
        ir_version: version of the file's format.
        opsets: version by domain.
        operators: number of nodes by operator, the most frequent first.
        functions: number of functions that the model defines.
        subgraphs: number of graphs in nodes.
        open_dimensions: names of the inputs' open lengths; at the end `?` for those
            without a name.
        unnamed_dimensions: number of open lengths without a name.
        parameters: number of elements of all weights.
        weight_bytes: bytes of all weights.
        weight_types: number of weights, parameters and bytes, by element type.
        largest_weights: a few.
        external_weights: number of weights in files of their own.
        quantization: number of nodes with quantised values, by operator.
    """

    model: str
    ep_contexts: list[ContextNodeFacts]
    other_nodes: int
    inside_nodes: int
    required_files: list[str]
    inputs: dict[str, str]
    outputs: dict[str, str]
    producer: str
    compiled_by: dict[str, dict[str, Any]]
    weightless_mode: str
    source_files: list[str]
    external_dependencies: list[str] | None
    custom_domains: dict[str, str]
    sealed_by: str | None
    files: list[RequiredFile]
    ir_version: int | None = None
    opsets: dict[str, int] | None = None
    operators: dict[str, int] | None = None
    functions: int | None = None
    subgraphs: int | None = None
    open_dimensions: list[str] | None = None
    unnamed_dimensions: int | None = None
    parameters: int | None = None
    weight_bytes: int | None = None
    weight_types: dict[str, dict[str, int]] | None = None
    largest_weights: list[Weight] | None = None
    external_weights: int | None = None
    quantization: dict[str, int] | None = None
