"""An EP whose compiler is a command: `<compiler> MODEL.onnx PROGRAM`.

Its run time takes only paths.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from contract import npuc

from epctx_core import plugin
from epctx_core.errors import EPFail, InvalidArgument, InvalidGraph

REFUSED = frozenset({"Sin", "Sigmoid"})
POLL_SECONDS = 0.02


class CommandLineProvider(plugin.ExecutionProvider):
    """An NPU with a command-line compiler."""

    name = "CommandLineExecutionProvider"
    vendor = "epctx tests"
    simulated = True
    binary_suffix = "npuc"
    options = (
        plugin.ProviderOption(
            "compiler", str, default="npuc", doc="A path, or a name on PATH."
        ),
    )

    def __init__(self, context: plugin.ProviderContext) -> None:
        super().__init__(context)
        self._compiler = shutil.which(context.options["compiler"])
        if self._compiler is None and context.purpose is not plugin.Purpose.LOAD:
            message = f"there is no compiler {context.options['compiler']!r}."
            raise InvalidArgument(
                message, hint="Set the option 'compiler' to the path of npuc."
            )
        self._programs: list[tuple[plugin.Partition, Path]] = []
        self._until_shutdown = ExitStack()

    @plugin.hookimpl
    def get_capability(
        self, graph: plugin.GraphView
    ) -> Sequence[plugin.ComputeCapability | plugin.Refusal]:
        """Take all operators of ONNX but two."""
        return plugin.supported_partitions(
            graph, lambda n: not n.domain and n.op_type not in REFUSED
        )

    @plugin.hookimpl
    def compile(
        self, partitions: Sequence[plugin.Partition]
    ) -> Sequence[plugin.CompiledPartition]:
        """Call the compiler for each partition; programs stay in a private folder until
        `shutdown`.
        """
        folder = self._until_shutdown.enter_context(self.context.scratch())
        compiled = []
        for done, partition in enumerate(partitions):
            self.context.progress("compile", done, len(partitions))
            source, program = folder / f"{done}.onnx", folder / f"{done}.npu"
            partition.save(source)
            self._call_compiler(source, program, partition.nodes[0].name)
            self._programs.append((partition, program))
            if self.context.purpose is plugin.Purpose.EXPORT:
                compiled.append(plugin.CompiledPartition(None))
            else:
                compiled.append(self._runnable(program, 0, program.stat().st_size))
        return compiled

    def _call_compiler(self, source: Path, program: Path, first: str) -> None:
        log, command = (
            source.with_suffix(".log"),
            [str(self._compiler), str(source), str(program)],
        )
        none = subprocess.DEVNULL
        with (
            log.open("wb") as said,
            subprocess.Popen(command, stdin=none, stdout=said, stderr=said) as tool,
        ):
            try:
                while tool.poll() is None:
                    self.context.cancel.wait(POLL_SECONDS)
                    self.context.cancel.raise_if_requested()
            finally:
                tool.kill()
        if tool.returncode or not program.exists():
            message = (
                f"{self._compiler} ended with status {tool.returncode} on the nodes "
                f"from {first!r} on"
            )
            raise EPFail(
                f"{message}; it said:\n{log.read_text(errors='replace')}", node=first
            )

    @plugin.hookimpl
    def get_ep_context_nodes(
        self, writer: plugin.ContextWriter
    ) -> Sequence[plugin.EPContextNode]:
        """Append the program files to one payload; each node says where its own
        lies.
        """
        payload = writer.payload()
        nodes = []
        for partition, program in self._programs:
            offset = payload.add_file(program)
            place = {"offset": offset, "length": payload.size - offset}
            nodes.append(plugin.EPContextNode(partition, payload, attributes=place))
        return nodes

    @plugin.hookimpl
    def load_context(
        self, nodes: Sequence[plugin.ContextNode], reader: plugin.ContextReader
    ) -> Sequence[plugin.CompiledPartition]:
        """Open each node's program by path."""
        loaded = []
        for node in nodes:
            self.context.cancel.raise_if_requested()
            path, facts = reader.payload(node).as_file(), node.attributes
            try:
                loaded.append(self._runnable(path, facts["offset"], facts["length"]))
            except (KeyError, TypeError, ValueError) as error:
                raise InvalidGraph(
                    f"{node.name!r} has no program: {error}", node=node.name
                ) from error
        return loaded

    def _runnable(
        self, path: str | Path, offset: int, length: int
    ) -> plugin.CompiledPartition:
        program = npuc.open_program(path, offset, length, self.context.engine)
        return plugin.CompiledPartition(program.run, close=program.close)

    @plugin.hookimpl
    def shutdown(self) -> None:
        """Remove the programs."""
        self._until_shutdown.close()
