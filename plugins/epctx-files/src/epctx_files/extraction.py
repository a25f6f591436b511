"""`extract`: a part of a model as a model of its own."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from epctx_core.errors import InvalidArgument, convert_errors
from epctx_core.ext import infer_safely
from epctx_files.bundle import FilesReport, PathInput, publish, read_bundle
from epctx_files.contexts import make_primary
from epctx_files.structure import (
    INITIALIZERS,
    is_context_node,
    iter_subgraphs,
    remove_metadata,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from epctx_files.bundle import Bundle

_MOST_INFERRED = 1024
"""Bytes of initializers up to which inference reads them, as shapes."""


@convert_errors("extracting the part")
def extract(
    model: PathInput,
    output: PathInput,
    *,
    node: str | None = None,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    source: PathInput | None = None,
) -> FilesReport:
    """Write a part of a model as a model of its own: an EPContext node with its
    payload, or the nodes between values.

    Files that the part names go into the output's folder, linked or copied by the
    system; no weight is read.

    Args:
        model: a plain model or a context model.
        output: the part.
        node: the name of a node; its inputs and outputs are those of the part.
        inputs: where the part begins, such as values within the model; empty for what
            the outputs need of the model's inputs.
        outputs: where it ends; empty for the model's outputs.
        source: the model that a context model was compiled from: the part is then what
            the EPContext node replaced, from this model.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: the model, or a file of it, is
            missing or damaged.
        InvalidArgument: neither or both of a node and values; an unknown name; or the
            outputs need an input that was not named.
        Fail: the files cannot be written.

    Examples:
        >>> extract("net_ctx.onnx", "first.onnx", node="QNNExecutionProvider_0f…_0")
    """
    if (node is None) == (not inputs and not outputs):
        raise InvalidArgument(
            "a part is given by one node, or by inputs and outputs, not by "
            f"{'neither' if node is None else 'both'}."
        )
    if source is not None and node is None:
        raise InvalidArgument("the source of a part is found for a node alone.")

    whole = read_bundle(model)
    if node is not None:
        found = _find_node(whole, node)
        if is_context_node(found):
            make_primary(whole, found)
        inputs = _list_read(found)
        outputs = [name for name in found.output if name]
    if source is not None:
        whole = read_bundle(source)
        _require_values(whole, (*inputs, *outputs))
    if node is not None:
        # Its weights are its own.
        weights = {each.name for each in whole.model.graph.initializer}
        inputs = [name for name in inputs if name not in weights]
    _keep(whole, list(dict.fromkeys(inputs)), outputs)
    return publish(whole, output)


def _find_node(bundle: Bundle, name: str) -> NodeProto:
    """Return a node of the main graph.

    Raises:
        InvalidArgument: there is none of that name.
    """
    found: list[NodeProto] = [
        each for each in bundle.model.graph.node if each.name == name
    ]
    if len(found) == 1:
        return found[0]
    names = [each.name for each in bundle.parts.contexts]
    count = len(found) or "no"
    raise InvalidArgument(
        f"{bundle.path.name} has {count} nodes called {name!r} in its main graph.",
        path=bundle.path,
        hint=f"Its EPContext nodes are {', '.join(names)}."
        if names
        else "Name the values between which the part lies.",
    )


def _require_values(bundle: Bundle, names: Iterable[str]) -> None:
    graph = bundle.model.graph
    known = {value.name for value in chain(graph.input, graph.initializer)}
    known.update(chain.from_iterable(node.output for node in graph.node))
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise InvalidArgument(
            f"{bundle.path.name} has no value {missing!r}.",
            path=bundle.path,
            hint=(
                "A partition of an optimised model may have values that its source "
                "has not; name values of this model."
            ),
        )


def _keep(bundle: Bundle, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Remove all of a model that its outputs do not need from its inputs on.

    Raises:
        InvalidArgument: a value is unknown, or an input is missing.
    """
    graph = bundle.model.graph
    outputs = list(dict.fromkeys(outputs or (value.name for value in graph.output)))
    _require_values(bundle, (*inputs, *outputs))

    kept, needed = _find_needed(graph, set(inputs), outputs)
    initializers = {tensor.name for tensor in graph.initializer}
    initializers |= {sparse.values.name for sparse in graph.sparse_initializer}
    given = [each.name for each in graph.input if each.name not in initializers]
    missing = sorted(needed - set(inputs) - initializers)
    if inputs and missing:
        raise InvalidArgument(
            f"the part needs the value {missing[0]!r} of {bundle.path.name} as well.",
            path=bundle.path,
            hint=f"Add the input {missing[0]!r}.",
        )

    begins = inputs or [name for name in given if name in needed]
    types = _find_types(bundle, {*begins, *outputs})
    part = _copy_part(bundle, kept, needed - set(inputs))
    part.input.extend(_copy_value(name, types) for name in begins)
    part.output.extend(_copy_value(name, types) for name in outputs)
    bundle.model.ClearField("graph")
    bundle.model.graph.MergeFrom(part)
    bundle.refresh()
    _prune(bundle)


def _find_needed(
    graph: GraphProto, inputs: set[str], outputs: Sequence[str]
) -> tuple[set[int], set[str]]:
    """Return the indices of the nodes that outputs need, and the values that no node of
    them computes.
    """
    makers = {
        name: index
        for index, node in enumerate(graph.node)
        for name in node.output
        if name
    }
    kept: set[int] = set()
    needed: set[str] = set()
    pending = list(outputs)
    while pending:
        name = pending.pop()
        # An output that is an input as well is computed by nobody.
        if name in inputs or name not in makers:
            needed.add(name)
        elif makers[name] not in kept:
            kept.add(makers[name])
            pending += _list_read(graph.node[makers[name]])
    return kept, needed


def _list_read(node: NodeProto) -> list[str]:
    """Return the values that a node reads, those of its subgraphs too; names that these
    define themselves are left out.
    """
    read = [name for name in node.input if name]
    for subgraph in iter_subgraphs(node):
        own = {value.name for value in chain(subgraph.input, subgraph.initializer)}
        own.update(chain.from_iterable(inner.output for inner in subgraph.node))
        names = [value.name for value in subgraph.output]
        for inner in subgraph.node:
            names += _list_read(inner)
        read += [name for name in names if name not in own]
    return read


def _copy_part(bundle: Bundle, indices: set[int], needed: set[str]) -> GraphProto:
    """Return a graph with some nodes, and the initializers and types that these
    need.
    """
    graph = bundle.model.graph
    part = GraphProto(name=graph.name, doc_string=graph.doc_string)
    part.metadata_props.extend(graph.metadata_props)
    part.node.extend(graph.node[index] for index in sorted(indices))

    values = set(chain.from_iterable(node.output for node in part.node)) | needed
    part.initializer.extend(each for each in graph.initializer if each.name in needed)
    part.sparse_initializer.extend(
        each for each in graph.sparse_initializer if each.values.name in needed
    )
    part.value_info.extend(each for each in graph.value_info if each.name in values)
    part.quantization_annotation.extend(
        each for each in graph.quantization_annotation if each.tensor_name in values
    )
    return part


def _find_types(bundle: Bundle, names: set[str]) -> Mapping[str, ValueInfoProto]:
    """Return values of a model with their types: declared ones, else inferred ones.

    Raises:
        InvalidArgument: a type is not known.
    """
    types = _list_types(bundle.model.graph)
    if names - types.keys():
        probe = ModelProto()
        probe.CopyFrom(bundle.model)
        for tensor in probe.graph.initializer:
            if len(tensor.raw_data) > _MOST_INFERRED:
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
        # Of a model that contradicts itself, what is declared has to do.
        with suppress(Exception):
            types = {**_list_types(infer_safely(probe, strict=False).graph), **types}

    missing = sorted(names - types.keys())
    if missing:
        raise InvalidArgument(
            f"the type of the value {missing[0]!r} of {bundle.path.name} is neither "
            "declared nor inferred, and a part cannot begin or end there.",
            path=bundle.path,
            hint="Name another value, or declare the type in value_info.",
        )
    return types


def _list_types(graph: GraphProto) -> dict[str, ValueInfoProto]:
    types = {
        tensor.name: helper.make_tensor_value_info(
            tensor.name, tensor.data_type, tensor.dims
        )
        for tensor in graph.initializer
    }
    for value in chain(graph.value_info, graph.input, graph.output):
        if value.type.WhichOneof("value") is not None:
            types[value.name] = value
    return types


def _copy_value(name: str, types: Mapping[str, ValueInfoProto]) -> ValueInfoProto:
    """Return an input or output."""
    value = ValueInfoProto()
    value.CopyFrom(types[name])
    return value


def _prune(bundle: Bundle) -> None:
    """Remove files, payloads and metadata that a part does not need."""
    model = bundle.model
    named = {name for name, _, _ in bundle.list_names()}
    for name in bundle.files.keys() - named:
        del bundle.files[name]
    if bundle.read_checksum().get("name") not in named:
        remove_metadata(model, {INITIALIZERS})
    model.ClearField("training_info")

    nodes = bundle.parts.contexts
    if not nodes:
        bundle.manifest = {}
    if bundle.manifest:
        names = {node.name for node in nodes}
        bundle.manifest["payloads"] = [
            payload
            for payload in bundle.manifest["payloads"]
            if posixpath.normpath(payload["name"])
            in (names if payload.get("embedded") else named)
        ]
