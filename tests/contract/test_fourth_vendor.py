"""A fourth vendor on the simulated SDK: about 80 lines make a complete EP."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import onnx
import pytest
from contract.fourth_vendor import EP, TesseraProvider
from support.agreement import TOLERANCE, worst_relative_error
from support.folders import PLUGINS
from support.sim_eps import PACKAGES
from support.small_models import chain, example, saved

import epctx_core as epctx
from epctx_core import InvalidGraph
from epctx_core.plugin import Compatibility

pytestmark = pytest.mark.internal

MODULE = Path(__file__).with_name("fourth_vendor.py")
TILES = [
    (4, 4, Compatibility.EP_SUPPORTED_OPTIMAL),
    (4, 16, Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION),
    (64, 16, Compatibility.EP_UNSUPPORTED),
]
"""Tiles compiled for, tiles of the chip, the verdict."""


def registry():
    found = epctx.Registry(entry_points=False)
    found.register(TesseraProvider)
    return found


def with_tessera(tiles=16):
    options = epctx.SessionOptions()
    options.add_provider(EP, {"tiles": str(tiles)})
    return options


def compiled(source, folder, *, tiles=16, embedded=False):
    compiler = epctx.ModelCompiler(
        with_tessera(tiles), source, embedded, registry=registry()
    )
    return compiler.compile_to_file(folder / "net_ctx.onnx")


def results(path, inputs, options=None):
    with epctx.InferenceSession(path, options, registry=registry()) as session:
        return session.run(None, inputs)


@pytest.fixture
def source(tmp_path):
    return saved(chain(["Relu", "Add", "Erf", "Mul"]), tmp_path / "m.onnx")


def packages_imported(path):
    """Return the first names of all that a module imports."""
    nodes = list(ast.walk(ast.parse(path.read_bytes())))
    names = [
        alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


def test_a_complete_ep_takes_about_100_lines():
    written = [line for line in MODULE.read_text().splitlines() if line.strip()]

    assert len(written) < 110
    assert packages_imported(MODULE) <= {
        "__future__", "collections", "typing", "onnx", "epctx_core", "epctx_sim_sdk",
    }  # fmt: skip


def test_it_has_share_groups_without_anything_global_of_its_own(tmp_path):
    operators = {"a": ["Relu", "Add", "Mul"], "b": ["Add", "Relu", "Mul"]}
    sources = [
        saved(chain(ops, seed=3), tmp_path / f"{name}.onnx")
        for name, ops in operators.items()
    ]

    with epctx.ShareGroup(registry=registry()) as group:
        for source in sources:
            group.compile(source, with_tessera())

    assert len(group.report.binaries) == 1
    assert len(group.report.outputs) == 3
    sharing = with_tessera()
    sharing.add_session_config_entry("ep.share_ep_contexts", "1")
    for source in sources:
        found = results(
            source.with_name(f"{source.stem}_ctx.onnx"), {"x": example()}, sharing
        )
        assert np.allclose(found[0], results(source, {"x": example()})[0], atol=1e-5)


@pytest.mark.parametrize("embedded", [False, True], ids=["file", "embedded"])
@pytest.mark.parametrize("name", ["resnet", "squeezenet"])
def test_a_network_is_compiled_moved_and_agrees_with_onnxruntime(
    network, tmp_path, name, embedded
):
    source = network(name)
    built, moved = tmp_path / "built", tmp_path / "far away"
    built.mkdir()

    report = compiled(source.path, built, embedded=embedded)
    directly = results(source.path, source.inputs, with_tessera())
    built.rename(moved)
    source.path.unlink()
    loaded = results(moved / "net_ctx.onnx", source.inputs)

    assert report.assignments[EP] > report.assignments["CPUExecutionProvider"]
    assert worst_relative_error(directly, source.reference) <= TOLERANCE
    assert worst_relative_error(loaded, source.reference) <= TOLERANCE
    files = {"net_ctx.onnx"} if embedded else {"net_ctx.onnx", "net_tessera.bin"}
    assert {path.name for path in moved.iterdir()} == files


def test_its_nodes_say_what_is_its_own(source, tmp_path):
    report = compiled(source, tmp_path)

    nodes = [
        node
        for node in onnx.load(report.output).graph.node
        if node.op_type == "EPContext"
    ]
    said = [
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        for node in nodes
    ]
    assert [attributes["main_context"] for attributes in said] == [1, 0]
    assert {attributes["source"] for attributes in said} == {EP.encode()}
    assert {attributes["tessera_tiles"] for attributes in said} == {b"16"}


def test_what_it_leaves_has_a_reason(source, tmp_path):
    report = compiled(source, tmp_path)

    assert {refusal.reason for refusal in report.refusals} == {
        "Erf is not an operator of Tessera's"
    }


@pytest.mark.parametrize(("made", "chip", "verdict"), TILES)
def test_its_table_decides_what_loads(source, tmp_path, made, chip, verdict):
    report = compiled(source, tmp_path, tiles=made)
    judged = epctx.get_model_compatibility(
        report.output, EP, {"tiles": str(chip)}, registry=registry()
    )

    assert judged.name == verdict.name
    if verdict is Compatibility.EP_UNSUPPORTED:
        with pytest.raises(InvalidGraph, match="tiles=64") as caught:
            results(report.output, {"x": example()}, with_tessera(chip))
        assert caught.value.ep == EP
    else:
        found = results(report.output, {"x": example()}, with_tessera(chip))
        np.testing.assert_array_equal(found, results(source, {"x": example()}))


def test_a_node_that_states_no_tiles_is_refused(source, tmp_path):
    report = compiled(source, tmp_path)
    model = onnx.load(report.output)
    for node in model.graph.node:
        for attribute in [a for a in node.attribute if a.name == "tessera_tiles"]:
            node.attribute.remove(attribute)
    onnx.save(model, report.output)

    with pytest.raises(InvalidGraph, match="the node has tiles missing"):
        results(report.output, {"x": example()})


def test_without_it_the_error_names_node_and_source(source, tmp_path):
    report = compiled(source, tmp_path)

    with pytest.raises(epctx.EpctxError, match=EP) as caught:
        epctx.InferenceSession(
            report.output, registry=epctx.Registry(entry_points=False)
        )

    assert caught.value.node == report.partitions[0].name


@pytest.mark.parametrize("vendor", sorted(PACKAGES.values()))
def test_no_vendors_package_needs_another(vendor):
    own = vendor.replace("-", "_")
    others = {package.replace("-", "_") for package in PACKAGES.values()} - {own}

    for path in PLUGINS.glob(f"{vendor}/src/**/*.py"):
        assert not others & packages_imported(path), path
