"""`diff`: what two models have differently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
    numpy_helper,
)

from epctx_core.errors import convert_errors
from epctx_files.bundle import (
    Bundle,
    PathInput,
    are_one_file,
    find_range,
    normalise,
    read_bundle,
)
from epctx_files.manifests import index_payloads
from epctx_files.names import get_key
from epctx_files.structure import (
    INITIALIZERS,
    find_attribute,
    find_file_name,
    find_location,
    is_context_node,
    is_embedded,
    is_primary,
    spell_element,
    spell_type,
)

if TYPE_CHECKING:
    from epctx_core.ext import MappedFile

_AT_ONCE = 1 << 22
_OF_CONTEXT = frozenset({"ep_cache_context"})
"""Attribute whose bytes the manifest's digests stand for."""

_MOST_VALUES = 16
_FIRST_VALUES = 3
_MOST_CHARACTERS = 256
_FIRST_CHARACTERS = 64
"""Longest lists and texts in attributes that are shown whole, and how much is shown of
longer ones.
"""
_RENAMED = frozenset({"node", "payload"})
"""Parts of which names say nothing to a session, and texts say all."""
_ORDERED = frozenset({"input", "output"})
"""Parts that a session gives by number as well."""

Facts: TypeAlias = "Mapping[str, str]"
Range: TypeAlias = "tuple[MappedFile, int, int]"
"""File with an offset and a length in it."""
Data: TypeAlias = "Range | bytes"
"""Bytes in a file, or in a model."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Fact in which two models differ.

    Attributes:
        part: kind of the part: `model`, `opset`, `input`, `output`, `node`, `function`,
            `weight`, `payload`, `EP` or `metadata`.
        name: its name in the model; `(order)` for the order of inputs or outputs that
            both models have.
        first: its form in the first model; None where that has none.
        second: its form in the second model; None where that has none.
    """

    part: str
    name: str
    first: str | None
    second: str | None

    def as_dict(self) -> dict[str, str | None]:
        """Return the form that `epctx diff --json` prints."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class DiffReport:
    """Differences of two models.

    Attributes:
        differences: differences in the order of the models' parts.
        notes: sentences about what was not compared.
    """

    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx diff --json` prints."""
        return {
            "differences": [asdict(each) for each in self.differences],
            "notes": list(self.notes),
        }


@convert_errors("comparing the models")
def diff(first: PathInput, second: PathInput, *, weights: bool = False) -> DiffReport:
    """Return the differences of two models: versions, inputs and outputs, nodes by
    name, weights, payloads by their digests, EPs, metadata.

    Nodes and payloads that are equal but for their names are one difference.

    Args:
        first, second: plain models or context models.
        weights: True to compare the bytes of initializers as well of which at least one
            lies in a file, which reads them; otherwise their types and shapes are
            compared. Tensors within nodes, such as weights of subgraphs, and payloads
            without digests are read and compared wherever they lie.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: a model, or a file of it, is missing
            or damaged.

    Examples:
        >>> diff("old_ctx.onnx", "new_ctx.onnx").differences[0].part
        'payload'
    """
    one = read_bundle(first)
    other = read_bundle(second)
    models = (one.model.graph, other.model.graph)
    repeated = set().union(*(_find_repeated(graph.node) for graph in models))
    outside = {
        tensor.name
        for graph in models
        for tensor in graph.initializer
        if find_location(tensor) is not None
    }
    tables = [_describe(bundle, repeated, outside) for bundle in (one, other)]
    # It says what lies in a file; weights are compared where one model has no such
    # file.
    if not all(INITIALIZERS in table["metadata"] for table in tables):
        for table in tables:
            kept = {k: v for k, v in table["metadata"].items() if k != INITIALIZERS}
            table["metadata"] = kept
    found = [
        difference
        for part, mine in tables[0].items()
        for difference in _compare(part, mine, tables[1][part])
    ]
    unread = 0
    for name, mine_data, theirs_data in _pair_weights(one, other, outside):
        if _are_same_bytes(mine_data, theirs_data):
            continue
        if not weights:
            unread += 1
        elif not _have_equal_bytes(mine_data, theirs_data):
            found.append(
                Difference(part="weight", name=name, first="its bytes", second="others")
            )
    noun = "weight" if unread == 1 else "weights"
    note = f"the bytes of {unread} {noun} in files were not compared"
    return DiffReport(differences=tuple(found), notes=(note,) if unread else ())


def _describe(
    bundle: Bundle, repeated: Collection[str], outside: Collection[str]
) -> dict[str, Facts]:
    """Return each part of a model as texts by name.

    Args:
        bundle: the model.
        repeated: names that several nodes of this model or of the other one have.
        outside: initializers that lie in a file in one of the models; their bytes are
            left out.
    """
    model = bundle.model
    graph = model.graph
    manifest = bundle.manifest
    opsets = {
        each.domain or "ai.onnx": str(each.version) for each in model.opset_import
    }
    return {
        "model": {"ir_version": str(model.ir_version)},
        "opset": opsets,
        "input": {each.name: spell_type(each.type) for each in graph.input},
        "output": {each.name: spell_type(each.type) for each in graph.output},
        "node": _describe_nodes(bundle, repeated),
        "function": {
            ".".join(filter(None, get_key(each))): _spell_function(bundle, each)
            for each in model.functions
        },
        "weight": {
            **{
                each.name: _spell_form(each)
                if each.name in outside
                else _spell_tensor(bundle, each)
                for each in graph.initializer
            },
            **{
                each.values.name: _spell_sparse(bundle, each)
                for each in graph.sparse_initializer
            },
        },
        "payload": dict(_describe_payloads(bundle)),
        "EP": {
            f"{ep} {fact}": str(value)
            for ep, facts in manifest.get("providers", {}).items()
            for fact, value in facts.items()
        },
        "metadata": {each.key: str(each.value) for each in model.metadata_props},
    }


def _spell_function(bundle: Bundle, function: FunctionProto) -> str:
    """Return a function with its inputs, outputs, parameters and nodes on one line."""
    inputs = ", ".join(function.input)
    outputs = ", ".join(function.output)
    parameters = _spell_parameters(bundle, function)
    nodes = _spell_nodes(bundle, function.node)
    return f"({inputs}) -> {outputs} {parameters}{nodes}"


def _describe_nodes(bundle: Bundle, repeated: Collection[str]) -> Facts:
    """Return the nodes of a model as texts, by a name that is each one's own.

    Args:
        bundle: the model.
        repeated: names that do not identify a node.
    """
    texts: dict[str, list[str]] = {}
    for node in bundle.model.graph.node:
        name = _identify(node)
        if name in repeated:
            name = f"{name} ({_find_output(node)})"
        texts.setdefault(name, []).append(_spell_node(bundle, node))
    # Nothing tells nodes of one name apart that have no outputs.
    return {name: "; ".join(each) for name, each in texts.items()}


def _find_repeated(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the names that several nodes have."""
    counts = Counter(map(_identify, nodes))
    return {name for name, count in counts.items() if count > 1}


def _describe_payloads(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yield each payload with its digest; a file that the manifest has no digest of is
    read.
    """
    for each in bundle.manifest.get("payloads", ()):
        root = each.get("root")
        yield each["name"], f"{each.get('bytes')} bytes, digest {root}"
    for name, data in _list_undigested(bundle).items():
        digest = _digest(data)[:12]
        yield name, f"{data[2]:,} bytes, data {digest}"
    payloads = index_payloads(bundle.manifest)
    for node in bundle.parts.contexts:
        cache = find_attribute(node, "ep_cache_context")
        if (
            is_primary(node)
            and is_embedded(node)
            and cache is not None
            and (node.name, True) not in payloads
        ):
            digest = _digest(cache.s)[:12]
            yield node.name, f"{len(cache.s):,} bytes, data {digest}"


def _list_undigested(bundle: Bundle) -> dict[str, Range]:
    """Return the binaries of which the manifest has no digest, by name."""
    payloads = index_payloads(bundle.manifest)
    caches = filter(None, map(find_file_name, bundle.parts.contexts))
    names = dict.fromkeys(normalise(cache.s.decode()) for cache in caches)
    return {
        name: (file, 0, file.status.st_size)
        for name in names
        if (name, False) not in payloads
        for file in (bundle.get_file(name),)
    }


def _compare(part: str, mine: Facts, theirs: Facts) -> Iterator[Difference]:
    """Yield the names under which two tables have different texts, and the orders of
    the names that both have, if a host sees them.
    """
    renamed = _pair_renamed(mine, theirs) if part in _RENAMED else {}
    found = {*renamed.values()}
    for name in dict.fromkeys(chain(mine, theirs)):
        one = mine.get(name)
        other = theirs.get(name)
        if name in renamed:
            other = theirs[renamed[name]]
            pair = f"{name} -> {renamed[name]}"
            if one == other:
                one = f"named {name}"
                other = f"named {renamed[name]}"
            yield Difference(part=part, name=pair, first=one, second=other)
        elif one != other and name not in found:
            yield Difference(part=part, name=name, first=one, second=other)

    if part in _ORDERED:
        orders = [[name for name in mine if name in theirs]]
        orders.append([name for name in theirs if name in mine])
        if orders[0] != orders[1]:
            first, second = map(", ".join, orders)
            yield Difference(part=part, name="(order)", first=first, second=second)


def _pair_renamed(mine: Facts, theirs: Facts) -> dict[str, str]:
    """Return the names that one table alone has, each to the name of the other one
    under which it has the same text but for the name.
    """
    lost: dict[str, list[str]] = {}
    for name, text in mine.items():
        if name not in theirs:
            lost.setdefault(text.replace(name, "*"), []).append(name)
    pairs = {}
    for name, text in theirs.items():
        if name not in mine and (names := lost.get(text.replace(name, "*"))):
            pairs[names.pop(0)] = name
    return pairs


def _identify(node: NodeProto) -> str:
    """Return the name of a node, which others may have, or its first output."""
    return node.name or _find_output(node)


def _find_output(node: NodeProto) -> str:
    """Return the first output of a node, which no other node has."""
    return next(filter(None, node.output), node.op_type)


def _spell_nodes(bundle: Bundle, nodes: Iterable[NodeProto]) -> str:
    return f"{{{'; '.join(_spell_node(bundle, node) for node in nodes)}}}"


def _spell_parameters(bundle: Bundle, function: FunctionProto) -> str:
    """Return the attributes of a function, with the defaults of those that have one."""
    parameters = [
        *function.attribute,
        *(
            f"{each.name}={_spell_attribute(bundle, each)}"
            for each in function.attribute_proto
        ),
    ]
    return f"[{', '.join(parameters)}] " if parameters else ""


def _spell_node(bundle: Bundle, node: NodeProto) -> str:
    """Return an operator with its arguments and attributes on one line."""
    hidden = _OF_CONTEXT if is_context_node(node) else frozenset()
    attributes = sorted(
        f"{each.name}={_spell_attribute(bundle, each)}"
        for each in node.attribute
        if each.name not in hidden
    )
    given = f" [{', '.join(attributes)}]" if attributes else ""
    # One of several functions of a name.
    overload = getattr(node, "overload", "")
    operator = f"{node.op_type}:{overload}" if overload else node.op_type
    if node.domain:
        operator = f"{node.domain}.{operator}"
    inputs = ", ".join(node.input)
    outputs = ", ".join(node.output)
    return f"{operator}({inputs}) -> {outputs}{given}"


def _spell_attribute(bundle: Bundle, attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        is_one = attribute.type == AttributeProto.GRAPH
        graphs = (attribute.g,) if is_one else attribute.graphs
        return "; ".join(_spell_graph(bundle, each) for each in graphs)
    if attribute.type in (AttributeProto.TENSOR, AttributeProto.TENSORS):
        is_one = attribute.type == AttributeProto.TENSOR
        tensors = (attribute.t,) if is_one else attribute.tensors
        return "; ".join(_spell_tensor(bundle, each) for each in tensors)
    if attribute.type == AttributeProto.SPARSE_TENSOR:
        return _spell_sparse(bundle, attribute.sparse_tensor)
    return _spell_value(attribute)


def _spell_value(attribute: AttributeProto) -> str:
    """Return the value of an attribute that has neither graphs nor tensors; of a long
    one, its beginning and a digest.
    """
    try:
        value = onnx.helper.get_attribute_value(attribute)
    except ValueError:  # of an unknown type
        return "?"
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    elif attribute.type == AttributeProto.STRINGS:
        value = [each.decode(errors="replace") for each in value]
    text = repr(value)

    # Tree ensembles have all their nodes in lists.
    if isinstance(value, list) and len(value) > _MOST_VALUES:
        first = ", ".join(map(repr, value[:_FIRST_VALUES]))
        digest = _digest(text.encode())[:12]
        return f"[{first}, … {len(value):,} values, data {digest}]"
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        first = repr(value[:_FIRST_CHARACTERS])
        digest = _digest(text.encode())[:12]
        return f"{first} … {len(value):,} characters, data {digest}"
    return text


def _spell_graph(bundle: Bundle, graph: GraphProto) -> str:
    """Return a subgraph with its inputs and outputs, weights and nodes on one line."""
    inputs = _spell_values(graph.input)
    outputs = _spell_values(graph.output)
    weights = [f"{e.name} = {_spell_tensor(bundle, e)}" for e in graph.initializer]
    weights += [
        f"{each.values.name} = {_spell_sparse(bundle, each)}"
        for each in graph.sparse_initializer
    ]
    given = f" <{'; '.join(weights)}>" if weights else ""
    nodes = _spell_nodes(bundle, graph.node)
    return f"({inputs}) -> ({outputs}){given} {nodes}"


def _spell_values(values: Iterable[ValueInfoProto]) -> str:
    return ", ".join(f"{spell_type(each.type)} {each.name}" for each in values)


def _spell_sparse(bundle: Bundle, sparse: SparseTensorProto) -> str:
    shape = "x".join(map(str, sparse.dims))
    values, indices = (
        _spell_tensor(bundle, each) for each in (sparse.values, sparse.indices)
    )
    return f"sparse {shape} {values} at {indices}"


def _spell_tensor(bundle: Bundle, tensor: TensorProto) -> str:
    """Return type and shape of a tensor, and a digest of its data, wherever they
    lie.
    """
    digest = _digest(_get_data(bundle, tensor))
    return f"{_spell_form(tensor)}, data {digest[:12]}"


def _spell_form(tensor: TensorProto) -> str:
    """Return type and shape of a tensor."""
    shape = "x".join(map(str, tensor.dims)) or "scalar"
    return f"{spell_element(tensor.data_type)} {shape}"


def _get_data(bundle: Bundle, tensor: TensorProto) -> Data:
    """Return the data of a tensor, the same in whatever field of the model they lie.

    Raises:
        InvalidGraph: the numbers of a place in a file are none.
    """
    if find_location(tensor) is not None:
        return find_range(bundle, tensor)
    if tensor.raw_data:
        return bytes(tensor.raw_data)

    # onnx would open a file that the model names, and changes text on the way.
    if (
        tensor.data_location != TensorProto.EXTERNAL
        and tensor.data_type != TensorProto.STRING
    ):
        try:
            values = numpy_helper.to_array(tensor)
            return bytes(numpy_helper.from_array(values).raw_data)
        except Exception:  # noqa: BLE001, S110 - onnx has many kinds for damaged ones
            pass
    bare = TensorProto()
    bare.CopyFrom(tensor)
    for field in ("name", "doc_string", "data_location", "raw_data", "metadata_props"):
        bare.ClearField(field)
    return bytes(bare.SerializeToString(deterministic=True))


def _digest(data: Data) -> str:
    import hashlib

    digest = hashlib.sha256()
    for piece in _read_pieces(data):
        digest.update(piece)
    return digest.hexdigest()


def _pair_weights(
    one: Bundle, other: Bundle, outside: Collection[str]
) -> Iterator[tuple[str, Data, Data]]:
    """Yield the weights that both models have with one type and shape, and at least one
    of them in a file, with their data.
    """
    theirs = {each.name: each for each in other.model.graph.initializer}
    for tensor in one.model.graph.initializer:
        match = theirs.get(tensor.name)
        if (
            match is not None
            and tensor.name in outside
            and _spell_form(tensor) == _spell_form(match)
        ):
            yield (
                tensor.name,
                _get_data(one, tensor),
                _get_data(other, match),
            )


def _are_same_bytes(one: Data, other: Data) -> bool:
    """Return whether two ranges are one, of a file with several names."""
    if isinstance(one, bytes) or isinstance(other, bytes):
        return False
    file, *span = one
    other_file, *other_span = other
    return span == other_span and are_one_file(file, other_file)


def _have_equal_bytes(one: Data, other: Data) -> bool:
    """Return whether data have the same bytes; they are read.

    Raises:
        InvalidGraph: a file was written to since it was opened.
    """
    if _measure(one) != _measure(other):
        return False
    pieces = zip(_read_pieces(one), _read_pieces(other), strict=True)
    return all(mine == theirs for mine, theirs in pieces)


def _measure(data: Data) -> int:
    """Return the length of data."""
    if isinstance(data, bytes):
        return len(data)
    _, _, length = data
    return length


def _read_pieces(data: Data) -> Iterator[memoryview]:
    """Yield data in pieces, of which one of a file can be read until the next.

    Raises:
        InvalidGraph: the file was written to since it was opened.
    """
    if isinstance(data, bytes):
        view = memoryview(data)
        for start in range(0, len(view), _AT_ONCE):
            yield view[start : start + _AT_ONCE]
        return

    file, offset, length = data
    end = offset + length
    for start in range(offset, end, _AT_ONCE):
        count = min(_AT_ONCE, end - start)
        file.check_unchanged()
        yield file.view[start : start + count]

        # Pages that were read count as this process's memory until then.
        file.forget(start, count)
