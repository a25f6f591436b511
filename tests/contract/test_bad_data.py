"""Entries 73, 80, 81 and 84: payloads without a name or a manifest, for every installed
EP, on loads and compiles.
"""

from __future__ import annotations

import onnx
import pytest
from contract.two_partitions import network
from onnx import helper
from support.engine_eps import scripted
from support.routes import by_compiler, by_session, refused
from support.small_models import chain, saved
from support.validating_eps import options_with

import epctx_core as epctx
from epctx_core.errors import InvalidGraph, PluginError

EPS = epctx.get_available_providers()[:-1]
MODES = pytest.mark.parametrize("embed", [False, True], ids=["file", "embedded"])


@pytest.fixture(scope="module", params=EPS)
def written(request, tmp_path_factory):
    """Context model and payload file of an EP, and the model with its payload
    inside.
    """
    folder = tmp_path_factory.mktemp("written")
    onnx.save(network(0), folder / "m.onnx")
    options = epctx.SessionOptions()
    options.add_provider(request.param)
    report = epctx.ModelCompiler(options, folder / "m.onnx").compile_to_file(
        folder / "m_ctx.onnx"
    )
    whole = epctx.ModelCompiler(options, folder / "m.onnx", True).compile_to_bytes()
    name = report.outputs[0].path
    return (
        request.param,
        report.output.read_bytes(),
        (name, (folder / name).read_bytes()),
        whole,
    )


@pytest.fixture
def pair(written, tmp_path):
    """A fresh copy in a folder of its own: EP, model, binary."""
    ep, model, (name, content), _ = written
    (tmp_path / "m_ctx.onnx").write_bytes(model)
    (tmp_path / name).write_bytes(content)
    return ep, tmp_path / "m_ctx.onnx", tmp_path / name


def again(path):
    epctx.ModelCompiler(options_with(), path).compile_to_file(
        path.with_name("again_ctx.onnx")
    )


ROUTES = pytest.mark.parametrize(
    "use", [epctx.InferenceSession, again], ids=["load", "compile again"]
)


@pytest.mark.entry(84)
@ROUTES
def test_an_empty_binary_without_a_manifest(pair, use):
    _, path, binary = pair
    binary.write_bytes(b"")
    change(path, lambda model: model.metadata_props.__delitem__(slice(None)))

    with refused(InvalidGraph, f"'{binary.name}'.*is empty", folder=path.parent):
        use(path)


@pytest.mark.entry(84)
@pytest.mark.parametrize(
    "content",
    [b"\0" * 999, b"junk" * 999, b"PK\x03\x04" * 99, b"<?xml version='1.0'?><a/>"],
    ids=["zeroes", "text", "an archive", "xml"],
)
@MODES
def test_junk_without_a_manifest_is_refused_by_the_ep(pair, content, embed):
    ep, path, binary = pair
    binary.write_bytes(content)
    values = {"embed_mode": 1, "ep_cache_context": content} if embed else {}
    change(path, lambda model: change_carriers(model, **values))

    with refused(InvalidGraph, ".", folder=path.parent, ep=ep) as caught:
        epctx.InferenceSession(path)

    assert caught.value.node


@pytest.mark.entry(73, 80)
@ROUTES
@MODES
@pytest.mark.parametrize("value", [None, b""], ids=["absent", "empty"])
def test_a_primary_without_payload_or_name(pair, use, embed, value):
    _, path, _ = pair
    change(
        path,
        lambda model: change_carriers(
            model, embed_mode=int(embed), ep_cache_context=value
        ),
    )

    with refused(
        InvalidGraph, "ep_cache_context|an empty name", folder=path.parent
    ) as caught:
        use(path)

    assert caught.value.node


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("main_context", b"1"),
        ("embed_mode", 0.5),
        ("ep_cache_context", 3),
        ("source", [1]),
        ("partition_name", 7),
    ],
)
@ROUTES
def test_an_attribute_of_another_type_than_the_operator_says(pair, use, name, value):
    _, path, _ = pair
    change(path, lambda model: change_carriers(model, **{name: value}))

    with pytest.raises(
        InvalidGraph, match=f"attribute '{name}'|[Mm]ismatched attribute type"
    ):
        use(path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version": 1}', '{"version":1,"source_model":"","providers":{},"payloads":[{}]}',
     '{"version":1,"source_model":"","providers":[],"payloads":[]}'],
)  # fmt: skip
@ROUTES
def test_a_damaged_manifest(pair, use, text):
    _, path, _ = pair

    def damage(model):
        (entry,) = [e for e in model.metadata_props if e.key == "epctx.manifest"]
        entry.value = text

    change(path, damage)

    with refused(
        InvalidGraph, "epctx.manifest metadata is damaged", folder=path.parent
    ):
        use(path)


@pytest.mark.entry(81)
@pytest.mark.parametrize("route", [by_compiler, by_session])
def test_an_ep_that_writes_a_payload_of_no_bytes_is_found_out_when_it_writes_it(
    tmp_path, route
):
    class Silent(scripted()):
        def get_ep_context_nodes(self, writer):
            from epctx_core.plugin import EPContextNode

            payload = writer.payload()
            return [
                EPContextNode(partition, payload) for partition, _ in self._compiled
            ]

        get_ep_context_nodes.epctx_impl = scripted().get_ep_context_nodes.epctx_impl

    source = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")

    with refused(
        PluginError, "wrote nothing into the payload 'm_scripted.bin'", folder=tmp_path
    ):
        route(Silent, source, tmp_path / "m_ctx.onnx")


def change(path, how):
    model = onnx.load(path)
    how(model)
    saved(model, path)


def change_carriers(model, **values):
    """Set attributes of all primaries, None takes one away; nothing says what their
    payloads were.
    """
    del model.metadata_props[:]
    for node in model.graph.node:
        if (
            node.op_type == "EPContext"
            and helper.get_node_attr_value(node, "main_context") == 1
        ):
            kept = [a for a in node.attribute if a.name not in values]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.extend(
                helper.make_attribute(k, v) for k, v in values.items() if v is not None
            )
