"""Reader of ONNX Runtime's own file format (`.ort`); it returns ONNX models.

The format is a flatbuffer, read with onnxruntime's classes for it and not by its native
loader: a damaged file is an error and not a crash, operators need no kernel and no
schema, and weights are not copied. Optimisations in a file for ONNX Runtime's minimal
builds are left out; they change no result.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import struct
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from epctx_kernels import OPERATOR_TYPES, OperatorTypes, dump_operator_types
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from epctx_core.errors import EpctxError, InvalidProtobuf, NotFound
from epctx_onnxruntime.graphs import INLINE_LIMIT, all_graphs, rename_apart

if TYPE_CHECKING:
    from google.protobuf.message import Message

VERSIONS = range(1, 7)
"""Versions of the format that onnxruntime 1.32 reads."""
_IDENTIFIER = b"ORTM"
_COMPLETE_FROM = 5
"""First version with type constraints of operators (onnxruntime 1.13)."""
_NUMBERS = {AttributeProto.FLOAT: "f", AttributeProto.INT: "i"}
_LISTS = {AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints"}
_MOST_NESTED = 64
_MOST_SHARED = 16
"""Largest average number of references to a byte of a file, most of them names."""
_REFERENCE_SIZE = 4
_TABLE_SIZE = 8
"""Fewest bytes of a table: a reference to its fields' offsets, and one to the table."""
_DEFAULT_DOMAINS = ("", "ai.onnx")
_SCHEMA = "ort_flatbuffers_py"
_DECODING = (
    struct.error,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
)
"""Errors of Python for an invalid offset, length or text."""

_log = logging.getLogger("epctx.context")


def recognizes(data: bytes) -> bool:
    """Return whether bytes are a model in ONNX Runtime's own format."""
    return data[4:8] == _IDENTIFIER


def decode(data: bytes, path: Path | None, count: Callable[[str], None]) -> ModelProto:
    """Decode a model, with the type constraints of its operators without a schema in
    its metadata, for EPs with kernels.

    Weights above `INLINE_LIMIT` bytes of a file are external tensors in that file;
    those of bytes are copied.

    Args:
        data: the whole file.
        path: of the file, None for bytes.
        count: called with `messages`, `nodes`, `names` or `bodies` for each one that is
            decoded; raises for too many.

    Raises:
        InvalidProtobuf: it is damaged, or of an unknown version.
    """
    where = path.name if path else "the model given as bytes"
    session_class = _import_session_class()
    version = ""
    try:
        session = session_class.GetRootAs(data, 0)
        version = (session.OrtVersion() or b"").decode()
        _check_version(version, where, path)
        return _Decoder(data, path, count).model(session)
    except _DECODING as error:
        if isinstance(error, EpctxError):
            raise
        called = f"version {version} of " if version else ""
        raise InvalidProtobuf(
            f"{where} is damaged: it is in {called}ONNX Runtime's format (.ort), and "
            f"cannot be decoded: {error}.",
            path=path,
            hint="Fetch the file again, or convert its ONNX model again.",
        ) from error


def _import_session_class() -> Any:
    """Return onnxruntime's class of the root table, imported without a new entry in
    `sys.path`.
    """
    if _SCHEMA not in sys.modules:
        # Not `find_spec`: after `install` that is the drop-in.
        package_spec = PathFinder.find_spec("onnxruntime")
        folders = (
            []
            if package_spec is None
            else list(package_spec.submodule_search_locations or ())
        )
        inits = [
            Path(f, "tools", "ort_format_model", _SCHEMA, "__init__.py")
            for f in folders
        ]
        init = next((path for path in inits if path.is_file()), None)
        if init is None:
            raise NotFound(
                "onnxruntime's classes for its own format (.ort) were not found.",
                hint="pip install --force-reinstall onnxruntime",
            )
        spec = importlib.util.spec_from_file_location(
            _SCHEMA, init, submodule_search_locations=[str(init.parent)]
        )
        assert spec is not None  # noqa: S101 - a file that is there has one
        assert spec.loader is not None  # noqa: S101
        sys.modules[_SCHEMA] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return importlib.import_module(f"{_SCHEMA}.fbs.InferenceSession").InferenceSession


def _check_version(text: str, where: str, path: Path | None) -> None:
    if not text.isdecimal() or int(text) not in VERSIONS:
        raise InvalidProtobuf(
            f"{where} is in version {text[:40]!r} of ONNX Runtime's format (.ort); "
            f"versions {VERSIONS.start} to {VERSIONS.stop - 1} are known.",
            path=path,
            hint=(
                "Update epctx and onnxruntime, or convert the ONNX model with an "
                "older onnxruntime."
            ),
        )
    if int(text) < _COMPLETE_FROM:
        _log.warning(
            (
                "%s is in version %s of ONNX Runtime's format (.ort), which came "
                "before onnxruntime 1.13: optimisations saved in it are ignored. "
                "Convert the model again."
            ),
            where,
            text,
        )


class _Decoder:
    """Decoder of a flatbuffer to an ONNX model.

    A table may have many references, so a small file could describe a huge model:
    decoded bytes are counted. onnxruntime itself shares only names of values, so tables
    and lists of texts that take more room than the file has are refused.
    """

    def __init__(
        self, data: bytes, path: Path | None, count: Callable[[str], None]
    ) -> None:
        self._data = np.frombuffer(data, np.uint8)
        # A name in protobuf has to be UTF-8.
        self._file = path.name if path is not None and path.name.isprintable() else None
        self._left = _MOST_SHARED * len(data)
        self._left_for_structure = len(data)
        self._add = count

    def model(self, session: Any) -> ModelProto:
        model = session.Model()
        proto = ModelProto(
            ir_version=model.IrVersion(), model_version=model.ModelVersion()
        )
        self._set_texts(
            proto,
            producer_name=model.ProducerName(),
            producer_version=model.ProducerVersion(),
            domain=model.Domain(),
            doc_string=model.DocString(),
        )
        for entry in self._read_tables(model, "MetadataProps"):
            proto.metadata_props.add(
                key=self._read_text(entry.Key()), value=self._read_text(entry.Value())
            )
        self._convert_graph(model.Graph(), proto.graph, nested=0)
        self._set_texts(proto.graph, doc_string=model.GraphDocString())
        rename_apart(proto.graph)
        # onnxruntime writes every domain that it knows.
        used = {
            "",
            *(
                node.domain
                for _, graph in all_graphs(proto.graph)
                for node in graph.node
            ),
        }
        for opset in self._read_tables(model, "OpsetImport"):
            domain = self._read_text(opset.Domain())
            if ("" if domain in _DEFAULT_DOMAINS else domain) in used:
                proto.opset_import.add(domain=domain, version=opset.Version())
        if operators := list(filter(_has_no_schema, self._read_operators(session))):
            proto.metadata_props.add(
                key=OPERATOR_TYPES, value=dump_operator_types(operators)
            )
        return proto

    def _convert_graph(self, graph: Any, proto: GraphProto, *, nested: int) -> None:
        if nested > _MOST_NESTED:
            raise ValueError(f"subgraphs are nested more than {_MOST_NESTED} deep")
        self._add("bodies")
        proto.name = "main_graph" if nested == 0 else f"subgraph_{nested}"
        values = {
            self._read_text(value.Name()): value
            for value in self._read_tables(graph, "NodeArgs")
        }
        inputs = self._read_texts(graph, "Inputs")
        outputs = self._read_texts(graph, "Outputs")
        for tensor in self._read_tables(graph, "Initializers"):
            self._convert_tensor(tensor, proto.initializer.add(), detach=nested == 0)
        for sparse in self._read_tables(graph, "SparseInitializers"):
            target = proto.sparse_initializer.add(
                dims=self._read_numbers(sparse, "Dims")
            )
            self._convert_tensor(self._count_table(sparse.Values()), target.values)
            self._convert_tensor(self._count_table(sparse.Indices()), target.indices)
        for node in self._read_tables(graph, "Nodes"):
            self._convert_node(node, proto, nested)
        for names, target in ((inputs, proto.input), (outputs, proto.output)):
            for name in names:
                self._convert_value(values[name], target.add())
        declared = {"", *inputs, *outputs, *(t.name for t in proto.initializer)}
        for name, value in values.items():
            if name not in declared and value.Type() is not None:
                self._convert_value(value, proto.value_info.add())

    def _convert_node(self, node: Any, graph: GraphProto, nested: int) -> None:
        self._add("nodes")
        if node.Type():
            raise ValueError(
                f"node {self._read_text(node.Name())!r} is compiled code of an EP, not "
                "an operator"
            )
        domain = self._read_text(node.Domain())
        proto = graph.node.add(
            op_type=self._read_text(node.OpType()),
            input=self._read_texts(node, "Inputs"),
            output=self._read_texts(node, "Outputs"),
        )
        self._set_texts(proto, name=node.Name(), doc_string=node.DocString())
        if domain not in _DEFAULT_DOMAINS:
            proto.domain = domain
        for attribute in self._read_tables(node, "Attributes"):
            self._convert_attribute(attribute, proto.attribute.add(), nested)

    def _convert_attribute(
        self, attribute: Any, proto: AttributeProto, nested: int
    ) -> None:
        proto.name = self._read_text(attribute.Name())
        proto.type = attribute.Type()
        self._set_texts(proto, doc_string=attribute.DocString())
        if proto.type in _NUMBERS:
            field = _NUMBERS[proto.type]
            setattr(proto, field, getattr(attribute, field.upper())())
        elif proto.type in _LISTS:
            field = _LISTS[proto.type]
            getattr(proto, field).extend(self._read_numbers(attribute, field.title()))
        elif proto.type == AttributeProto.STRING:
            proto.s = self._count_text(attribute.S() or b"")
        elif proto.type == AttributeProto.STRINGS:
            proto.strings.extend(self._iterate_texts(attribute, "Strings"))
        elif proto.type == AttributeProto.TENSOR:
            self._convert_tensor(self._count_table(attribute.T()), proto.t)
        elif proto.type == AttributeProto.TENSORS:
            for tensor in self._read_tables(attribute, "Tensors"):
                self._convert_tensor(tensor, proto.tensors.add())
        elif proto.type == AttributeProto.GRAPH:
            self._convert_graph(
                self._count_table(attribute.G()), proto.g, nested=nested + 1
            )
        else:
            raise ValueError(
                f"attribute {proto.name!r} has the unknown type {proto.type}"
            )

    def _convert_tensor(
        self, tensor: Any, proto: TensorProto, *, detach: bool = False
    ) -> None:
        proto.name = self._read_text(tensor.Name())
        proto.data_type = tensor.DataType()
        self._set_texts(proto, doc_string=tensor.DocString())
        proto.dims.extend(self._read_numbers(tensor, "Dims"))
        if tensor.ExternalDataOffset() >= 0:
            raise ValueError(
                f"tensor {proto.name!r} lies in another file, which only training "
                "writes"
            )
        if proto.data_type == TensorProto.STRING:
            proto.string_data.extend(self._iterate_texts(tensor, "StringData"))
            return
        raw = tensor.RawDataAsNumpy()
        size = 0 if isinstance(raw, int) else raw.nbytes
        if not detach or self._file is None or size <= INLINE_LIMIT:
            self._count(size)
            proto.raw_data = raw.tobytes() if size else b""
            return
        offset = (
            raw.__array_interface__["data"][0]
            - self._data.__array_interface__["data"][0]
        )
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", self._file),
            ("offset", str(offset)),
            ("length", str(size)),
        ):
            proto.external_data.add(key=key, value=value)

    def _convert_value(self, value: Any, proto: ValueInfoProto) -> None:
        proto.name = self._read_text(value.Name())
        self._set_texts(proto, doc_string=value.DocString())
        if (kind := value.Type()) is not None:
            self._convert_type(kind, proto.type, 0)

    def _convert_type(self, info: Any, proto: TypeProto, nested: int) -> None:
        self._count_table(info)
        if nested > _MOST_NESTED:
            raise ValueError(f"types are nested more than {_MOST_NESTED} deep")
        self._set_texts(proto, denotation=info.Denotation())
        which = info.ValueType()
        if which == 0:
            return
        name = ("TensorTypeAndShape", "SequenceType", "MapType")[which - 1]
        table = self._count_table(info.Value())
        value = getattr(importlib.import_module(f"{_SCHEMA}.fbs.{name}"), name)()
        value.Init(table.Bytes, table.Pos)
        if which == 1:
            proto.tensor_type.elem_type = value.ElemType()
            if (shape := value.Shape()) is not None:
                self._convert_shape(self._count_table(shape), proto.tensor_type)
        elif which == 2:  # noqa: PLR2004 - numbers of the flatbuffer's union
            self._convert_type(
                value.ElemType(), proto.sequence_type.elem_type, nested + 1
            )
        else:
            proto.map_type.key_type = value.KeyType()
            self._convert_type(value.ValueType(), proto.map_type.value_type, nested + 1)

    def _convert_shape(self, shape: Any, proto: TypeProto.Tensor) -> None:
        proto.shape.SetInParent()
        for dim in self._read_tables(shape, "Dim"):
            target = proto.shape.dim.add()
            self._set_texts(target, denotation=dim.Denotation())
            if (value := dim.Value()) is None:
                continue
            self._count_table(value)
            if value.DimType() == 1:
                target.dim_value = value.DimValue()
            else:
                self._set_texts(target, dim_param=value.DimParam())

    def _read_operators(self, session: Any) -> Iterator[OperatorTypes]:
        """Yield the type constraints of operators, which the file has for builds
        without schemas.
        """
        resolver = session.KernelTypeStrResolver()
        for operator in (
            ()
            if resolver is None
            else self._read_tables(resolver, "OpKernelTypeStrArgs")
        ):
            domain, op_type, version = self._read_text(operator.OpId()).rsplit(":", 2)
            names: tuple[dict[int, str], dict[int, str]] = {}, {}
            for entry in self._read_tables(operator, "KernelTypeStrArgs"):
                name = self._read_text(entry.KernelTypeStr())
                for argument in self._read_tables(entry, "Args"):
                    names[argument.ArgType()].setdefault(argument.Index(), name)
            yield OperatorTypes(
                domain="" if domain in _DEFAULT_DOMAINS else domain,
                op_type=op_type,
                since_version=int(version),
                inputs=_order(names[0], "input"),
                outputs=_order(names[1], "output"),
            )

    def _set_texts(self, proto: Message, **texts: bytes | None) -> None:
        """Set text fields that are not empty; protobuf would keep empty ones."""
        for field, text in texts.items():
            if text:
                setattr(proto, field, self._read_text(text))

    def _read_tables(self, table: Any, field: str) -> Iterator[Any]:
        """Yield the tables of a field."""
        get = getattr(table, field)
        for index in range(getattr(table, f"{field}Length")()):
            yield self._count_table(get(index))

    def _count_table(self, table: Any) -> Any:
        """Count a table, and return it."""
        self._add("messages")
        self._count_structure(_TABLE_SIZE)
        return table

    def _iterate_texts(self, table: Any, field: str) -> Iterator[bytes]:
        """Yield the texts of a field."""
        get = getattr(table, field)
        for index in range(getattr(table, f"{field}Length")()):
            self._count_structure(_REFERENCE_SIZE)
            yield self._count_text(get(index) or b"")

    def _read_texts(self, table: Any, field: str) -> list[str]:
        texts = []
        for text in self._iterate_texts(table, field):
            self._add("names")
            texts.append(text.decode())
        return texts

    def _read_text(self, text: bytes | None) -> str:
        self._add("names")
        return self._count_text(text or b"").decode()

    def _count_text(self, text: bytes) -> bytes:
        self._count(len(text))
        return text

    def _read_numbers(self, table: Any, field: str) -> list[Any]:
        array = getattr(table, f"{field}AsNumpy")()
        if isinstance(array, int):
            return []
        self._count(array.nbytes)
        numbers: list[Any] = array.tolist()
        return numbers

    def _count_structure(self, size: int) -> None:
        self._left_for_structure -= size
        self._count(0)

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0 or self._left_for_structure < 0:
            raise ValueError("its tables refer to the same bytes too often")


def _order(names: dict[int, str], prefix: str) -> tuple[str, ...]:
    """Return the type variables of all parameters; one that is missing gets its own."""
    last = max(names, default=-1)
    if last > len(names) + _MOST_NESTED:
        raise ValueError(f"an operator has {last} parameters")
    return tuple(names.get(index, f"{prefix} {index}") for index in range(last + 1))


def _has_no_schema(operator: OperatorTypes) -> bool:
    return not onnx.defs.has(operator.op_type, operator.since_version, operator.domain)
