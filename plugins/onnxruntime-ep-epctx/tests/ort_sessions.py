"""onnxruntime as the host of EPs, inside a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_epctx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
SEVERITY_FATAL = 4


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, tuple[int, Sequence[int | str] | None]],
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 21,
) -> bytes:
    """Return a model; values are names to element types and shapes."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(k, *v) for k, v in inputs.items()],
        [helper.make_tensor_value_info(k, *v) for k, v in outputs.items()],
        [numpy_helper.from_array(v, k) for k, v in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString(deterministic=True))


def list_devices(ep: str) -> list[Any]:
    """Return the devices of an EP, which is registered if it is not yet."""
    onnxruntime.set_default_logger_severity(SEVERITY_FATAL)
    onnxruntime_ep_epctx.register([ep])
    return [each for each in onnxruntime.get_ep_devices() if each.ep_name == ep]


def make_options(
    ep: str | Sequence[str],
    options: Mapping[str, str] | None = None,
    entries: Mapping[str, str] | None = None,
    *,
    optimises: bool = True,
) -> onnxruntime.SessionOptions:
    """Return session options with EPs by their first devices; "" for onnxruntime
    alone.
    """
    made = onnxruntime.SessionOptions()
    if not optimises:
        made.graph_optimization_level = (
            onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        )
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in (entries or {}).items():
        made.add_session_config_entry(key, value)
    for each in [ep] if isinstance(ep, str) else ep:
        if each:
            made.add_provider_for_devices(list_devices(each)[:1], dict(options or {}))
    return made


def open_session(
    path: Any,
    ep: str | Sequence[str],
    options: Mapping[str, str] | None = None,
    entries: Mapping[str, str] | None = None,
    *,
    optimises: bool = True,
) -> onnxruntime.InferenceSession:
    """Return a session on a model: a path, or bytes."""
    source = path if isinstance(path, bytes) else str(path)
    made = make_options(ep, options, entries, optimises=optimises)
    return onnxruntime.InferenceSession(source, made)


def list_taken(session: onnxruntime.InferenceSession, ep: str) -> list[list[str]]:
    """Return the names of the nodes that an EP takes, for each partition."""
    return [
        [node.name for node in subgraph.get_nodes()]
        for subgraph in session.get_provider_graph_assignment_info()
        if subgraph.ep_name == ep
    ]


def same(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Return whether results are equal bit for bit, in types and shapes too."""
    return len(found) == len(expected) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        if isinstance(a, np.ndarray) and a.dtype != object
        else np.array_equal(a, b)
        for a, b in zip(found, expected, strict=True)
    )
