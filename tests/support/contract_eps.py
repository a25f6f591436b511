"""Harness of the three EPs' tests: an EP with its options, models, and a look
inside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from support.folders import TESTS

import epctx_core as epctx
from epctx_core.plugin import CompiledPartition, ExecutionProvider, Partition, hookimpl


@dataclass(frozen=True, kw_only=True)
class Harness:
    """One EP with its options, in a registry of its own."""

    provider: type[ExecutionProvider]
    options: dict[str, str] = field(default_factory=dict)
    registry: epctx.Registry = field(
        default_factory=lambda: epctx.Registry(entry_points=False)
    )

    def __post_init__(self) -> None:
        self.registry.register(self.provider)

    def session_options(self) -> epctx.SessionOptions:
        options = epctx.SessionOptions()
        options.add_provider(self.provider.name, self.options)
        return options

    def session(self, model: Path | bytes) -> epctx.InferenceSession:
        return epctx.InferenceSession(
            model, self.session_options(), registry=self.registry
        )

    def run(
        self, model: Path | bytes, inputs: dict[str, np.ndarray]
    ) -> list[np.ndarray]:
        with self.session(model) as session:
            return session.run(None, inputs)

    def compile(
        self, model: Path, *, embed: bool = False
    ) -> tuple[Path, epctx.CompileReport]:
        compiler = epctx.ModelCompiler(
            self.session_options(), model, embed, registry=self.registry
        )
        report = compiler.compile_to_file()
        return model.with_name(f"{model.stem}_ctx.onnx"), report

    def run_in_other_process(
        self, model: Path, inputs: dict[str, np.ndarray], folder: Path
    ) -> list[np.ndarray]:
        """Load and run a context model in a process of its own."""
        np.savez(folder / "inputs.npz", **inputs)
        job = {
            "module": self.provider.__module__,
            "class": self.provider.__name__,
            "options": json.dumps(self.options),
            "model": str(model),
            "inputs": str(folder / "inputs.npz"),
            "outputs": str(folder / "outputs.npz"),
        }
        (folder / "job.json").write_text(json.dumps(job))
        subprocess.run(
            [
                sys.executable,
                "-m",
                "support.load_in_other_process",
                str(folder / "job.json"),
            ],
            check=True,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
        with np.load(folder / "outputs.npz") as outputs:
            return [outputs[name] for name in outputs.files]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of `compile` with one partition, and what came of it."""

    provider: ExecutionProvider
    partition: Partition
    compiled: CompiledPartition


def one_at_a_time(harness: Harness) -> tuple[Harness, list[Call]]:
    """Return a harness whose EP is asked to compile its partitions one by one, and the
    calls that are made.

    This is how onnxruntime's plugin interface calls an EP; the calls also give what a
    session hides.
    """
    calls: list[Call] = []

    class Stepwise(harness.provider):  # type: ignore[name-defined,misc]
        @hookimpl
        def compile(
            self, partitions: Sequence[Partition]
        ) -> Sequence[CompiledPartition]:
            for partition in partitions:
                (compiled,) = super().compile([partition])
                calls.append(
                    Call(provider=self, partition=partition, compiled=compiled)
                )
            return [call.compiled for call in calls]

    return Harness(provider=Stepwise, options=harness.options), calls


def convolutional_network() -> onnx.ModelProto:
    """Return a network of two pieces with a Sin between them, which none of the EPs
    takes.

    Weights above and below 1 KiB; two outputs, one of them also read inside the
    network.
    """
    numbers = np.random.Generator(np.random.PCG64(7))

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(
            numbers.standard_normal(shape, dtype=np.float32) / 4, name
        )

    nodes = [
        helper.make_node(
            "Conv", ["x", "w1", "b1"], ["c"], name="conv", pads=[1, 1, 1, 1]
        ),
        helper.make_node("Relu", ["c"], ["features"], name="relu"),
        helper.make_node("Sin", ["features"], ["waves"], name="sin"),
        helper.make_node("GlobalAveragePool", ["waves"], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "w2", "b2"], ["scores"], name="gemm"),
    ]
    graph = helper.make_graph(
        nodes,
        "convolutional",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 8, 8])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [2, 32]),
            helper.make_tensor_value_info("features", TensorProto.FLOAT, [2, 16, 8, 8]),
        ],
        [
            weight("w1", 16, 3, 3, 3),
            weight("b1", 16),
            weight("w2", 16, 32),
            weight("b2", 32),
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )


def negation(elem_type: int, shape: Sequence[int | str]) -> bytes:
    """Return a model that negates a tensor of one type and shape."""
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"], name="neg")],
        "negation",
        [helper.make_tensor_value_info("x", elem_type, shape)],
        [helper.make_tensor_value_info("y", elem_type, shape)],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    return bytes(model.SerializeToString())
