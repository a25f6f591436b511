"""The networks that tests run on, with inputs and onnxruntime's answer.

Knows nothing of epctx.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from support.folders import MODELS
from support.networks import fill
from support.networks.quantise import quantise

EXPORTED_FOLDER = MODELS
EXPORTED = ("bert", "lstm", "resnet")
FILLED = fill.NETWORKS
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")
"""Filled networks above 200 MB: their weights lie in a file beside the model."""
QUANTISED = ("resnet50_int8", "resnet_int8", "shufflenet_int8", "squeezenet_int8")
"""QDQ INT8 forms of others, quantised when they are first asked for."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A test's own copy of a network.

    Attributes:
        name: as asked for.
        path: the model, alone in its folder but for external weights; the test may
            delete or change it.
        inputs: arrays by input name.
        reference: what onnxruntime's CPU provider gives by default, in the model's
            order.
    """

    name: str
    path: Path
    inputs: dict[str, np.ndarray]
    reference: list[np.ndarray]


class Catalog:
    """Makes each network once and hands out copies.

    Args:
        folder: where masters and copies are put; empty at first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._masters: dict[str, _Master] = {}
        self._copies = 0

    def get(self, name: str, *, seed: int = 0) -> Network:
        """Return a fresh copy of a network.

        Args:
            name: one of `EXPORTED`, `FILLED` or `QUANTISED`.
            seed: which inputs; 0 gives the stored ones of an exported network.
        """
        if name not in self._masters:
            self._masters[name] = _Master(name, self._folder / "masters" / name)
        master = self._masters[name]
        self._copies += 1
        own = self._folder / f"{name}-{self._copies}"
        shutil.copytree(master.path.parent, own)
        inputs, reference = master.example(seed)
        return Network(
            name=name,
            path=own / master.path.name,
            inputs={key: array.copy() for key, array in inputs.items()},
            reference=[array.copy() for array in reference],
        )


class _Master:
    """One network as it was made, and its examples so far."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.name = name
        self.path = folder / f"{name}.onnx"
        self._examples: dict[int, tuple[dict[str, np.ndarray], list[np.ndarray]]] = {}
        if name in QUANTISED:
            base = _Master(name.removesuffix("_int8"), folder.with_name(f"{name}-base"))
            quantise(base.path, self.path)
        elif name in EXPORTED:
            shutil.copyfile(EXPORTED_FOLDER / name / "model.onnx", self.path)
        else:
            fill.save(fill.fill(name), self.path, external=name in LARGE)

    def example(self, seed: int) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        """Return inputs and the reference for them."""
        if seed not in self._examples:
            self._examples[seed] = (
                self._stored()
                if seed == 0 and self.name in EXPORTED
                else self._made(seed)
            )
        return self._examples[seed]

    def _stored(self) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        with np.load(EXPORTED_FOLDER / self.name / "input.npz") as stored:
            inputs = dict(stored)
        with np.load(EXPORTED_FOLDER / self.name / "ort_ref.npz") as stored:
            reference = [stored[name] for name in self._outputs]
        return inputs, reference

    def _made(self, seed: int) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        generator = np.random.Generator(np.random.PCG64(seed))
        if self.name in EXPORTED:
            inputs = {
                name: _another(array, generator)
                for name, array in self.example(0)[0].items()
            }
        else:
            inputs = {
                name: generator.standard_normal(shape, dtype=np.float32)
                for name, shape in self._input_shapes.items()
            }
        return inputs, run_onnxruntime(self.path, inputs)

    @cached_property
    def _graph(self) -> onnx.GraphProto:
        return onnx.load(self.path, load_external_data=False).graph

    @property
    def _outputs(self) -> list[str]:
        return [value.name for value in self._graph.output]

    @property
    def _input_shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            value.name: tuple(
                dimension.dim_value for dimension in value.type.tensor_type.shape.dim
            )
            for value in self._graph.input
        }


def _another(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return random numbers of the same type and range."""
    if array.dtype.kind == "f":
        return generator.standard_normal(array.shape).astype(array.dtype)
    return generator.integers(0, int(array.max()) + 1, array.shape, dtype=array.dtype)


def run_onnxruntime(path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what onnxruntime's CPU provider gives by default.

    Without its optimisations, a filled resnet50 already differs by 1.3e-4: its
    convolutions add up in another order.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, inputs))
