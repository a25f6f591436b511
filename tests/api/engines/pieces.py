"""Pieces of models for engines, and onnxruntime out of sight."""

from __future__ import annotations

import importlib.util

from graph.making import model, node, value
from graph.witness import nothing, shown
from onnx import TensorProto

SIZE = 400
"""Elements of the weight: more than stay inline."""


def piece(*, x="x", w="w", y="y", size=SIZE, elem_type=TensorProto.FLOAT, op="Add"):
    """y = x + w where w is given beside the model."""
    made = model(
        [node(op, [x, w], [y], name=f"node {y}")],
        [value(x, elem_type, [size])],
        [value(y, elem_type, [size])],
    )
    weight = made.graph.initializer.add(
        name=w, data_type=elem_type, dims=[size], data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value="epctx-weight")
    return made


def session_engine(options=None):
    """Return the engine that a session gives its EPs."""
    given = []

    def keep(_self, context):
        given.append(context.engine)

    shown(model([node("Neg", ["x"], ["y"])], ["x"], ["y"]), nothing, options=options, __init__=keep)
    return given[0]


def hide_onnxruntime(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "onnxruntime" else real(name, *rest),
    )
