"""The ways into epctx that bad input is tried on, and what is expected of a refusal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import onnx
import pytest
from onnx import helper
from support.small_models import saved, snapshot

import epctx_core as epctx
from epctx_core import InvalidProtobuf
from epctx_core.plugin import hookimpl

if TYPE_CHECKING:
    from pathlib import Path

QNN = "QNNExecutionProvider"


class Pair(NamedTuple):
    """A context model and its binary, alone in a folder."""

    folder: Path
    model: Path
    binary: Path


@contextmanager
def refused(kind, match, *, folder=None, **attributes):
    """Expect one error of a kind, with a hint and these attributes, and nothing changed
    in the folder.
    """
    before = snapshot(folder) if folder else None
    with pytest.raises(kind, match=match) as caught:
        yield caught
    for name, value in attributes.items():
        assert getattr(caught.value, name) == value
    assert caught.value.hint or kind in {RuntimeError, InvalidProtobuf}, "no hint"
    assert before is None or snapshot(folder) == before


def with_qnn(options=None, **entries):
    session_options = epctx.SessionOptions()
    session_options.add_provider("QNN", options)
    for key, value in entries.items():
        session_options.add_session_config_entry(key.replace("__", "."), str(value))
    return session_options


def compile_with(ep, source, output=None, **arguments):
    registry, options = epctx.Registry(entry_points=False), epctx.SessionOptions()
    registry.register(ep)
    options.add_provider(ep.name)
    return epctx.ModelCompiler(
        options, source, registry=registry, **arguments
    ).compile_to_file(output)


def session_with(ep, model, **entries):
    registry, options = epctx.Registry(entry_points=False), epctx.SessionOptions()
    registry.register(ep)
    options.add_provider(ep.name)
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), str(value))
    return epctx.InferenceSession(model, options, registry=registry)


def by_compiler(ep, source, output, **flags):
    return compile_with(ep, source, output, **flags)


def by_session(ep, source, output):
    return session_with(ep, source, ep__context_enable=1, ep__context_file_path=output)


def only_node(path):
    """Return a context model and its only EPContext node, to change them."""
    model = onnx.load(path)
    (node,) = [n for n in model.graph.node if n.op_type == "EPContext"]
    return model, node


def set_attribute(path, name, value):
    model, node = only_node(path)
    for attribute in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(attribute)
    node.attribute.append(helper.make_attribute(name, value))
    saved(model, path)
    return node.name


class Transforming:
    """Host plugin that changes models by a function."""

    version = "1"

    def __init__(self, function):
        self.function = function

    @hookimpl
    def transform_model(self, model, weights, level):
        return self.function(model, weights, level)


def with_transformers(*functions, ep="QNN", **entries):
    options = epctx.SessionOptions()
    if ep:
        options.add_provider(ep)
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), str(value))
    for function in functions:
        options.add_host_plugin(Transforming(function))
    return options
