"""Pieces of models for engines, and sessions without onnxruntime."""

from __future__ import annotations

from onnx import TensorProto
from support.graph_models import model, node, value
from support.witness import nothing, shown

import epctx_core as epctx

SIZE = 400
"""Elements of the weight: more than stay inline."""


def group_model(
    *, x="x", w="w", y="y", size=SIZE, elem_type=TensorProto.FLOAT, op="Add"
):
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

    shown(
        model([node("Neg", ["x"], ["y"])], ["x"], ["y"]),
        nothing,
        options=options,
        __init__=keep,
    )
    return given[0]


def on_the_reference(options=None):
    """Options of sessions on the engine that is built in."""
    options = options or epctx.SessionOptions()
    options.add_session_config_entry("session.engine", "onnx.reference")
    return options


WITHOUT_ONNXRUNTIME = """
import importlib.util, sys
import importlib_metadata
sys.modules["onnxruntime"] = None  # importing it fails, as without it
def seen(name, *more, real=importlib.util.find_spec):
    return None if name == "onnxruntime" else real(name, *more)
def installed(name, real=importlib_metadata.distribution):
    if name == "epctx-onnxruntime":
        raise importlib_metadata.PackageNotFoundError(name)
    return real(name)
importlib.util.find_spec, importlib_metadata.distribution = seen, installed
from epctx_core.registry import installed as registered
def all_others(paths=None, real=registered.list_distributions):
    return [found for found in real(paths) if found.key != "epctx-onnxruntime"]
registered.list_distributions = all_others
"""
"""Beginning of a program that is to find neither onnxruntime nor epctx-onnxruntime."""
