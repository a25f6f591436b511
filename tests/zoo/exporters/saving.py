"""Writing of one model of the zoo, with its inputs, in the form that the tests read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

ROWS = 6
"""Length of each open first dimension in the inputs that are stored."""


def save(name: str, model: onnx.ModelProto | bytes, inputs: Mapping[str, np.ndarray]) -> None:
    """Write `<name>.onnx` and `<name>.npz` into the folder that the script was given.

    Args:
        name: the model's name in the zoo.
        model: as the exporter made it.
        inputs: one array for each input of the model, by name, `ROWS` rows where the first dimension is open.
    """
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    data = model if isinstance(model, bytes) else model.SerializeToString(deterministic=True)
    (folder / f"{name}.onnx").write_bytes(data)
    np.savez_compressed(folder / f"{name}.npz", **inputs)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Return standard normal float32 numbers of a shape."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
