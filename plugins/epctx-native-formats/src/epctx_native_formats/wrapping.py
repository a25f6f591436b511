"""ONNX models that load a vendor's binary: an EPContext node for each graph."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.errors import (
    Fail,
    InvalidArgument,
    NotImplementedByProvider,
    convert_errors,
)
from epctx_native_formats.binaries import describe_binary

if TYPE_CHECKING:
    from epctx_files import FilesReport
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

    from epctx_native_formats.binaries import (
        NativeBinary,
        NativeGraph,
        NativeTensor,
        PathInput,
        Quantization,
    )

_OPSETS = {"": 21, "com.microsoft": 1}
"""From 21 on QuantizeLinear has 4 and 16 bits."""
_IR_VERSION = 10
_QUANTIZED = "{}_quantized"


@convert_errors("wrapping a binary")
def wrap_binary(
    binary: PathInput,
    output: PathInput,
    *,
    graphs: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    as_float: bool = False,
    embed: bool = False,
) -> FilesReport:
    """Write a context model that loads a vendor's binary, with digests of both.

    onnxruntime and epctx give an EPContext node's inputs to the values of the graph by
    name, and by position where the names are others.

    Args:
        binary: path of a binary whose graphs can be read.
        output: the model; the binary is copied or linked beside it.
        graphs: names of the graphs that get a node; may be left out if there is one.
        rename: names of the model's inputs and outputs, by those in the graph.
        as_float: whether quantised inputs and outputs become float32, by QuantizeLinear
            and DequantizeLinear nodes, which the CPU EP runs.
        embed: whether the binary becomes part of the model.

    Returns:
        The files.

    Raises:
        NoSuchFile, InvalidGraph: the binary is missing or damaged.
        NotImplementedByProvider: it cannot be wrapped, or a package that this needs is
            not installed.
        InvalidArgument: a name is unknown, or there twice.
        Fail: the files cannot be written.
    """
    try:
        import epctx_files
    except ModuleNotFoundError as error:
        raise NotImplementedByProvider(
            "wrapping a binary needs epctx-files, which is not installed.",
            hint="pip install epctx-files",
        ) from error
    path, target = Path(binary), Path(output)
    description = describe_binary(path)
    if description is None or not description.graphs or not description.source:
        kind = "a file of no known format" if description is None else description.title
        raise NotImplementedByProvider(
            f"{path.name} is a {kind}: its graphs are not known, so no EPContext node "
            "can be written for it.",
            hint="Wrap a context binary of QNN, or compile the model again.",
        )
    wrapper = _Wrapper(binary=path.name, source=description.source, is_float=as_float)
    for graph in _choose_graphs(description, graphs, path):
        wrapper.add_graph(graph, rename or {})
    wrapper.check_names(rename or {})

    # Sealed before it is published, so that no load finds it without digests.
    with tempfile.TemporaryDirectory(prefix=".wrap-", dir=target.parent) as folder:
        model = Path(folder, target.name)
        model.write_bytes(wrapper.make_model().SerializeToString())
        _link(path, model.with_name(path.name))
        epctx_files.seal_model(model)
        publish = epctx_files.embed if embed else epctx_files.externalize
        return publish(model, target)


def _choose_graphs(
    description: NativeBinary, names: Sequence[str], path: Path
) -> list[NativeGraph]:
    known = {graph.name: graph for graph in description.graphs}
    unknown = [name for name in names if name not in known]
    if unknown or (not names and len(known) > 1):
        problem = f"no graph {unknown[0]!r}" if unknown else f"{len(known)} graphs"
        raise InvalidArgument(
            f"{path.name} has {problem}; it has {', '.join(map(repr, known))}.",
            path=path,
            hint="Choose with --graph NAME (graphs=[...]), once for each.",
        )
    return [known[name] for name in dict.fromkeys(names or known)]


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it from another file system."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise Fail(f"{source} cannot be copied: {error}.", path=source) from error


@dataclass(kw_only=True)
class _Wrapper:
    """Parts of the model."""

    binary: str
    source: str
    is_float: bool
    nodes: list[NodeProto] = field(default_factory=list)
    values: list[ValueInfoProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    tensors: set[str] = field(default_factory=set)

    def add_graph(self, graph: NativeGraph, rename: Mapping[str, str]) -> None:
        """Add the node of a graph, with what converts its values."""
        from onnx import helper

        before: list[NodeProto] = []
        after: list[NodeProto] = []
        inputs = [
            self._add_value(tensor, rename, self.inputs, before)
            for tensor in graph.inputs
        ]
        outputs = [
            self._add_value(tensor, rename, self.outputs, after)
            for tensor in graph.outputs
        ]

        is_primary = not self.tensors
        self.tensors |= {tensor.name for tensor in (*graph.inputs, *graph.outputs)}
        node = helper.make_node(
            "EPContext",
            inputs,
            outputs,
            name=graph.name,
            domain="com.microsoft",
            main_context=int(is_primary),
            embed_mode=0,
            source=self.source,
            partition_name=graph.name,
            # None leaves an attribute out.
            ep_cache_context=self.binary if is_primary else None,
        )
        self.nodes += [*before, node, *after]

    def _add_value(
        self,
        tensor: NativeTensor,
        rename: Mapping[str, str],
        boundary: list[ValueInfoProto],
        converters: list[NodeProto],
    ) -> str:
        """Add an input or output of the model; return its name at the node."""
        from onnx import TensorProto, helper

        if not tensor.element_type:
            raise NotImplementedByProvider(
                f"the tensor {tensor.name!r} has the type {tensor.type}, which ONNX "
                "lacks, so it cannot be an input or output of an EPContext node."
            )
        name = rename.get(tensor.name, tensor.name)
        type_ = TensorProto.DataType.Value(tensor.element_type)
        if not (self.is_float and tensor.quantization):
            boundary.append(helper.make_tensor_value_info(name, type_, tensor.shape))
            return name

        inner = _QUANTIZED.format(name)
        boundary.append(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, tensor.shape)
        )
        self.values.append(helper.make_tensor_value_info(inner, type_, tensor.shape))
        ends = [name, inner]
        operator = "QuantizeLinear"
        if boundary is self.outputs:
            operator = "DequantizeLinear"
            ends.reverse()
        constants = self._add_constants(tensor.quantization, inner, type_)
        converters.append(
            helper.make_node(
                operator,
                [ends[0], *constants],
                [ends[1]],
                name=f"{operator}_{name}",
                axis=tensor.quantization.axis,
            )
        )
        return inner

    def _add_constants(self, given: Quantization, name: str, type_: int) -> list[str]:
        from onnx import TensorProto, helper

        shape = () if given.axis is None else (len(given.scales),)
        scale = helper.make_tensor(
            f"{name}_scale", TensorProto.FLOAT, shape, given.scales
        )
        zero_point = helper.make_tensor(
            f"{name}_zero_point", type_, shape, given.zero_points
        )
        self.constants += [scale, zero_point]
        return [scale.name, zero_point.name]

    def check_names(self, rename: Mapping[str, str]) -> None:
        """Raise InvalidArgument if a name is unknown, there twice, or the name of
        another tensor, to which onnxruntime would give the value.
        """
        outer = [value.name for value in (*self.inputs, *self.outputs)]
        twice = [name for name, count in Counter(outer).items() if count > 1]
        unknown = [name for name in rename if name not in self.tensors]
        taken = {*rename.values()} & self.tensors
        inner = taken | ({value.name for value in self.values} & self.tensors)
        for names, problem, hint in (
            (unknown, "no tensor of the graphs has the name", "Its names: "),
            (twice, "two inputs or outputs would have the name", "Rename one of: "),
            (sorted(inner), "another tensor has the name", "Choose none of: "),
        ):
            if names:
                raise InvalidArgument(
                    f"{problem} {names[0]!r}.",
                    hint=hint + ", ".join(sorted(self.tensors)),
                )

    def make_model(self) -> ModelProto:
        """Return the model."""
        from onnx import helper

        graph = helper.make_graph(
            self.nodes,
            "wrapper",
            self.inputs,
            self.outputs,
            self.constants,
            value_info=self.values,
        )
        opsets = [helper.make_opsetid(*opset) for opset in _OPSETS.items()]
        return helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=_IR_VERSION,
            producer_name="epctx",
        )
