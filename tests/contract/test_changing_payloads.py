"""An EP whose compiler writes other bytes each time, as OpenVINO's and QNN's do:
nothing is named or found by them.
"""

from __future__ import annotations

import secrets
import shutil

import numpy as np
import pytest
from contract.test_graph_names import compile_to, group_of, run
from support.engine_eps import EngineProvider, packed
from support.isolation import options_for, registry_of
from support.small_models import chain, example, saved, snapshot

import epctx_core as epctx
from epctx_core.plugin import EPContextNode, hookimpl

OPERATORS = ("Relu", "Sigmoid", "Relu", "Sigmoid", "Add")


class Stamping(EngineProvider):
    """Its compiler puts a random number into what it writes."""

    name = "StampingExecutionProvider"
    binary_suffix = "stamping"
    operators = frozenset({"Relu", "Add"})
    loads_without_device = True

    def __init__(self, context):
        super().__init__(context)
        self.stamp = secrets.token_bytes(16)

    @hookimpl
    def get_ep_context_nodes(self, writer):
        graphs = self.context.workspace.get_or_create("graphs", dict)
        graphs.update({partition.name: model for partition, model in self._compiled})
        payload = writer.payload()
        if writer.final:
            payload.write(packed({**graphs, "stamp": self.stamp}))
        first, *others = (partition for partition, _ in self._compiled)
        return [
            EPContextNode(first, payload),
            *(EPContextNode(p, main_context=0) for p in others),
        ]


@pytest.fixture
def model(tmp_path):
    return saved(chain(OPERATORS), tmp_path / "m.onnx")


def names(path):
    return [
        (node.name, node.partition_name, node.payload_file)
        for node in epctx.inspect_model(path).ep_contexts
    ]


def test_names_of_nodes_graphs_and_files_are_the_same_where_the_bytes_differ(
    model, tmp_path
):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        compile_to(folder / "m_ctx.onnx", model, Stamping)

    first, second = (snapshot(folder) for folder in folders)
    assert first.keys() == second.keys() == {"m_ctx.onnx", "m_stamping.bin"}
    assert first["m_stamping.bin"] != second["m_stamping.bin"]
    assert names(folders[0] / "m_ctx.onnx") == names(folders[1] / "m_ctx.onnx")
    assert (
        run(folders[0] / "m_ctx.onnx", Stamping).tolist()
        == run(folders[1] / "m_ctx.onnx", Stamping).tolist()
    )


def test_a_model_is_compiled_over_itself_and_the_binary_of_an_earlier_compile_is_refused(
    model, tmp_path
):
    path, binary = tmp_path / "m_ctx.onnx", tmp_path / "m_stamping.bin"
    compile_to(path, model, Stamping)
    expected = run(path, Stamping)
    shutil.copy(binary, tmp_path / "earlier")

    compile_to(path, model, Stamping)

    np.testing.assert_array_equal(run(path, Stamping), expected)
    shutil.copy(tmp_path / "earlier", binary)
    with pytest.raises(epctx.InvalidGraph, match=r"'m_stamping\.bin' is not the one"):
        run(path, Stamping)


def test_models_of_a_share_group_have_one_binary(tmp_path):
    group_of(Stamping, tmp_path)

    for name in "ab":
        result = run(tmp_path / f"{name}_ctx.onnx", Stamping)
        np.testing.assert_allclose(result, run(tmp_path / f"{name}.onnx"), rtol=1e-6)
    assert len(list(tmp_path.glob("*.bin"))) == 1


def test_a_cache_finds_it_by_what_went_into_the_compile(model, tmp_path):
    options, registry = options_for(Stamping, isolate=""), registry_of(Stamping)

    def entry(cache):
        return epctx.compile_cached(model, options, tmp_path / cache, registry=registry)

    first, again, other = entry("a"), entry("a"), entry("b")

    assert first == again
    assert first.relative_to(tmp_path / "a") == other.relative_to(tmp_path / "b")
    (mine,), (theirs,) = (list(path.parent.glob("*.bin")) for path in (first, other))
    assert mine.read_bytes() != theirs.read_bytes()
    with epctx.load_or_compile(
        model, options, tmp_path / "a", registry=registry
    ) as session:
        np.testing.assert_allclose(
            session.run(None, {"x": example()})[0], run(model), rtol=1e-6
        )
    assert entry("a") == first
