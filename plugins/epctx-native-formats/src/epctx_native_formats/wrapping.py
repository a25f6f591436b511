"""ONNX models that load a vendor's binary: an EPContext node for each graph."""

from __future__ import annotations

import math
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
    InvalidGraph,
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
_QUANTIZED_TYPES = {
    "INT8": (-128, 127),
    "UINT8": (0, 255),
    "INT16": (-32768, 32767),
    "UINT16": (0, 65535),
}
_BOUNDARY_TYPES = frozenset(
    {"BOOL", "FLOAT16", "FLOAT", "DOUBLE"}
    | {f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
)
"""Types of inputs and outputs of EPContext nodes, of those that are read."""
_LONGEST = 1 << 31


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
        InvalidArgument: a name is unknown, there twice or not fit for a model, or the
            output is not a file beside which the binary can be.
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
    _check_paths(path, target)
    description = describe_binary(path)
    if description is None or not description.graphs or not description.source:
        kind = "file of no known format" if description is None else description.title
        raise NotImplementedByProvider(
            f"{path.name} is a {kind}: its graphs are not known, so no EPContext node "
            "can be written for it.",
            hint="Wrap a context binary of QNN, or compile the model again.",
        )
    names = {old: new for old, new in (rename or {}).items() if old != new}
    wrapper = _Wrapper(binary=path.name, source=description.source, is_float=as_float)
    for graph in _choose_graphs(description, graphs, path):
        wrapper.add_graph(graph, names)
    wrapper.check_names(names)

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


def _check_paths(binary: Path, output: Path) -> None:
    """Raise InvalidArgument if an output cannot be written beside a binary."""
    problem = ""
    if not output.name or output.is_dir():
        problem = "is a folder"
    elif not output.parent.is_dir():
        problem = "lies in a folder that does not exist"
    elif output.name == binary.name:
        problem = "has the name of the binary, which goes beside it"
    elif not binary.name.isprintable() or not output.name.isprintable():
        problem = f"or the binary {binary.name!r} has a name that a model cannot hold"
    if problem:
        raise InvalidArgument(
            f"the output {str(output)!r} {problem}.",
            path=output,
            hint="Choose a file such as model_ctx.onnx.",
        )


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it from another file system."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise Fail(f"{source} cannot be copied: {error}.", path=source) from error


def _check_tensor(tensor: NativeTensor, *, is_float: bool) -> None:
    """Check that a tensor can be an input or output of an EPContext node, and that
    QuantizeLinear and DequantizeLinear compute its values if they become float.

    Raises:
        NotImplementedByProvider: ONNX has no such type, or no such quantisation.
        InvalidGraph: its lengths, scales or zero points cannot be right.
    """
    if tensor.element_type not in _BOUNDARY_TYPES:
        raise NotImplementedByProvider(
            f"the tensor {tensor.name!r} has the type {tensor.type}, which cannot be "
            "that of an input or output of an EPContext node."
        )
    problem = ""
    if not all(0 <= length < _LONGEST for length in tensor.shape):
        problem = f"the shape {tensor.shape}"
    elif is_float and tensor.quantization is not None:
        if tensor.element_type not in _QUANTIZED_TYPES or tensor.quantization.bits:
            raise NotImplementedByProvider(
                f"the tensor {tensor.name!r} is quantised as QuantizeLinear cannot.",
                hint="Leave out --float (as_float), and quantise it yourself.",
            )
        problem = _find_wrong_quantization(tensor, tensor.quantization)
    if problem:
        raise InvalidGraph(
            f"the tensor {tensor.name!r} has {problem}.",
            hint="The binary is damaged: fetch it again.",
        )


def _find_wrong_quantization(tensor: NativeTensor, given: Quantization) -> str:
    smallest, largest = _QUANTIZED_TYPES[tensor.element_type]
    axis = given.axis
    count = 1
    if axis is not None:
        count = tensor.shape[axis] if 0 <= axis < len(tensor.shape) else -1
    if not len(given.scales) == len(given.zero_points) == count:
        return f"{len(given.scales)} scales along axis {axis}"
    if not all(0 < scale < math.inf for scale in given.scales):
        return "a scale that is not a positive number"
    if not all(smallest <= point <= largest for point in given.zero_points):
        return "a zero point that its type does not have"
    return ""


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

        is_float = self.is_float and tensor.quantization is not None
        _check_tensor(tensor, is_float=is_float)
        name = rename.get(tensor.name, tensor.name)
        type_ = TensorProto.DataType.Value(tensor.element_type)
        if not is_float or tensor.quantization is None:
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
        added = [value.name for value in (*self.inputs, *self.outputs, *self.values)]
        added += [constant.name for constant in self.constants]
        twice = [name for name, count in Counter(added).items() if count > 1]
        unfit = [n for n in rename.values() if not n or not n.isprintable()]
        unknown = [name for name in rename if name not in self.tensors]
        taken = {*rename.values()} & self.tensors
        inner = taken | ({value.name for value in self.values} & self.tensors)
        for names, problem, hint in (
            (unknown, "no tensor of the graphs has the name", "Its names: "),
            (unfit, "a model cannot have the name", "Rename one of: "),
            (twice, "two values would have the name", "Rename one of: "),
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
