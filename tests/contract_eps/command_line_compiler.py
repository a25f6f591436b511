"""An EP whose compiler is a command: `<compiler> MODEL.onnx PROGRAM`. Its run time takes only paths.

A program is `NPUC0001` and a compressed model; the run time here decompresses it and runs it on the
core's kernels.
"""

from __future__ import annotations

import shutil
import subprocess
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import onnx

from epctx_core.errors import EPFail, InvalidArgument, InvalidGraph
from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    ProviderOption,
    Purpose,
    hookimpl,
    supported_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.plugin import (
        ComputeCapability,
        ContextNode,
        ContextReader,
        ContextWriter,
        Engine,
        GraphView,
        Partition,
        ProviderContext,
        Refusal,
    )

MAGIC = b"NPUC0001"
REFUSED = frozenset({"Sin", "Sigmoid"})
POLL_SECONDS = 0.02


class CommandLineProvider(ExecutionProvider):
    """An NPU with a command-line compiler."""

    name: ClassVar[str] = "CommandLineExecutionProvider"
    binary_suffix: ClassVar[str] = "npuc"
    options: ClassVar[Sequence[ProviderOption]] = (
        ProviderOption("compiler", str, default="npuc", doc="The compiler: a path, or a name on PATH."),
    )

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self._compiler = shutil.which(context.options["compiler"])
        if self._compiler is None and context.purpose is not Purpose.LOAD:
            raise InvalidArgument(
                f"there is no compiler {context.options['compiler']!r}.",
                hint="Set the option 'compiler' to the path of npuc.",
            )
        self._programs: list[tuple[Partition, Path]] = []
        self._stack = ExitStack()

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take all operators of ONNX but two."""
        return supported_partitions(graph, lambda node: not node.domain and node.op_type not in REFUSED)

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Call the compiler for each partition; programs stay in a private folder until `shutdown`."""
        folder = self._stack.enter_context(self.context.scratch())
        compiled = []
        for done, partition in enumerate(partitions):
            self.context.progress("compile", done, len(partitions))
            source, program = folder / f"{done}.onnx", folder / f"{done}.npu"
            _save_model(partition, source)
            self._call_compiler(source, program, partition)
            self._programs.append((partition, program))
            exporting = self.context.purpose is Purpose.EXPORT
            length = program.stat().st_size
            compiled.append(
                CompiledPartition(None) if exporting else _open(program, 0, length, self.context.engine)
            )
        return compiled

    def _call_compiler(self, source: Path, program: Path, partition: Partition) -> None:
        command = [str(self._compiler), source.name, program.name]
        with (source.parent / "log").open("wb") as log:
            tool = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=source.parent
            )
            try:
                while tool.poll() is None:
                    self.context.cancel.raise_if_requested()
                    _wait(tool)
            finally:
                tool.kill()
                tool.wait()
        said = (source.parent / "log").read_text(errors="replace").strip()
        if tool.returncode or not program.exists():
            raise EPFail(
                f"{self._compiler} ended with status {tool.returncode} on {len(partition.nodes)} nodes, "
                f"the first {partition.nodes[0].name!r}; it said:\n{said or '(nothing)'}",
                node=partition.nodes[0].name,
                hint="Look the compiler's message up in its manual, or leave the EP out.",
            )
        self.context.logger.info("%s: %s", self._compiler, said)

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Append the program files to one payload; each node says where its own lies."""
        payload = writer.payload()
        nodes = []
        for partition, program in self._programs:
            offset = payload.add_file(program)
            place = {"offset": offset, "length": payload.size - offset}
            nodes.append(EPContextNode(partition, payload, attributes=place))
        return nodes

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Open each node's program by path."""
        loaded = []
        for node in nodes:
            self.context.cancel.raise_if_requested()
            path = Path(reader.payload(node).as_file())
            offset, length = node.attributes.get("offset", 0), node.attributes.get("length", -1)
            try:
                loaded.append(_open(path, offset, length, self.context.engine))
            except (ValueError, zlib.error) as error:
                raise InvalidGraph(f"{node.name!r} has no program: {error}", node=node.name) from error
        return loaded

    @hookimpl
    def shutdown(self) -> None:
        """Remove the programs."""
        self._stack.close()


def _wait(tool: subprocess.Popen[bytes]) -> None:
    try:
        tool.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return


def _save_model(partition: Partition, path: Path) -> None:
    """Write a partition as a model and a file of weights beside it, in bounded memory."""
    model = partition.model()
    weights = path.with_suffix(".weights")
    with weights.open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                weight = partition.weights[tensor.name]
                tensor.ClearField("external_data")
                place = {"location": weights.name, "offset": file.tell(), "length": weight.nbytes}
                for key, value in place.items():
                    tensor.external_data.add(key=key, value=str(value))
                file.writelines(weight.chunks())
    path.write_bytes(model.SerializeToString())


def _open(path: Path, offset: int, length: int, engine: Engine) -> CompiledPartition:
    """Open a program; ValueError or zlib.error if there is none at that place."""
    if offset < 0 or length < 0:
        raise ValueError("its place in the payload is not known")
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if len(data) != length or not data.startswith(MAGIC):
        raise ValueError("this is not what npuc writes")
    prepared = engine.prepare(onnx.load_from_string(zlib.decompress(data[len(MAGIC) :])))
    return CompiledPartition(prepared.run, close=prepared.close)
