"""Models with weights in common that each simulated EP takes, and share groups made of
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from support.sim_eps import VITISAI

import epctx_core as epctx

if TYPE_CHECKING:
    from pathlib import Path

WIDTH = 128
LAYERS = 3
SCALE = np.float32(2**-5)


def options(
    ep: str, provider_options: dict[str, str] | None = None, **entries: object
) -> epctx.SessionOptions:
    """Return session options with one EP; `ep__share_ep_contexts=1` sets
    `ep.share_ep_contexts`.
    """
    result = epctx.SessionOptions()
    result.add_provider(ep, provider_options)
    for key, value in entries.items():
        result.add_session_config_entry(key.replace("__", "."), str(value))
    return result


def sharing(ep: str, *, stop: bool = False, **entries: object) -> epctx.SessionOptions:
    """Return options of a share group's session."""
    if stop:
        entries["ep__stop_share_ep_contexts"] = 1
    return options(ep, ep__share_ep_contexts=1, **entries)


def write_model(
    ep: str, path: Path, rows: int, *, seed: int = 0, prefix: str = "w"
) -> Path:
    """Write a model of `LAYERS` square products whose weights follow from the seed;
    names from the prefix.
    """
    model = (
        _int8_layers(rows, seed, prefix)
        if ep == VITISAI
        else _float_layers(rows, seed, prefix)
    )
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def unique_weight_bytes(*paths: Path, elem_type: int | None = None) -> int:
    """Return how many bytes the models' weights have, each content counted once; only
    those of a type if given.
    """
    contents = {
        numpy_helper.to_array(tensor).tobytes()
        for path in paths
        for tensor in onnx.load(path).graph.initializer
        if elem_type in (None, tensor.data_type)
    }
    return sum(map(len, contents))


def example(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return inputs for a model of so many rows."""
    return {
        "x": np.random.default_rng(seed).standard_normal(
            (rows, WIDTH), dtype=np.float32
        )
    }


def run(
    model: Path, rows: int, session_options: epctx.SessionOptions | None = None
) -> np.ndarray:
    """Run a model once; without options as its source runs on the CPU EP."""
    with epctx.InferenceSession(
        model, session_options or epctx.SessionOptions()
    ) as session:
        result: np.ndarray = session.run(None, example(rows))[0]
        return result


def _float_layers(rows: int, seed: int, prefix: str) -> onnx.ModelProto:
    random = np.random.default_rng(seed)
    weights = [
        numpy_helper.from_array(
            random.standard_normal((WIDTH, WIDTH), dtype=np.float32) / 8, f"{prefix}{i}"
        )
        for i in range(LAYERS)
    ]
    nodes = []
    for i in range(LAYERS):
        nodes.append(
            helper.make_node(
                "MatMul", [f"v{i}" if i else "x", f"{prefix}{i}"], [f"m{i}"]
            )
        )
        nodes.append(
            helper.make_node(
                "Relu", [f"m{i}"], [f"v{i + 1}" if i + 1 < LAYERS else "y"]
            )
        )
    return _finished(nodes, weights, rows)


def _int8_layers(rows: int, seed: int, prefix: str) -> onnx.ModelProto:
    random = np.random.default_rng(seed)
    weights = [
        numpy_helper.from_array(SCALE, "scale"),
        numpy_helper.from_array(np.int8(0), "zero"),
    ]
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q0"])]
    for i in range(LAYERS):
        values = random.integers(-8, 8, (WIDTH, WIDTH), dtype=np.int8)
        weights.append(numpy_helper.from_array(values, f"{prefix}{i}"))
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{i}", "scale", "zero"], [f"d{i}"]),
            helper.make_node(
                "DequantizeLinear", [f"{prefix}{i}", "scale", "zero"], [f"dw{i}"]
            ),
            helper.make_node("MatMul", [f"d{i}", f"dw{i}"], [f"m{i}"]),
            helper.make_node(
                "QuantizeLinear", [f"m{i}", "scale", "zero"], [f"q{i + 1}"]
            ),
        ]
    nodes.append(
        helper.make_node("DequantizeLinear", [f"q{LAYERS}", "scale", "zero"], ["y"])
    )
    return _finished(nodes, weights, rows)


def _finished(
    nodes: list[onnx.NodeProto], weights: list[TensorProto], rows: int
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, WIDTH])],
        weights,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
