"""Reading ONNX models: bytes to a checked model with mapped weights.

Nothing here depends on EPs, and no file but the model itself is opened: the caller
supplies a function that opens files named by a model.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError, Message

from epctx_core.errors import InvalidGraph, InvalidProtobuf, quote
from epctx_core.frozen import dataclass
from epctx_core.graph.mapping import (
    ModelInput,
    OpenedFiles,
    identify_file,
    open_model_file,
)
from epctx_core.graph.walks import (
    DEFAULT_DOMAINS,
    DENSE_OR_SPARSE,
    OVERRIDABLE_SINCE,
    WITHOUT_TENSORS,
    Operators,
    can_have_subgraphs,
    copy_message,
    iter_named_subgraphs,
    keep_messages,
    list_given_names,
    list_operators,
    read_opset_imports,
    shorten_domain,
    walk_graphs,
    walk_tensors,
    walk_types,
)
from epctx_core.graph.weights import (
    INLINE_LIMIT,
    MAX_RANK,
    ModelContent,
    OpenExternal,
    Weight,
    compute_digests_ahead,
    is_detached,
)
from epctx_core.graph.wire import decode_name, separate_weights
from epctx_core.plugin.protos import (
    ELEMENT_TYPES,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    make_tensor_value_info,
)

if TYPE_CHECKING:
    from epctx_core.graph.weights import Weights

_SHAPED_BY_LAST_OF = {"Reshape": 2, "Expand": 2, "ConstantOfShape": 1}
"""Operators of which the last of so many inputs is the shape of the result."""
_BYTES_PER_FIELD = 1 << 10
"""Bytes of a model for each field that is stepped over to find its weights: one with
more fields has many nodes, and is decoded as a whole.
"""
_SMALL_MODEL = 1 << 16
"""Bytes of a model below which it is decoded as a whole."""
_SUBGRAPHS = {"If": {"then_branch", "else_branch"}, "Loop": {"body"}}
"""All attributes of the operators with subgraphs that have no others."""
LARGE_STRUCTURE = 8 << 20
"""Bytes of a model without its weights from which it is checked before it is decoded.
"""
_DAMAGED = "The file is damaged, or a faulty tool wrote it; export the model again."
_KNOWN_IR = 14
_KNOWN_OPSET = 28
"""Newest versions that the oldest onnx has which epctx works with; later ones may mean
what the one here does not know.
"""
MOST_BYTES = (1 << 31) - 1
"""Bytes of the largest message that protobuf reads and writes."""


@dataclass(kw_only=True)
class SourceModel:
    """Model as read.

    Attributes:
        proto: the model without its large weights; see `detach_weights`.
        weights: all initializers of the main graph by name.
        path: where it was read from, None for bytes.
        content: all bytes of the file, or those given, if they are not digested yet;
            None for a part of a model.
        known_digest: their digest, once it is made.
        locations: the real paths of the files that its weights were read from, each
            with the name that the model has for it.
        unknown_operators: those in ONNX's own domains that onnx does not have in the
            model's version, by domain, name and version. onnxruntime has a few.
    """

    proto: ModelProto
    weights: Weights
    path: Path | None
    content: Weight | None = None
    known_digest: str = ""
    locations: Mapping[str, str] = field(default_factory=dict)
    unknown_operators: frozenset[tuple[str, str, int]] = frozenset()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all bytes; empty for a part of a model.

        A session without EPs never asks for it: making it takes as long as half of all
        else there.
        """
        return self.known_digest or (self.content.digest if self.content else "")

    @property
    def name(self) -> str:
        """The file's name without its last extension, or the graph's name."""
        return self.path.stem if self.path else self.proto.graph.name or "model"

    @property
    def where(self) -> str:
        """Name of this model for messages."""
        return describe_path(self.path)

    @property
    def opset_imports(self) -> dict[str, int]:
        """Domain to version; the default domain is the empty string."""
        return read_opset_imports(self.proto)


def get_model_path(model: ModelInput) -> Path | None:
    """Return a model's path, None if it was given as bytes."""
    return None if isinstance(model, bytes) else Path(model)


def describe_path(path: Path | None) -> str:
    """Return the name of a model for messages."""
    return path.name if path else "the model given as bytes"


def read_model(
    model: ModelInput, opened: OpenedFiles | None = None
) -> tuple[bytes, Path | None]:
    """Return a model's bytes and its path, None if it was given as bytes.

    Args:
        model: a path or bytes.
        opened: gets the model's file, to be compared with those that the model names.

    Raises:
        NoSuchFile: there is no such file.
        InvalidProtobuf: it is larger than a protobuf can be.
        InvalidArgument: neither a path nor bytes, or not a regular file.
        InvalidGraph: it was written to while it was read.
    """
    if isinstance(model, bytes):
        return model, None
    with open_model_file(model) as (file, path):
        before = os.fstat(file.fileno())
        size = before.st_size
        if size > MOST_BYTES:
            # No memory is taken for it: it may be nearly all holes.
            raise InvalidProtobuf(
                f"{path.name} is not an ONNX model: it has {size:,} bytes, and a "
                "protobuf has less than 2 GiB.",
                path=path,
                hint=("Weights beyond that lie in files of their own (external data)."),
            )
        if opened is not None:
            opened.set_model(file, path)
        data = file.read()
        if identify_file(os.fstat(file.fileno())) != identify_file(before):
            raise InvalidGraph(
                f"the file {str(path)!r} was written to while it was read.",
                path=path,
                hint="Let whatever writes it finish, then start again.",
            )
    return data, path


def separate_model(data: bytes, path: Path | None) -> ModelContent:
    """Separate a serialised model from its large weights, where these are most of it;
    see `separate_weights`.
    """
    content = ModelContent(view=memoryview(data), structure=data, path=path)
    if len(data) < _SMALL_MODEL:
        return content

    most_fields = len(data) // _BYTES_PER_FIELD
    try:
        pieces, extents = separate_weights(content.view, INLINE_LIMIT + 1, most_fields)
    except ValueError:
        # Of what is damaged the decoder says what is wrong.
        return content
    # Each weight keeps all of the model's bytes in memory.
    if 2 * sum(length for _, length in extents.values()) < len(data):
        return content
    return replace(content, structure=b"".join(pieces), extents=extents)


def parse_model(data: bytes, path: Path | None) -> ModelProto:
    """Decode an ONNX model.

    Raises:
        InvalidProtobuf: empty, not a protobuf, or without a graph.
    """
    if not data:
        raise InvalidProtobuf(f"{describe_path(path)} is empty.", path=path)
    try:
        proto: ModelProto = ModelProto.FromString(data)
    except DecodeError as error:
        is_pointer = data.startswith(b"version https://git-lfs")
        raise InvalidProtobuf(
            f"{describe_path(path)} is not an ONNX model, or it is cut off or damaged.",
            path=path,
            hint="It is a pointer of Git LFS: `git lfs pull` fetches the model."
            if is_pointer
            else None,
        ) from error
    if not proto.HasField("graph"):
        raise InvalidProtobuf(
            f"{describe_path(path)} is not an ONNX model: it has no graph.", path=path
        )
    return proto


@contextmanager
def require_text_names() -> Iterator[None]:
    """Turn a name that is not UTF-8 into a typed error: protobuf reads it as bytes, and
    does not accept those.

    Raises:
        InvalidGraph: there is one.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidGraph(
            f"the model has a name that is not UTF-8: {bytes(error.object)!r:.100}.",
            hint=_DAMAGED,
        ) from error


def check_text(messages: Iterable[Message]) -> None:
    """Check that all text in parts of a model is UTF-8, where onnx's own code would
    fail.

    Raises:
        InvalidGraph: some is not UTF-8.
    """
    pending = list(messages)
    while pending:
        for field_, value in pending.pop().ListFields():
            values = value if field_.is_repeated else [value]
            if field_.message_type is not None:
                pending.extend(values)
            elif field_.type == field_.TYPE_STRING:
                with require_text_names():
                    for text in values:
                        decode_name(text)


def detach_model(
    proto: ModelProto,
    content: ModelContent,
    open_external: OpenExternal,
    *,
    checked: bool = False,
    changed: bool = False,
    digested: bool = True,
) -> SourceModel:
    """Separate a decoded model's weights from its structure and check the structure.

    Args:
        proto: the model, which becomes a part of the result.
        content: its serialised form.
        open_external: opens a file that the model names.
        checked: whether the content passed `is_accepted_by_checker`.
        changed: whether the content is not the model: it was changed since, or is in
            another format.
        digested: whether the digest will be asked for, so that it is made meanwhile.

    Raises:
        InvalidGraph: the ONNX checker refuses the model, a weight is wrong, or a
            function's text is none.
    """
    path = content.path
    data = content.structure
    check_text((*proto.opset_import, *proto.functions))
    operators = list_operators(proto.graph)
    checked = checked or is_sound_context_model(proto, operators)
    if not checked:
        check_opsets(proto, path)
    whole = Weight("", TensorProto.UINT8, (len(content.view),), content.view)
    with compute_digests_ahead([whole] if digested else []):
        # A tensor in a file names it under this key. Where the word is nowhere, no
        # tensor need be looked at; where it is in a payload only, the bytes are the
        # whole model.
        files = b"location" in data and any(
            map(is_detached, walk_tensors(proto.graph, proto.functions))
        )
        weights: Weights = {}
        # One of EPContext nodes alone has none, not even in a Constant.
        graph = proto.graph
        if (
            files
            or graph.initializer
            or graph.sparse_initializer
            or not operators <= WITHOUT_TENSORS
        ):
            from epctx_core.graph.tensor_bytes import detach_weights

            weights = detach_weights(
                graph,
                open_external,
                proto.functions,
                files=files,
                model=content,
            )
        detached = changed or files or any(map(is_detached, proto.graph.initializer))
        source = SourceModel(proto=proto, weights=weights, path=path, content=whole)
        if checked:
            check_value_types(source, operators)
        else:
            check_model(source, None if detached else data, operators)
        if digested:
            source.known_digest = whole.digest
            source.content = None

    return source


def is_sound_context_model(proto: ModelProto, operators: Operators) -> bool:
    """Return whether a model has EPContext nodes and is in ONNX's form, as far as
    whoever reads it takes for granted; of any other one onnx's checker has to say.

    To import that takes longer than to load such a model. Weights, types and EPContext
    nodes are checked where they are read, and engines check the other nodes.

    Args:
        proto: the model.
        operators: those of its nodes.
    """
    imported = {shorten_domain(opset.domain) for opset in proto.opset_import}
    keys = {entry.key for entry in proto.metadata_props}
    return (
        not operators.isdisjoint(WITHOUT_TENSORS)
        and OVERRIDABLE_SINCE <= proto.ir_version <= _KNOWN_IR
        and all(0 < opset.version <= _KNOWN_OPSET for opset in proto.opset_import)
        and not proto.functions
        and len(keys) == len(proto.metadata_props)
        # What is not UTF-8 is read as bytes.
        and all(
            domain in imported and name and isinstance(name, str)
            for domain, name in operators
        )
        and all(value.type.tensor_type.elem_type for value in proto.graph.input)
        and _is_sound(proto.graph, {""}, any(starmap(can_have_subgraphs, operators)))
    )


def _is_sound(graph: GraphProto, known: set[str], has_subgraphs: bool) -> bool:
    """Return whether a graph and those in it give each name once, and before it is
    read.

    Args:
        graph: the graph.
        known: names of the scope around it, and the empty one; gets those of the graph.
        has_subgraphs: whether nodes may have some.
    """
    inputs = {value.name for value in graph.input}
    weights = {tensor.name for tensor in graph.initializer}
    given = inputs | weights
    if (
        graph.sparse_initializer
        or len(inputs) < len(graph.input)
        or len(weights) < len(graph.initializer)
        or not known.isdisjoint(given)
        # Text is no weight, and nobody else checks it.
        or TensorProto.STRING in {tensor.data_type for tensor in graph.initializer}
    ):
        return False

    known |= given
    for node in graph.node:
        if not known.issuperset(node.input):
            return False
        if has_subgraphs and not _has_sound_subgraphs(node, known):
            return False
        # A model can have very many nodes, and nearly all of them give new names alone.
        results = node.output[:]
        expected = len(known) + len(results)
        known.update(results)
        if len(known) < expected and len(known) + results.count("") < expected:
            return False
    return True


def _has_sound_subgraphs(node: NodeProto, known: set[str]) -> bool:
    """Return whether a node has no subgraphs, or is an If or Loop with its own, which
    give their outputs; `known` are the names around it, see `_is_sound`.
    """
    domain = shorten_domain(node.domain)
    if not can_have_subgraphs(domain, node.op_type):
        return True
    subgraphs = dict(iter_named_subgraphs(node))
    if domain:
        return not subgraphs
    if subgraphs.keys() != _SUBGRAPHS.get(node.op_type) or len(subgraphs) < len(
        node.attribute
    ):
        return False

    for subgraph in subgraphs.values():
        outputs = [value.name for value in subgraph.output]
        if (
            not _is_sound(subgraph, known, has_subgraphs=True)
            or "" in outputs
            or not known.issuperset(outputs)
        ):
            return False
        # The next branch may give the same names.
        results = chain.from_iterable(inner.output for inner in subgraph.node)
        known.difference_update(list_given_names(subgraph), results)
        known.add("")
    return True


def is_accepted_by_checker(data: bytes) -> bool:
    """Return whether the ONNX checker accepts a model as it is."""
    import onnx

    try:
        onnx.checker.check_model(data)
    except (onnx.checker.ValidationError, ValueError):
        return False
    return True


def check_opsets(proto: ModelProto, path: Path | None) -> None:
    """Check that onnx knows the operator versions: it would read later ones as its
    newest.

    Raises:
        InvalidGraph: a version is later.
    """
    import onnx

    newest = onnx.defs.onnx_opset_version()
    for opset in proto.opset_import:
        if opset.domain in DEFAULT_DOMAINS and opset.version > newest:
            raise InvalidGraph(
                f"{describe_path(path)} imports version {opset.version} of ONNX's "
                f"operators; onnx {onnx.__version__} has up to {newest}.",
                path=path,
                hint="Install a newer onnx, or export the model for an older version.",
            )


def _find_computed_ranks(graphs: Sequence[GraphProto]) -> Iterator[tuple[str, int]]:
    """Yield results with a shape of more elements than a tensor has dimensions, as far
    as it is an initializer or an input.
    """
    initializers = (t for graph in graphs for t in graph.initializer)
    long = {
        t.name: t.dims[0]
        for t in initializers
        if len(t.dims) == 1 and t.dims[0] > MAX_RANK
    }
    for value in chain(*(graph.input for graph in graphs)):
        dims = value.type.tensor_type.shape.dim
        if len(dims) == 1 and dims[0].dim_value > MAX_RANK:
            long[value.name] = dims[0].dim_value
    for node in chain(*(graph.node for graph in graphs)) if long else ():
        is_shaped = (
            len(node.input) == _SHAPED_BY_LAST_OF.get(node.op_type)
            and node.domain in DEFAULT_DOMAINS
        )
        if is_shaped and node.input[-1] in long and node.output:
            yield node.output[0], long[node.input[-1]]


def check_model(
    source: SourceModel, data: bytes | None = None, operators: Operators | None = None
) -> None:
    """Run the ONNX checker over a model's structure.

    A model that onnxruntime accepts and ONNX does not is normalised first
    (`normalise`). Inputs and outputs may leave their shape open, and outputs their
    type.

    Args:
        source: the model; changed in place where it is not in ONNX's form.
        data: its bytes, if they are still the same model.
        operators: those of its nodes, if they are known.

    Raises:
        InvalidGraph: with the checker's words, or a type that ONNX does not have.
    """
    import onnx

    check_value_types(source, operators)
    try:
        try:
            onnx.checker.check_model(
                get_structure(source.proto) if data is None else data
            )
        except onnx.checker.ValidationError:
            from epctx_core.graph.normalise import (
                declare_open_types,
                hide_unknown_operators,
                normalise,
            )

            normalise(source.proto)
            probe = declare_open_types(get_structure(source.proto))
            source.unknown_operators = hide_unknown_operators(probe)
            onnx.checker.check_model(probe)
    except (onnx.checker.ValidationError, ValueError) as error:
        # A ValueError if the checker's message contains a name that is not UTF-8.
        raise InvalidGraph(
            f"the ONNX checker refuses {source.where}: {quote(error)}", path=source.path
        ) from error


def check_value_types(source: SourceModel, operators: Operators | None = None) -> None:
    """Check that the types of values exist in ONNX, which its checker and its inference
    assume, and that no value has more dimensions than a tensor can have: inference
    would copy them to every later node.

    Args:
        source: the model.
        operators: those of its nodes, if they are known.

    Raises:
        InvalidGraph: an unknown element type, an open type in a sequence, optional or
            map, or too many dimensions.
    """
    walk = walk_graphs(source.proto.graph, operators=operators)
    graphs = [graph for _, graph in walk]
    declared = [(*graph.value_info, *graph.input, *graph.output) for graph in graphs]
    declared += [tuple(function.value_info) for function in source.proto.functions]
    for values in declared:
        types = [value.type for value in values]
        tensors = [type_.tensor_type for type_ in types]
        # Nearly all are plain tensors, and looked at in one go.
        if (
            {type_.WhichOneof("value") for type_ in types} <= {"tensor_type"}
            and {tensor.elem_type for tensor in tensors} <= ELEMENT_TYPES.keys()
            and max([len(t.shape.dim) for t in tensors], default=0) <= MAX_RANK
        ):
            continue
        for value, type_ in zip(values, types, strict=True):
            wrong = _find_wrong_type(type_)
            if wrong:
                raise InvalidGraph(
                    f"the value {value.name!r} of {source.where} has {wrong}.",
                    path=source.path,
                    hint=_DAMAGED,
                )

    for name, rank in _find_computed_ranks(graphs):
        raise InvalidGraph(
            f"the value {name!r} of {source.where} has {rank:,} dimensions; at most "
            f"{MAX_RANK} are possible.",
            path=source.path,
            hint=_DAMAGED,
        )


def _find_wrong_type(type_: TypeProto) -> str:
    """Describe the fault of a declared type; return an empty text for a valid or open
    one.
    """
    outer = ""
    for which, each in walk_types(type_):
        if outer and not which:
            return f"a {outer} of nothing, which ONNX does not have"
        if which in DENSE_OR_SPARSE or which == "map_type":
            inner = getattr(each, which)
            number = inner.key_type if which == "map_type" else inner.elem_type
            if number not in ELEMENT_TYPES:
                return f"the element type {number}, which ONNX does not have"
        if which in DENSE_OR_SPARSE and len(inner.shape.dim) > MAX_RANK:
            rank = len(inner.shape.dim)
            return f"{rank:,} dimensions; at most {MAX_RANK} are possible"
        outer = which
    return ""


def get_structure(proto: ModelProto) -> ModelProto:
    """Return the model with its detached weights as graph inputs, so that onnx's own
    code takes it.

    The checker and shape inference would look for the file of a detached weight.
    """
    detached = [*filter(is_detached, proto.graph.initializer)]
    if not detached:
        return proto
    probe: ModelProto = copy_message(proto)
    keep_messages(probe.graph.initializer, lambda tensor: not is_detached(tensor))
    present = {value.name for value in probe.graph.input}
    probe.graph.input.extend(
        make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in detached
        if t.name not in present
    )
    return probe
