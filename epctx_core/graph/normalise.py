"""Model in the one form that later stages expect: nodes sorted, functions inlined, the
host's values applied.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import (
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.inliner
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from epctx_core.errors import InvalidArgument, InvalidGraph, suggestion
from epctx_core.graph.index import (
    ONNX_DOMAINS,
    copy_message,
    find_schema,
    iter_subgraphs,
    list_given_names,
    read_opset_imports,
    shorten_domain,
    walk_graphs,
    walk_nodes,
)
from epctx_core.graph.model_io import DENSE_OR_SPARSE, SourceModel, walk_types
from epctx_core.graph.tensor_bytes import COPIED_LIMIT
from epctx_core.graph.weights import (
    INLINE_LIMIT,
    Weight,
    compute_raw_size,
    is_detached,
    make_detached_tensor,
    replace_data,
)

if TYPE_CHECKING:
    from epctx_core.graph.partition import NodeGroups
    from epctx_core.graph.weights import Weights
    from epctx_core.options import ModelOverrides

_log = logging.getLogger("epctx.graph")

FunctionId = tuple[str, str]
"""Domain and name of a function."""

_HIDDEN = "epctx.hidden"
"""Domain in which onnx's checker looks for no operators."""

MOST_NODES = 1 << 18
"""Nodes that inlined functions may have.

A few functions that call each other twice make a million.
"""


def inline_functions(source: SourceModel, kept: Collection[FunctionId] = ()) -> None:
    """Inline functions, in place; functions without calls are dropped.

    A function may import other operator versions than the model: see `adopt_versions`.

    Args:
        source: a model without its large weights.
        kept: functions whose calls stay.

    Raises:
        InvalidGraph: a function is not valid, or the calls are too many nodes.
    """
    proto = source.proto
    if not proto.functions:
        return
    _check_size(source)

    # Their nodes are about to be the model's.
    known = {o.domain for o in proto.opset_import}
    for opset in chain(*(function.opset_import for function in proto.functions)):
        if opset.domain not in known:
            known.add(opset.domain)
            proto.opset_import.add(domain=opset.domain, version=opset.version)

    # Attributes that calls leave out get their defaults: onnx's inliner drops them.
    defaults = {
        (f.domain, f.name, f.overload): f.attribute_proto for f in proto.functions
    }
    for node in walk_nodes(chain(proto.graph.node, *(f.node for f in proto.functions))):
        given = {a.name for a in node.attribute}
        missing = defaults.get((node.domain, node.op_type, node.overload), ())
        node.attribute.extend(a for a in missing if a.name not in given)
    adopt_versions(
        (f for f in proto.functions if (f.domain, f.name) not in kept),
        source.opset_imports,
    )
    calls = [key for f in proto.functions if (key := (f.domain, f.name)) in kept]
    try:
        inlined = (
            onnx.inliner.inline_selected_functions(proto, calls, exclude=True)
            if calls
            else onnx.inliner.inline_local_functions(proto)
        )
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        text = " ".join(str(error).split())
        raise InvalidGraph(
            f"the functions of {source.where} cannot be inlined: {text}",
            path=source.path,
        ) from error

    source.proto = inlined
    left = find_used_functions(inlined.graph.node, inlined.functions)
    del inlined.functions[:]
    inlined.functions.extend(left)
    for node in walk_nodes(inlined.graph.node):
        # Functions call the default domain "ai.onnx", too.
        node.domain = shorten_domain(node.domain)


def _check_size(source: SourceModel) -> None:
    """Check the size before anything follows the calls: shape inference does, even
    those that stay.
    """
    functions = source.proto.functions
    nodes, size = measure_calls(source.proto.graph.node, functions)
    most = COPIED_LIMIT + sum(function.ByteSize() for function in functions)
    if nodes > MOST_NODES or size > most:
        raise InvalidGraph(
            f"the functions of {source.where} become {nodes:,} nodes of {size:,} "
            f"bytes when inlined; at most {MOST_NODES:,} nodes and {most:,} bytes are "
            "allowed.",
            path=source.path,
            hint="Export the model without functions, if it is meant to be as large.",
        )


def find_used_functions(
    nodes: Iterable[NodeProto], functions: Sequence[FunctionProto]
) -> list[FunctionProto]:
    """Return the functions that nodes call, directly or through others, in the model's
    order.
    """
    if not functions:
        return []
    known = {(f.domain, f.name, f.overload): f for f in functions}
    used: set[tuple[str, str, str]] = set()
    pending = [nodes]
    while pending:
        for node in walk_nodes(pending.pop()):
            key = (node.domain, node.op_type, node.overload)
            if key in known and key not in used:
                used.add(key)
                pending.append(known[key].node)
    return [f for key, f in known.items() if key in used]


def measure_calls(
    nodes: Iterable[NodeProto], functions: Sequence[FunctionProto]
) -> tuple[int, int]:
    """Return the number of nodes and bytes that calls become when all functions are
    inlined.

    Counted are the functions' nodes, the calls on the way, and the defaults of
    attributes.

    Args:
        nodes: those of the main graph.
        functions: the model's.

    Raises:
        InvalidGraph: functions call each other in a circle.
    """
    known = {(f.domain, f.name, f.overload): f for f in functions}
    contents = {key: _count_nodes(f.node, known) for key, f in known.items()}
    sizes: dict[tuple[str, str, str], tuple[int, int]] = {}
    try:
        for key in TopologicalSorter(
            {key: callees for key, (_, callees) in contents.items()}
        ).static_order():
            own, callees = contents[key]
            inner = [sizes[callee] for callee in callees]
            total = own + sum(n for n, _ in inner)
            sizes[key] = total, known[key].ByteSize() + sum(size for _, size in inner)
    except CycleError as error:
        domain, name, _ = error.args[1][0]
        raise InvalidGraph(
            f"the function {name!r} of the domain {domain!r} calls itself, directly "
            "or not."
        ) from None

    _, first = _count_nodes(nodes, known)
    return sum(sizes[key][0] for key in first), sum(sizes[key][1] for key in first)


def _count_nodes(
    nodes: Iterable[NodeProto], known: Container[tuple[str, str, str]]
) -> tuple[int, list[tuple[str, str, str]]]:
    """Return the number of nodes, those in subgraphs included, and the functions they
    call, once for each call.
    """
    keys = [(node.domain, node.op_type, node.overload) for node in walk_nodes(nodes)]
    return len(keys), [key for key in keys if key in known]


def check_initializers(
    proto: ModelProto, initializers: Mapping[str, np.ndarray]
) -> Weights:
    """Return a host's values as weights; an initializer in a file gets the bytes, so
    that no file is needed.

    Args:
        proto: as it was read; changed in place.
        initializers: name to array.

    Raises:
        InvalidArgument: the model has no such initializer, or one of another type or
            shape.
    """
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    given: Weights = {}
    for name, array in initializers.items():
        if name not in tensors:
            raise InvalidArgument(
                "add_initializer: the model's main graph has no initializer "
                f"{name!r}.{suggestion(name, tensors)}",
                hint="Pass the value of an input to run.",
            )
        given[name] = _make_weight(tensors[name], array)
        if is_detached(tensors[name]):
            replace_data(tensors[name], given[name].make_tensor_proto())
    return given


def apply_overrides(
    source: SourceModel, overrides: ModelOverrides, given: Weights
) -> None:
    """Apply values and lengths to a model that was read and checked.

    Raises:
        InvalidArgument: no input has such a dimension, or one gets two lengths.
    """
    for tensor in source.proto.graph.initializer:
        weight = given.get(tensor.name)
        if weight is not None:
            source.weights[weight.name] = weight
            is_large = weight.nbytes > INLINE_LIMIT
            replace_data(
                tensor,
                make_detached_tensor(weight)
                if is_large
                else weight.make_tensor_proto(),
            )
    _set_lengths(source.proto.graph, overrides)


def digest_overrides(digest: str, overrides: ModelOverrides, weights: Weights) -> str:
    """Return the digest (hex) of a model together with the host's overrides."""
    values = {name: weights[name].digest for name in overrides.initializers}
    lengths = {**overrides.dimensions}, {**overrides.denotations}
    parts = [digest, *(repr(sorted(part.items())) for part in (values, *lengths))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _make_weight(tensor: TensorProto, array: np.ndarray) -> Weight:
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError, ValueError):
        dtype = np.dtype(object)
    found = (array.dtype, array.shape)
    expected = (dtype, tuple(tensor.dims))
    if found != expected:
        raise InvalidArgument(
            f"add_initializer: the value of {tensor.name!r} is "
            f"{found[0]}{list(found[1])}; the model's initializer is "
            f"{expected[0]}{list(expected[1])}.",
            hint="Pass an array of the same type and shape.",
        )

    if array.nbytes == compute_raw_size(tensor.data_type, array.shape):
        data: bytes | memoryview = (
            array.reshape(-1).view(np.uint8).data if array.size else b""
        )
    else:  # types of less than a byte are packed
        data = onnx.numpy_helper.from_array(array).raw_data

    return Weight(tensor.name, tensor.data_type, array.shape, data)


def _set_lengths(graph: GraphProto, overrides: ModelOverrides) -> None:
    """Set the lengths of open dimensions, wherever the graph names them."""
    if not overrides.dimensions and not overrides.denotations:
        return
    lengths = dict(overrides.dimensions)
    seen: set[str] = set()
    for dimension in _list_dimensions(graph.input):
        name = dimension.dim_param
        denotation = dimension.denotation
        seen |= {name, denotation}
        length = (
            None
            if dimension.HasField("dim_value")
            else overrides.denotations.get(denotation)
        )
        if length is not None and not name:
            dimension.dim_value = length
        # The name of an open dimension means the same length everywhere.
        elif length is not None and lengths.setdefault(name, length) != length:
            raise InvalidArgument(
                f"free dimension override: the dimension {name!r} would get two "
                f"lengths, {lengths[name]} and {length}.",
                hint="Set a length by name or by denotation, not both.",
            )

    for what, given in (
        ("dimension", overrides.dimensions),
        ("denotation", overrides.denotations),
    ):
        for name in given:
            if name not in seen:
                raise InvalidArgument(
                    f"free dimension override: no input of the model has the {what} "
                    f"{name!r}.{suggestion(name, seen)}",
                    hint=(
                        "It names an open dimension of an input, as get_inputs shows "
                        "it."
                    ),
                )

    for dimension in _list_dimensions([*graph.input, *graph.output, *graph.value_info]):
        if dimension.dim_param in lengths:
            dimension.dim_value = lengths[dimension.dim_param]


def _list_dimensions(
    values: Iterable[onnx.ValueInfoProto],
) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for value in values:
        if value.type.HasField("tensor_type"):
            yield from value.type.tensor_type.shape.dim


_FREE_INITIALIZERS = 4
"""The IR version from which an initializer need not be an input, and an input with one
can be overridden.
"""


def normalise(proto: ModelProto) -> None:
    """Bring a model that onnxruntime accepts into the form that the ONNX checker
    accepts.

    Raises:
        InvalidGraph: nodes read each other's results in a circle.
    """
    for path, graph in walk_graphs(proto.graph):
        graph.name = graph.name or ("body" if path else "main_graph")
    if proto.ir_version < _FREE_INITIALIZERS:
        constants = {t.name for t in proto.graph.initializer}
        kept = [value for value in proto.graph.input if value.name not in constants]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
        proto.ir_version = _FREE_INITIALIZERS
    adopt_versions(proto.functions, read_opset_imports(proto))
    for function in proto.functions:
        _sort(function, set(function.input))
    _sort(proto.graph, set(list_given_names(proto.graph)))


def adopt_versions(
    functions: Iterable[FunctionProto], versions: Mapping[str, int]
) -> None:
    """Make functions import the model's operator versions, as onnxruntime reads them.

    A warning names a function's operators that have another definition there.

    Args:
        functions: changed in place.
        versions: the model's, by domain.
    """
    for function in functions:
        own = read_opset_imports(function)
        for opset in function.opset_import:
            opset.version = versions.get(shorten_domain(opset.domain), opset.version)
        others: dict[str, set[str]] = {}
        for node in function.node if own != read_opset_imports(function) else ():
            domain = shorten_domain(node.domain)
            before = own.get(domain, 0)
            after = versions.get(domain, before)
            if before and _find_since_version(node, before) != _find_since_version(
                node, after
            ):
                others.setdefault(domain, set()).add(node.op_type)
        for domain, operators in others.items():
            _log.warning(
                (
                    "the function %r is written for version %d of %s and read, as by "
                    "onnxruntime, with the model's version %d, which has another "
                    "definition of %s."
                ),
                function.name,
                own[domain],
                domain or "ai.onnx",
                versions[domain],
                ", ".join(sorted(operators)),
            )


def _find_since_version(node: NodeProto, version: int) -> int:
    """Return the version of a node's operator that an import gives; 0 for one that onnx
    does not know.
    """
    schema = find_schema(node.domain, node.op_type, version)
    return 0 if schema is None else int(schema.since_version)


def _sort(graph: GraphProto | FunctionProto, given: set[str]) -> dict[str, None]:
    """Sort nodes behind those whose results they read, keeping their order where
    possible; return the outer names read.

    Args:
        graph: a graph, whose subgraphs are sorted first, or a function.
        given: names that it defines without a node.
    """
    nodes = graph.node
    producer: dict[str, int] = {}
    reads: list[dict[str, None]] = []
    for index, node in enumerate(nodes):
        read = dict.fromkeys(node.input)
        for subgraph in iter_subgraphs(node):
            read |= _sort(subgraph, set(list_given_names(subgraph)))
        reads.append(read)
        for name in filter(None, node.output):
            producer.setdefault(name, index)

    needs = [
        [producer[name] for name in read if name in producer and name not in given]
        for read in reads
    ]
    order = _order_nodes(nodes, needs)
    if order != list(range(len(order))):
        in_order = [copy_message(nodes[index]) for index in order]
        del nodes[:]
        nodes.extend(in_order)
    outside = {name: None for read in reads for name in read}
    if isinstance(graph, onnx.GraphProto):
        outside |= dict.fromkeys(value.name for value in graph.output)
    return {
        name: None
        for name in outside
        if name and name not in producer and name not in given
    }


def _order_nodes(nodes: Sequence[NodeProto], needs: NodeGroups) -> list[int]:
    """Return the nodes' indices, each behind those that it needs; a sorted graph keeps
    its order.
    """
    sorter = TopologicalSorter(dict(enumerate(needs)))
    try:
        sorter.prepare()
    except CycleError as error:
        node = nodes[error.args[1][0]]
        raise InvalidGraph(
            f"node {node.name!r} ({node.op_type}) reads what is computed from its own "
            "result: the graph has a cycle.",
            node=node.name,
            hint="Export the model again; only Loop and Scan carry values back.",
        ) from None

    order: list[int] = []
    ready = sorted(sorter.get_ready())
    while ready:
        order.append(heappop(ready))
        sorter.done(order[-1])
        for index in sorter.get_ready():
            heappush(ready, index)

    return order


def declare_open_types(proto: ModelProto) -> ModelProto:
    """Return a copy for the checker in which inputs and outputs have complete types."""
    probe: ModelProto = copy_message(proto)
    for value in probe.graph.output:
        if value.type.WhichOneof("value") is None:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for value in (*probe.graph.input, *probe.graph.output):
        for which, type_ in walk_types(value.type):
            if which in DENSE_OR_SPARSE:
                getattr(type_, which).shape.SetInParent()
    return probe


def hide_unknown_operators(proto: ModelProto) -> frozenset[tuple[str, str, int]]:
    """Move operators that onnx does not have out of its domains, in place, so that its
    checker passes them over; return them by domain, name and version.

    Those of functions are looked up in the function's own versions; those of functions
    that nobody calls are not returned.
    """
    called = find_used_functions(proto.graph.node, proto.functions)
    names = {(function.domain, function.name, function.overload) for function in called}
    hidden = set()
    for owner in (proto, *proto.functions):
        versions = read_opset_imports(owner)
        body = owner.graph if isinstance(owner, ModelProto) else owner
        found = set()
        for node in walk_nodes(body.node):
            domain = shorten_domain(node.domain)
            operator = domain, node.op_type, versions.get(domain, 1)
            if domain in ONNX_DOMAINS and find_schema(*operator) is None:
                found.add(operator)
                node.domain = _HIDDEN

        if found:
            owner.opset_import.add(domain=_HIDDEN, version=1)
        if (
            isinstance(owner, ModelProto)
            or (owner.domain, owner.name, owner.overload) in names
        ):
            hidden |= found

    return frozenset(hidden)
