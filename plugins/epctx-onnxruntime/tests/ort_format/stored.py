"""Gives `.ort` files of each version of the format: stored ones of 4 and 5, fresh ones
of the installed onnxruntime.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from functools import cache
from pathlib import Path

import onnxruntime
from ort_format.sources import source

STORED = Path(__file__).parent / "stored"
OLD = (4, 5)
NEWEST = 6


@cache
def ort_file(name: str, version: int = NEWEST) -> bytes:
    """Return a model of `sources` as an `.ort` file."""
    return _stored(name, version) if version in OLD else _fresh(name)


def _stored(name: str, version: int) -> bytes:
    file = f"{name}.v{version}.ort.xz"
    entry = json.loads((STORED / "table.json").read_text())[file]
    data = bytearray(lzma.decompress((STORED / file).read_bytes()))
    tensors = {
        tensor.name: tensor.raw_data for tensor in source(name).graph.initializer
    }
    for weight, at in entry["weights"].items():
        data[at : at + len(tensors[weight])] = tensors[weight]
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    return bytes(data)


def _fresh(name: str) -> bytes:
    import tempfile

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    )
    options.add_session_config_entry("session.save_model_format", "ORT")
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/model.ort"
        model = source(name).SerializeToString()
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return Path(folder, "model.ort").read_bytes()
