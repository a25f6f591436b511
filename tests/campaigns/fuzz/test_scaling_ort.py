"""Costs grow with the size of an `.ort` file: no vector of the format multiplies, also
where every entry of it, and of the one around it, is the same table.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import flatbuffers
import pytest
from fuzz.test_scaling import steps

import epctx_core as epctx
from epctx_core.errors import InternalError

COUNT = 100
"""Entries of a vector, and of the one around it."""
STEPS_PER_BYTE = 60
"""Lines of Python that run for a byte at most; those of flatbuffers count."""
SCHEMA = "ort_flatbuffers_py"
FLOAT, TENSOR_TYPE = 1, 1
INT, FLOATS, INTS, STRINGS, TENSOR, TENSORS, GRAPH = 2, 6, 7, 8, 4, 9, 5


class Table:
    """A table of the format; one object is written once, whoever refers to it.

    Args:
        kind: its name in the schema.
        fields: numbers, texts, tables, or lists of those.
    """

    def __init__(self, kind: str, **fields: Any) -> None:
        self.kind, self.fields = kind, fields


class Writer:
    """Writes tables with onnxruntime's own classes for them."""

    def __init__(self) -> None:
        (folder,) = find_spec("onnxruntime").submodule_search_locations
        if (tools := f"{folder}/tools/ort_format_model") not in sys.path:
            sys.path.append(tools)
        self.builder = flatbuffers.Builder(0)
        self._known: dict[int, int] = {}

    def offset(self, value: Any) -> int:
        """Return where a value lies."""
        if isinstance(value, str):
            return self.builder.CreateSharedString(value)
        if id(value) not in self._known:
            made = (
                self._vector(value) if isinstance(value, list) else self._table(value)
            )
            self._known[id(value)] = made
        return self._known[id(value)]

    def _vector(self, items: list[Any]) -> int:
        if isinstance(items[0], int):
            self.builder.StartVector(8, len(items), 8)
            for item in items:
                self.builder.PrependInt64(item)
            return self.builder.EndVector()
        offsets = [self.offset(item) for item in items]
        self.builder.StartVector(4, len(items), 4)
        for offset in offsets:
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def _table(self, table: Table) -> int:
        fields = {
            name: value if isinstance(value, int) else self.offset(value)
            for name, value in table.fields.items()
        }
        schema = importlib.import_module(f"{SCHEMA}.fbs.{table.kind}")
        schema.Start(self.builder)
        for name, value in fields.items():
            getattr(schema, f"Add{name}")(self.builder, value)
        return schema.End(self.builder)


def write(root: Table) -> bytes:
    """Return a file."""
    writer = Writer()
    writer.builder.Finish(writer.offset(root), file_identifier=b"ORTM")
    return bytes(writer.builder.Output())


def graph(**fields: Any) -> Table:
    """Return a session whose model has one graph."""
    return session(Model=Table("Model", IrVersion=8, Graph=Table("Graph", **fields)))


def session(**fields: Any) -> Table:
    """Return a root table."""
    return Table("InferenceSession", OrtVersion="6", **fields)


def node(count: int, **fields: Any) -> Table:
    """Return a graph of one node, over and over."""
    one = Table("Node", OpType="Relu", **fields)
    return graph(Nodes=[one] * count)


def attribute(count: int, kind: int, **fields: Any) -> Table:
    """Return a graph of one node with one attribute, both over and over."""
    one = Table("Attribute", Name="a", Type=kind, **fields)
    return node(count, Attributes=[one] * count)


def value(count: int) -> Table:
    """Return a value whose shape has one dimension, over and over."""
    length = Table("DimensionValue", DimType=1, DimValue=1)
    shape = Table("Shape", Dim=[Table("Dimension", Value=length)] * count)
    tensor = Table("TensorTypeAndShape", ElemType=FLOAT, Shape=shape)
    type_ = Table("TypeInfo", ValueType=TENSOR_TYPE, Value=tensor)
    return Table("ValueInfo", Name="x", Type=type_)


def tensor(**fields: Any) -> Table:
    """Return a tensor."""
    return Table("Tensor", Name="t", DataType=FLOAT, **fields)


def resolver(count: int) -> Table:
    """Return types of one operator with one parameter, all over and over."""
    argument = Table("ArgTypeAndIndex", Index=0)
    entry = Table("KernelTypeStrArgsEntry", KernelTypeStr="T", Args=[argument] * count)
    operator = Table(
        "OpIdKernelTypeStrArgsEntry", OpId=":a:1", KernelTypeStrArgs=[entry] * count
    )
    types = Table("KernelTypeStrResolver", OpKernelTypeStrArgs=[operator] * count)
    return session(
        Model=Table("Model", IrVersion=8, Graph=Table("Graph")),
        KernelTypeStrResolver=types,
    )


VECTORS: dict[str, Callable[[int], Table]] = {
    "MetadataProps": lambda n: session(Model=Table("Model", MetadataProps=[Table("StringStringEntry", Key="k", Value="v" * n)] * n, Graph=Table("Graph"))),
    "OpsetImport": lambda n: session(Model=Table("Model", OpsetImport=[Table("OperatorSetId", Domain="d" * n, Version=1)] * n, Graph=Table("Graph"))),
    "Inputs": lambda n: graph(NodeArgs=[value(1)], Inputs=["x"] * n),
    "Outputs": lambda n: graph(NodeArgs=[value(1)], Outputs=["x"] * n),
    "NodeArgs": lambda n: graph(NodeArgs=[value(1)] * n),
    "Dim": lambda n: graph(NodeArgs=[value(n)] * n),
    "Dim of an input": lambda n: graph(NodeArgs=[value(n)], Inputs=["x"] * n),
    "Nodes": node,
    "Inputs of a node": lambda n: node(n, Inputs=["x"] * n),
    "Outputs of a node": lambda n: node(n, Outputs=["x"] * n),
    "Attributes": lambda n: attribute(n, INT, I=1),
    "Ints": lambda n: attribute(n, INTS, Ints=[1] * n),
    "Strings": lambda n: attribute(n, STRINGS, Strings=["s"] * n),
    "Tensors": lambda n: attribute(n, TENSORS, Tensors=[tensor()] * n),
    "T": lambda n: attribute(n, TENSOR, T=tensor(Dims=[1] * n)),
    "G": lambda n: attribute(n, GRAPH, G=Table("Graph", NodeArgs=[value(n)] * n)),
    "Initializers": lambda n: graph(Initializers=[tensor(Dims=[1] * n)] * n),
    "StringData": lambda n: graph(Initializers=[Table("Tensor", Name="t", DataType=8, StringData=["s"] * n)] * n),
    "SparseInitializers": lambda n: graph(SparseInitializers=[Table("SparseTensor", Values=tensor(), Indices=tensor(), Dims=[1] * n)] * n),
    "OpKernelTypeStrArgs": resolver,
}  # fmt: skip


@cache
def written(vector: str, count: int) -> bytes:
    """Return the file of a vector with as many entries."""
    return write(VECTORS[vector](count))


def test_every_vector_that_the_reader_reads_is_here():
    text = inspect.getsource(importlib.import_module("epctx_onnxruntime.ort_format"))
    read = re.findall(
        r'(?:_read_tables|_iterate_texts|_read_texts|_read_numbers)\(\w+, "(\w+)"\)',
        text,
    )
    within = {"KernelTypeStrArgs", "Args", "Dims"}

    assert set(read) - within == {name.split(" ")[0] for name in VECTORS} - {
        "T",
        "G",
        "Ints",
    }


@pytest.mark.parametrize("action", ["inspect", "verify", "load"])
@pytest.mark.parametrize("vector", VECTORS)
def test_a_vector_of_the_same_table_costs_in_proportion_to_the_file(
    tmp_path, vector, action
):
    # What is imported or made once is there before anything is counted.
    path = tmp_path / "m.ort"
    path.write_bytes(written(vector, 2))
    steps(action, path)
    costs = []
    for count in (COUNT, 2 * COUNT):
        path.write_bytes(written(vector, count))
        costs.append((steps(action, path), path.stat().st_size))

    (once, size), (twice, larger) = costs
    assert twice - once <= STEPS_PER_BYTE * (larger - size), costs


def test_the_files_are_read_as_they_are_meant():
    for vector in VECTORS:
        try:
            epctx.inspect_model(written(vector, 1))
        except epctx.EpctxError as error:
            assert not isinstance(error, InternalError)
            assert "cannot be decoded" not in error.message, (vector, error.message)
