"""Reduction of a partition with a wrong result to the smallest part of it that has the
error, as a model to attach to a report.

Needs epctx-bench and epctx-files. Prints nothing.
"""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnx
from epctx_bench.partition_errors import (
    Arrays,
    Deviation,
    Inputs,
    Model,
    PartitionError,
    measure_deviation,
    open_values,
    run_values,
)
from epctx_files import extract
from onnx import NodeProto

from epctx_cli.arrays import save_arrays
from epctx_core import (
    InferenceSession,
    ModelCompiler,
    OrtCompileApiFlags,
    SessionOptions,
)
from epctx_core.errors import EpctxError, Fail, InvalidArgument

Window: TypeAlias = tuple[int, int]
"""Indices of the first node and of the one after the last."""

_SAME = 3.0
"""dB by which the signal-to-noise ratio of all that the partition replaced, compiled
again, may exceed the partition's: it is the same work, rounded alike.
"""
_FADING = 12.0
"""dB by which the signal-to-noise ratio of a smaller part may exceed the partition's,
as for a quarter of the error: errors change on their way to the partition's outputs,
and the rounding of right nodes is far smaller.
"""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """Smallest part that has the error of a partition.

    Beside the model, a part of the source, lie `model_ctx.onnx`, compiled, and
    `inputs.npz` and `expected.npz`, its inputs and the reference's outputs.

    Attributes:
        partition: name of the EPContext node.
        ep: its source, the name of an EP.
        model: path of the model.
        nodes: number of its nodes.
        operators: their operators.
        error: error of the compiled model, of its output with the smallest `snr_db`.
        reproduced: False if the part of the source, compiled again, does not have the
            error; the model is then all that the partition replaced, and
            `model_ctx.onnx` the partition itself.
    """

    partition: str
    ep: str
    model: str
    nodes: int
    operators: list[str]
    error: Deviation
    reproduced: bool


def make_folder(folder: Path) -> None:
    """Make the folder of a reduced model, before any work is done for it.

    Raises:
        InvalidArgument: it is not empty.
        Fail: it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise Fail(
            f"the folder {str(folder)!r} cannot be used: {error.strerror or error}.",
            path=folder,
        ) from error
    if not is_empty:
        raise InvalidArgument(
            f"the reduced model cannot be written to {str(folder)!r}, which is not "
            "empty.",
            path=folder,
            hint="Name a new folder.",
        )


def reduce_partition(
    context: Model,
    reference: Model,
    row: PartitionError,
    inputs: Inputs,
    folder: Path,
) -> Reduction:
    """Find the smallest part of the source that, compiled with the partition's EP, has
    about a quarter of its own error or more, and write it.

    Args:
        context: the context model, with the EP and the options of its compile; without
            an EP, that of the partition is used with its default options.
        reference: its source.
        row: the partition, as `compare_partitions` returns it.
        inputs: as for `compare_partitions`.
        folder: an empty folder.

    Raises:
        EpctxError: a model cannot be read or run, or a file not be written.
    """
    with tempfile.TemporaryDirectory(prefix="epctx-reduce-") as scratch:
        source = Path(scratch, "source.onnx")
        extract(context[0], source, node=row.partition, source=reference[0])
        values = onnx.load(source, load_external_data=False).graph.input
        with open_values(reference, values) as session:
            found_values = run_values(session, inputs[row.worst_input]())
        feed = {value.name: found_values[value.name] for value in values}

        options = context[1].copy()
        if not options.has_providers():
            options.add_provider(row.ep)
        parts = _Parts(source, feed, reference[1], options, Path(scratch))
        found = parts.shrink(row.own.worst.snr_db)
        error = parts.measure(found or parts.whole, folder)

    if found is None:
        # What was compiled again is right.
        for path in folder.glob("model_*"):
            path.unlink()
        extract(context[0], folder / "model_ctx.onnx", node=row.partition)
        error = row.own.worst
    nodes = onnx.load(folder / "model.onnx", load_external_data=False).graph.node
    return Reduction(
        partition=row.partition,
        ep=row.ep,
        model=str(folder / "model.onnx"),
        nodes=len(nodes),
        operators=[node.op_type for node in nodes],
        error=error,
        reproduced=found is not None,
    )


class _Parts:
    """Parts of a model: its nodes from one index up to another, in the model's order.

    Nodes that compute from constants alone, such as those that dequantise weights, have
    no index: they go with the nodes that read them.
    """

    def __init__(
        self,
        source: Path,
        feed: Arrays,
        reference: SessionOptions,
        compiling: SessionOptions,
        scratch: Path,
    ) -> None:
        self._source = source
        self._feed = feed
        self._reference = reference
        self._compiling = compiling
        self._scratch = scratch
        self._numbers = itertools.count()

        graph = onnx.load(source, load_external_data=False).graph
        self._outputs = {value.name for value in graph.output}
        varying = {value.name for value in graph.input}
        self._nodes: list[NodeProto] = []
        for node in graph.node:
            if not varying.isdisjoint(_list_read(node)):
                self._nodes.append(node)
                varying.update(node.output)
        self._varying = varying

    @property
    def whole(self) -> Window:
        """All nodes."""
        return 0, len(self._nodes)

    def shrink(self, ratio: float) -> Window | None:
        """Return the smallest part with about a signal-to-noise ratio in dB, or None
        if all nodes together do not have it.
        """
        if self._try(self.whole) > ratio + _SAME:
            return None

        low, high = self.whole
        step = (high - low) // 2
        while step:
            # Both halves at first; an error that needs nodes of both, such as of a
            # fusion, stays when less is taken away.
            smaller = {
                part: self._try(part)
                for part in ((low + step, high), (low, high - step))
            }
            worst = min(smaller, key=smaller.__getitem__)
            if smaller[worst] <= ratio + _FADING:
                low, high = worst
                step = min(step, (high - low) // 2)
            else:
                step //= 2
        return low, high

    def _try(self, part: Window) -> float:
        """Return the signal-to-noise ratio of a part in dB; infinity if it cannot be
        compiled.
        """
        folder = self._scratch / f"part{next(self._numbers)}"
        folder.mkdir()
        try:
            return self.measure(part, folder).snr_db
        except EpctxError:
            return math.inf
        finally:
            shutil.rmtree(folder)

    def measure(self, part: Window, folder: Path) -> Deviation:
        """Write a part, its inputs and the reference's outputs, compile it, and return
        the largest error of its outputs.

        Raises:
            EpctxError: it cannot be extracted, run or compiled.
        """
        model = folder / "model.onnx"
        inputs, outputs = self._find_boundary(part)
        extract(self._source, model, inputs=inputs, outputs=outputs)
        graph = onnx.load(model, load_external_data=False).graph
        boundary = [*graph.input, *graph.output]
        with open_values((str(self._source), self._reference), boundary) as session:
            right = run_values(session, self._feed)
        feed = {value.name: right[value.name] for value in graph.input}
        save_arrays(f"{folder}/inputs.npz", feed)
        save_arrays(f"{folder}/expected.npz", {name: right[name] for name in outputs})

        compiled = folder / "model_ctx.onnx"
        flags = OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
        ModelCompiler(self._compiling, model, flags=flags).compile_to_file(compiled)
        with InferenceSession(compiled, self._compiling) as session:
            found = run_values(session, feed)
        return min(
            (measure_deviation(found[name], right[name]) for name in outputs),
            key=lambda each: each.snr_db,
        )

    def _find_boundary(self, part: Window) -> tuple[list[str], list[str]]:
        """Return the inputs and the outputs of a part."""
        low, high = part
        inside = self._nodes[low:high]
        made = {name for node in inside for name in node.output if name}
        others = [*self._nodes[:low], *self._nodes[high:]]
        needed = self._outputs.union(*map(_list_read, others))
        read = dict.fromkeys(name for node in inside for name in _list_read(node))
        inputs = [name for name in read if name in self._varying - made]
        return inputs, sorted(made & needed)


def _list_read(node: NodeProto) -> Iterator[str]:
    """Yield the values that a node reads, those of its subgraphs too."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _list_read(inner)
