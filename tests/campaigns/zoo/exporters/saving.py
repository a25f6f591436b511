"""Writing of one model of the zoo with what onnxruntime gives for it, and reading of
that.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import onnx

ROWS = 6
"""Length of each open first dimension in the first inputs that are stored."""
KEYS = " keys"
"""Suffix of the name of an input that is a map, where its keys are stored."""


Inputs = dict[str, "np.ndarray | dict[Any, float]"]
"""Values by the input's name: arrays, or maps as DictVectorizer takes them."""


class Run(NamedTuple):
    """Inputs of a model and what onnxruntime gave for them.

    Attributes:
        results: an array for each output; None for one that is a list or a map.
    """

    inputs: Inputs
    results: list[np.ndarray | None]


def save(name: str, model: onnx.ModelProto | bytes, *inputs: Inputs) -> None:
    """Write `<name>.onnx`, and its inputs with onnxruntime's results as `<name>.npz`,
    into the folder that the script was given.

    Args:
        name: the model's name in the zoo.
        model: as the exporter made it.
        inputs: one value for each input of the model, for each run. Of one run whose
            inputs have open first dimensions, the first row becomes another one.
    """
    # Whoever only reads needs no onnxruntime.
    import onnxruntime

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    data = (
        model
        if isinstance(model, bytes)
        else model.SerializeToString(deterministic=True)
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        data, options, providers=["CPUExecutionProvider"]
    )
    open_inputs = {
        x.name
        for x in session.get_inputs()
        if x.shape and not isinstance(x.shape[0], int)
    }
    runs = list(inputs)
    if len(runs) == 1 and open_inputs:
        runs.append({k: v[:1] if k in open_inputs else v for k, v in runs[0].items()})

    arrays: dict[str, np.ndarray] = {}
    for number, given in enumerate(runs):
        arrays |= _name_arrays(f"{number}/in", given)
        for position, result in enumerate(session.run(None, given)):
            if isinstance(result, np.ndarray):
                # Text is stored without pickle.
                plain = result.astype(str) if result.dtype.kind == "O" else result
                arrays[f"{number}/out/{position}"] = plain
            else:
                arrays[f"{number}/out/{position} other"] = np.array(0)
    (folder / f"{name}.onnx").write_bytes(data)
    np.savez_compressed(folder / f"{name}.npz", **arrays)


def _name_arrays(prefix: str, inputs: Inputs) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for key, value in inputs.items():
        if isinstance(value, dict):
            arrays[f"{prefix}/{key}{KEYS}"] = np.array([*value])
            arrays[f"{prefix}/{key}"] = np.array([*value.values()])
        else:
            arrays[f"{prefix}/{key}"] = value
    return arrays


def read_runs(path: Path) -> list[Run]:
    """Return the runs in a file that `save` wrote."""
    runs: list[Run] = []
    with np.load(path) as stored:
        for key in stored:
            number, kind, name = key.split("/", 2)
            if int(number) == len(runs):
                runs.append(Run({}, []))
            if kind == "out":
                runs[-1].results.append(
                    None if name.endswith(" other") else stored[key]
                )
            elif f"{key}{KEYS}" in stored:
                keys = stored[f"{key}{KEYS}"].tolist()
                values = stored[key].tolist()
                runs[-1].inputs[name] = dict(zip(keys, values, strict=True))
            elif not name.endswith(KEYS):
                runs[-1].inputs[name] = stored[key]
    return runs


def read_inputs(path: Path) -> Inputs:
    """Return the inputs of the first run in a file that `save` wrote."""
    return read_runs(path)[0].inputs


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Return standard normal float32 numbers of a shape."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
