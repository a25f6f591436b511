"""Writing of one model of the zoo, and reading of its inputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

ROWS = 6
"""Length of each open first dimension in the inputs that are stored."""
KEYS = " keys"
"""Suffix of the name of an input that is a map, where its keys are stored."""


Inputs = dict[str, "np.ndarray | dict[Any, float]"]
"""Values by the input's name: arrays, or maps as DictVectorizer takes them."""


def save(name: str, model: onnx.ModelProto | bytes, inputs: Inputs) -> None:
    """Write `<name>.onnx` and `<name>.npz` into the folder that the script was given.

    Args:
        name: the model's name in the zoo.
        model: as the exporter made it.
        inputs: one value for each input of the model, `ROWS` rows where the first
            dimension is open.
    """
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    data = (
        model
        if isinstance(model, bytes)
        else model.SerializeToString(deterministic=True)
    )
    (folder / f"{name}.onnx").write_bytes(data)
    arrays = {}
    for key, value in inputs.items():
        if isinstance(value, dict):
            arrays |= {
                f"{key}{KEYS}": np.array([*value]),
                key: np.array([*value.values()]),
            }
        else:
            arrays[key] = value
    np.savez_compressed(folder / f"{name}.npz", **arrays)


def read_inputs(path: Path) -> Inputs:
    """Return the inputs in a file that `save` wrote."""
    with np.load(path) as stored:
        return {
            name: dict(
                zip(
                    stored[f"{name}{KEYS}"].tolist(), stored[name].tolist(), strict=True
                )
            )
            if f"{name}{KEYS}" in stored
            else stored[name]
            for name in stored
            if not name.endswith(KEYS)
        }


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Return standard normal float32 numbers of a shape."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
