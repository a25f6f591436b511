"""EPContext nodes: decoded from `onnx.NodeProto` for the core and EPs, and encoded.

All ten attributes of the operator are known here, with its defaults; others are a
vendor's own and are kept. `ep_cache_context` is a STRING attribute that may hold raw
bytes, so it stays bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from epctx_core.errors import InvalidGraph
from epctx_core.frozen import dataclass
from epctx_core.graph.index import decode_attribute, decode_text
from epctx_core.graph.walks import SubgraphPath, walk_indexed_nodes
from epctx_core.plugin.protos import (
    ELEMENT_TYPES,
    AttributeProto,
    GraphProto,
    NodeProto,
    TensorProto,
    TypeProto,
)

if TYPE_CHECKING:
    from epctx_core.graph.type_table import TypeTable

DOMAIN = "com.microsoft"
OP_TYPE = "EPContext"
OPSET_VERSION = 1

# Looked up for each attribute of very many nodes.
_INT = AttributeProto.INT
_STRING = AttributeProto.STRING
_KINDS = {
    **dict.fromkeys(("main_context", "embed_mode", "max_size"), _INT),
    **dict.fromkeys(
        (
            "ep_cache_context", "ep_sdk_version", "hardware_architecture", "notes",
            "onnx_model_filename", "partition_name", "source",
        ),
        _STRING,
    ),
}  # fmt: skip

_DEFAULTS: dict[str, Any] = {"main_context": 1, "embed_mode": 1, "source": ""}
_SWITCHES = ("embed_mode", "main_context")
_NAMES = ("partition_name", "source")

BOUNDARY_TYPES = frozenset(
    {
        TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16,
        TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8,
        TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
        TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE,
        TensorProto.BFLOAT16,
    }
)  # fmt: skip
"""Element types that the operator takes and gives (the T of onnxruntime's schema)."""


Refuse: TypeAlias = "Callable[[InvalidGraph], object]"
"""Function that gets an error of a node. A load raises it; after a verification has
noted it, the reading goes on behind the attribute or the node that is wrong.
"""


def raise_error(error: InvalidGraph) -> NoReturn:
    """Raise an error; see `Refuse`."""
    raise error


@dataclass(kw_only=True, slots=True)
class ContextNodeRecord:
    """An EPContext node, decoded.

    Never changed; not frozen, because a model can have very many.

    Attributes:
        index: of the node in its graph.
        path: from the main graph to the subgraph that holds it; empty in the main
            graph.
        cache: `ep_cache_context`: the payload, or the UTF-8 name of its file; None
            where absent.
        partition_name: as written, or the node's name.
        attributes: all but `ep_cache_context`.
    """

    index: int
    name: str
    source: str
    main_context: bool
    embed_mode: bool
    cache: bytes | None
    partition_name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    path: SubgraphPath = ()

    @property
    def file_name(self) -> str | None:
        """The name of the payload's file, None for an embedded payload or a reference
        without one.
        """
        if self.embed_mode or self.cache is None:
            return None
        try:
            return self.cache.decode()
        except UnicodeDecodeError:
            raise make_node_error(
                self.name,
                "has embed_mode=0 and an ep_cache_context that is not a file name",
                hint="Bytes in the model need embed_mode=1.",
            ) from None


def is_context_node(node: NodeProto) -> bool:
    """Return whether a node is an EPContext node."""
    return node.op_type == OP_TYPE and node.domain == DOMAIN


def read_context_nodes(
    graph: GraphProto, refuse: Refuse = raise_error
) -> list[ContextNodeRecord]:
    """Decode the EPContext nodes of a graph and of all its subgraphs, each graph's own
    before its subgraphs'.

    Their names differ; see `make_names_unique`.

    Args:
        graph: the main graph.
        refuse: gets what is wrong with a node, and raises it by default.

    Raises:
        InvalidGraph: an attribute has the wrong type or value, a name is not UTF-8, or
            a node has no outputs.
    """
    return read_indexed_nodes(
        (item for item in walk_indexed_nodes(graph) if is_context_node(item[2])),
        refuse,
    )


def read_indexed_nodes(
    nodes: Iterable[tuple[SubgraphPath, int, NodeProto]], refuse: Refuse = raise_error
) -> list[ContextNodeRecord]:
    """Decode EPContext nodes, each with the path to its graph and its index there; see
    `read_context_nodes`.
    """
    records = []
    for path, index, node in nodes:
        try:
            records.append(read_context_node(node, index, path, refuse))
        except InvalidGraph as error:
            refuse(error)
    return make_names_unique(records)


def make_names_unique(records: Sequence[ContextNodeRecord]) -> list[ContextNodeRecord]:
    """Return records whose names differ; of several with one name, the later ones get
    their path added.

    Two nodes of one name would be given one payload, and nothing in ONNX forbids the
    names. A new name is never that of another node.
    """
    used = {record.name for record in records}
    if len(used) == len(records):
        return list(records)
    seen: set[str] = set()
    counters: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(2))
    apart = []
    for record in records:
        name = record.name
        if name in seen:
            position = "/".join(
                str(step) for level in (*record.path, (record.index,)) for step in level
            )
            name = made = f"{name}#{position}"
            while name in used:
                name = f"{made}#{next(counters[made])}"
            used.add(name)
        seen.add(name)
        apart.append(record if name == record.name else replace(record, name=name))

    return apart


def read_context_node(
    node: NodeProto, index: int, path: SubgraphPath = (), refuse: Refuse = raise_error
) -> ContextNodeRecord:
    """Decode one node; see `read_context_nodes`."""
    # Routing and messages need a name, and onnxruntime makes one, too.
    name = node.name or f"EPContext_{index}"
    given, cache = _read_attributes(name, node, refuse)
    written = len(node.attribute)
    # Of an attribute that was refused there is no value, either.
    if (
        len(given) + (cache is not None) < written
        and len({attribute.name for attribute in node.attribute}) < written
    ):
        refuse(make_node_error(name, "has an attribute twice"))
    values = _DEFAULTS | given
    inputs = tuple(node.input[:])
    outputs = tuple(node.output[:])
    if not outputs:
        raise make_node_error(name, "has no outputs")
    # Protobuf gives bytes for what is not UTF-8.
    if bytes in map(type, (name, *inputs, *outputs)):
        raise make_node_error(name, "has a name that is not UTF-8")
    return ContextNodeRecord(
        index=index,
        path=path,
        name=name,
        source=values["source"],
        main_context=values["main_context"] == 1,
        embed_mode=values["embed_mode"] == 1,
        cache=cache,
        partition_name=values.get("partition_name") or name,
        inputs=inputs,
        outputs=outputs,
        attributes=MappingProxyType(values),
    )


def find_wrong_types(
    record: ContextNodeRecord, types: TypeTable
) -> Iterator[tuple[str, InvalidGraph]]:
    """Yield an error for each input and output whose type the operator does not have,
    and for each output without one, with the code that a finding of it has.

    The operator has no type inference: an output has the type that the model declares,
    or none.

    Args:
        record: the node.
        types: those of its graph.
    """
    for name in filter(None, dict.fromkeys((*record.inputs, *record.outputs))):
        kind = types.get_proto(name) or TypeProto()
        which = kind.WhichOneof("value")
        element = kind.tensor_type.elem_type
        is_known = bool(element if which == "tensor_type" else which)
        if is_known and element not in BOUNDARY_TYPES:
            code = "type-not-allowed"
            shown = ELEMENT_TYPES.get(element, element) if element else which
            problem = (
                f"has the value {name!r} of type {shown}, which the "
                "operator does not have"
            )
            hint = "the EP has to leave such values to others."
        elif not is_known and name in record.outputs:
            code = "type-undeclared"
            problem = (
                f"makes {name!r}, whose type the model does not declare; onnxruntime "
                "refuses such a model"
            )
            hint = "whatever changed the model dropped its value_info."
        else:
            continue
        hint = f"Compile the source model again; {hint}"
        yield code, make_node_error(record.name, problem, hint=hint)


def _read_attributes(
    name: str, node: NodeProto, refuse: Refuse
) -> tuple[dict[str, Any], bytes | None]:
    """Return a node's attributes without `ep_cache_context`, and that."""
    values: dict[str, Any] = {}
    cache: bytes | None = None
    for attribute in node.attribute:
        key = attribute.name
        kind = attribute.type
        try:
            if isinstance(key, bytes) or _KINDS.get(key, kind) != kind:
                check_attribute(name, attribute)
            if key == "ep_cache_context":
                cache = attribute.s
            # A model can have very many nodes, and nearly all attributes are of these
            # two types.
            elif kind == _INT:
                values[key] = value = attribute.i
                if key in _SWITCHES and value not in (0, 1):
                    raise make_node_error(
                        name, f"has {key}={value}; the operator has 0 and 1"
                    )
            elif kind == _STRING:
                text = decode_text(attribute.s)
                if key in _NAMES and isinstance(text, bytes):
                    raise make_node_error(name, f"has a {key!r} that is not UTF-8")
                values[key] = text
            else:
                values[key] = decode_attribute(attribute)
        except InvalidGraph as error:
            refuse(error)
        except (ValueError, TypeError) as error:
            problem = f"has the attribute {key!r}, which cannot be read: {error}"
            refuse(make_node_error(name, problem))
    return values, cache


def check_attribute(name: str, attribute: AttributeProto) -> None:
    """Raise InvalidGraph if the name of an attribute is not UTF-8, or if one of the
    operator has another type than the operator says.
    """
    if isinstance(attribute.name, bytes):
        problem = f"has the attribute {attribute.name!r}, whose name is not UTF-8"
        raise make_node_error(name, problem)
    expected = _KINDS.get(attribute.name, attribute.type)
    if attribute.type != expected:
        kinds = AttributeProto.AttributeType
        raise make_node_error(
            name,
            f"has the attribute {attribute.name!r} as {kinds.Name(attribute.type)}; "
            f"the operator has {kinds.Name(expected)}",
        )


def make_node_error(
    name: str, problem: str, *, hint: str = "Compile the source model again."
) -> InvalidGraph:
    """Return the error for an EPContext node; the problem follows its name."""
    # Protobuf gives bytes for a name that is not UTF-8; JSON has none.
    node = name if type(name) is str else repr(name)
    return InvalidGraph(f"EPContext node {name!r} {problem}.", node=node, hint=hint)


def make_context_node(
    frame: NodeProto,
    attributes: Mapping[str, Any],
    *,
    source: str,
    main_context: bool,
    embed_mode: bool,
    cache: bytes | None,
) -> NodeProto:
    """Return an EPContext node; attributes stand in alphabetical order, so that bytes
    are reproducible.

    Args:
        frame: its name, inputs, outputs and doc string; becomes the node.
        attributes: the vendor's own, and `partition_name` where the graph in the
            payload has another name than the node.
        cache: the payload or the file's name, None for a reference.
    """
    frame.op_type = OP_TYPE
    frame.domain = DOMAIN
    values: dict[str, Any] = {
        **attributes,
        "partition_name": attributes.get("partition_name") or frame.name,
        "embed_mode": int(embed_mode),
        "main_context": int(main_context),
        "source": source,
    }
    if cache is not None:
        values["ep_cache_context"] = cache
    from onnx import helper

    for key in sorted(values):
        frame.attribute.append(helper.make_attribute(key, values[key]))
    return frame
