"""Real networks by EPs and mode, each compiled once: all that tests ask of them.

Knows epctx and the simulated EPs.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import onnx
from support.networks.catalog import EXPORTED, FILLED, LARGE, QUANTISED, Network
from support.networks.quantise import steps_of
from support.run_model import run
from support.sim_eps import with_eps

import epctx_core as epctx

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

DEEP = ("densenet121", "inception_v1", "inception_v2", "resnet50", "resnet50_int8")
"""Networks that take seconds: two of them in one combination every day, all else in
`make stress`.
"""
SMALL = tuple(
    name for name in (*EXPORTED, *FILLED, *QUANTISED) if name not in {*DEEP, *LARGE}
)
"""Networks that take a tenth of a second."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A network that was compiled, moved, and run by another process after its source
    was deleted.

    Attributes:
        report: of the compile.
        source: the network's graph; its weights are left out.
        graph: the context model's; its weights are left out, and embedded payloads.
        files: names of the files that were written.
        outputs, reference, steps: results of the other process, those of onnxruntime,
            and quantisation steps.
    """

    report: epctx.CompileReport
    source: onnx.GraphProto
    graph: onnx.GraphProto
    files: set[str]
    outputs: list[np.ndarray]
    reference: list[np.ndarray]
    steps: list[float | None]

    @property
    def taken(self) -> dict[str, set[str]]:
        """Names of nodes by EP, as the compiler reports them."""
        found: dict[str, set[str]] = {}
        for partition in self.report.partitions:
            found.setdefault(partition.ep, set()).update(partition.node_names)
        return found

    def share(self, ep: str) -> float:
        """Return the share of the network's nodes that an EP took, of those that are
        not folded.
        """
        nodes = len(self.source.node) - self.report.folded_nodes
        return len(self.taken.get(ep, ())) / nodes


class Compile(Protocol):
    """`compiled("bert", (QNN,), embedded=True)` gives a network of the matrix."""

    def __call__(
        self, name: str, eps: tuple[str, ...], *, embedded: bool = False
    ) -> Compiled:
        """Return a network that EPs compiled, in order of priority."""


class Matrix:
    """Compiles each combination when it is first asked for, and lets one other process
    run them all.

    Args:
        network: `Catalog.get`.
        folder: an empty folder; nothing stays in it but while a network is compiled.
    """

    def __init__(self, network: Compile, folder: Path) -> None:
        self._network = network
        self._folder = folder
        self._known: dict[tuple[str, tuple[str, ...], bool], Compiled] = {}
        (folder / "other process").mkdir()
        self._other_process = ProcessPoolExecutor(
            1,
            multiprocessing.get_context("spawn"),
            initializer=os.chdir,
            initargs=(folder / "other process",),
        )

    def close(self) -> None:
        """End the other process."""
        self._other_process.shutdown()

    def compiled(
        self, name: str, eps: tuple[str, ...], *, embedded: bool = False
    ) -> Compiled:
        """Return a network that EPs compiled, in order of priority."""
        key = name, eps, embedded
        if key not in self._known:
            built = self._folder / "built"
            built.mkdir()
            try:
                self._known[key] = self._compile(
                    self._network(name), eps, built, embedded
                )
            finally:
                for path in (built, self._folder / "far away"):
                    shutil.rmtree(path, ignore_errors=True)
                # Weights of a compile stay in cycles until the collector comes, which
                # counts objects, not bytes.
                gc.collect()
        return self._known[key]

    def _compile(
        self, source: Network, eps: tuple[str, ...], built: Path, embedded: bool
    ) -> Compiled:
        steps = (
            steps_of(source.path)
            if source.name in QUANTISED
            else [None] * len(source.reference)
        )
        graph = _without_weights(source.path)

        report = epctx.ModelCompiler(
            with_eps(*eps), source.path, embedded
        ).compile_to_file(built / "net_ctx.onnx")
        moved = built.rename(built.with_name("far away"))
        shutil.rmtree(source.path.parent)

        return Compiled(
            report=report,
            source=graph,
            graph=_without_weights(moved / "net_ctx.onnx"),
            files={path.name for path in moved.iterdir()},
            outputs=self._other_process.submit(
                run, moved / "net_ctx.onnx", source.inputs
            ).result(timeout=240),
            reference=source.reference,
            steps=steps,
        )


def _without_weights(path: Path) -> onnx.GraphProto:
    graph = onnx.load(path, load_external_data=False).graph
    del graph.initializer[:]
    for attribute in (
        a for node in graph.node for a in node.attribute if a.name == "ep_cache_context"
    ):
        if len(attribute.s) > 200:
            attribute.ClearField("s")
    return graph
