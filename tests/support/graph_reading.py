"""Models as read and indices over them, made as sessions make them."""

from __future__ import annotations

from onnx import ModelProto

from epctx_core.graph.index import GraphIndex
from epctx_core.graph.inference import infer_types
from epctx_core.graph.model_io import detach_model, separate_model


def no_files(location, name):
    raise AssertionError(f"{name} asks for the file {location}")


def opened(proto: ModelProto, open_external=no_files):
    """A model as read; the argument stays as it is."""
    data = proto.SerializeToString()
    content = separate_model(data, None)
    proto = ModelProto.FromString(content.structure)
    return detach_model(proto, content, open_external)


def indexed(source):
    """An index over a `SourceModel`, or over a model that is opened first."""
    if isinstance(source, ModelProto):
        source = opened(source)
    return GraphIndex(
        source.proto.graph,
        types=infer_types(source.proto),
        weights=source.weights,
        owner=source.proto,
    )
