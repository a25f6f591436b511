"""A model that Alpha compiled, to be compiled again, and what the tests of that ask
about the outcome.
"""

from __future__ import annotations

import json

import onnx
from onnx import helper
from support.small_models import chain, example, saved
from support.validating_eps import options_with, registry_with

import epctx_core as epctx

OPERATORS = ["Relu", "Sigmoid", "Neg", "Sigmoid", "Add"]
"""Alpha takes Relu and Add, Beta takes Relu and Neg, nobody Sigmoid."""


def written(folder):
    """Write the source into a new folder of this one; return its path."""
    (folder / "first").mkdir()
    return saved(chain(OPERATORS), folder / "first" / "m.onnx")


def compiled(
    model, *eps, output, embed=None, compiler=lambda _compiler: None, **entries
):
    made = epctx.ModelCompiler(
        options_with(*eps, **entries), model, embed, registry=registry_with(*eps)
    )
    compiler(made)
    return made.compile_to_file(output)


def result(model, *eps):
    with epctx.InferenceSession(model, registry=registry_with(*eps)) as session:
        return session.run(None, {"x": example()})[0]


def plain(source):
    with epctx.InferenceSession(source, providers=["CPUExecutionProvider"]) as session:
        return session.run(None, {"x": example()})[0]


def nodes_of(model):
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
    return [node for node in proto.graph.node if node.op_type == "EPContext"]


def attributes(node, *left_out):
    return {
        a.name: helper.get_attribute_value(a)
        for a in node.attribute
        if a.name not in left_out
    }


def source_of(node):
    return attributes(node)["source"].decode()


def manifest(model):
    return json.loads(metadata(model)["epctx.manifest"])


def metadata(model):
    return {entry.key: entry.value for entry in onnx.load(model).metadata_props}


def payload(model, name):
    return (model.parent / name).read_bytes()


def rename_payloads(path, names):
    model = onnx.load(path)
    for node in nodes_of(model):
        for attribute in node.attribute:
            if attribute.name == "ep_cache_context":
                attribute.s = names[attribute.s.decode()].encode()
    entries = {e.key: e for e in model.metadata_props}
    said = json.loads(entries["epctx.manifest"].value)
    for entry in said["payloads"]:
        entry["name"] = names[entry["name"]]
    entries["epctx.manifest"].value = json.dumps(said)
    saved(model, path)
