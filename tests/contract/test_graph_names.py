"""EPs whose runtimes name their graphs themselves: what stands in `partition_name`, and
who finds what by it.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.engine_eps import EngineProvider, packed
from support.isolation import options_for, registry_of
from support.small_models import chain, example, saved

import epctx_core as epctx
from epctx_core.plugin import EPContextNode, hookimpl

OPERATORS = ("Relu", "Sigmoid", "Relu", "Sigmoid", "Add")
"""Three partitions, of which the first two differ in their names alone."""


class Counting(EngineProvider):
    """Numbers its graphs, as the compilers of vendors do."""

    name = "CountingExecutionProvider"
    binary_suffix = "counting"
    operators = frozenset({"Relu", "Add"})
    loads_without_device = True

    def graph_name(self, number, partition):
        return f"vendor-subgraph_{number}"

    def written_name(self, number, partition):
        return self.graph_name(number, partition)

    @hookimpl
    def get_ep_context_nodes(self, writer):
        graphs = self.context.workspace.get_or_create("graphs", dict)
        payload, nodes = writer.payload(), []
        for number, (partition, model) in enumerate(self._compiled):
            graphs[self.written_name(number, partition)] = model
            name = self.graph_name(number, partition)
            carried = None if number else payload
            nodes.append(
                EPContextNode(partition, carried, int(not number), graph_name=name)
            )
        if writer.final:
            payload.write(packed(graphs))
        return nodes


class ByContent(Counting):
    """Names graphs by what they compute."""

    def graph_name(self, number, partition):
        return f"{partition.digest[:8]} number {number}"


def compile_to(path, model, ep=Counting, **entries):
    options = options_for(ep, **{"isolate": "", **entries})
    return epctx.ModelCompiler(
        options, model, registry=registry_of(ep)
    ).compile_to_file(path)


def run(model, ep=None):
    options, registry = (
        (options_for(ep, isolate=""), registry_of(ep))
        if ep
        else (None, epctx.default_registry)
    )
    with epctx.InferenceSession(model, options, registry=registry) as session:
        return session.run(None, {"x": example()})[0]


def graph_names(path):
    return [context.partition_name for context in epctx.inspect_model(path).ep_contexts]


@pytest.fixture
def model(tmp_path):
    return saved(chain(OPERATORS), tmp_path / "m.onnx")


@pytest.fixture
def context(tmp_path):
    return tmp_path / "m_ctx.onnx"


@pytest.mark.parametrize("isolate", ["", "all"])
@pytest.mark.parametrize("embedded", [0, 1])
def test_the_vendors_name_is_the_partition_name_and_a_load_finds_the_graph_by_it(
    model, context, embedded, isolate
):
    compile_to(context, model, context_embed_mode=embedded, isolate=isolate)

    assert graph_names(context) == [f"vendor-subgraph_{number}" for number in range(3)]
    np.testing.assert_allclose(run(context, Counting), run(model), rtol=1e-6)


def test_a_session_that_compiles_in_another_process_loads_by_the_vendors_names(model):
    with epctx.InferenceSession(
        model, options_for(Counting), registry=registry_of(Counting)
    ) as session:
        (result,) = session.run(None, {"x": example()})

    np.testing.assert_allclose(result, run(model), rtol=1e-6)


def test_the_prefix_stands_before_the_nodes_name_alone(model, context):
    report = compile_to(context, model, context_node_name_prefix="fleet-7.")

    assert all(
        partition.name.startswith("fleet-7.Counting") for partition in report.partitions
    )
    assert graph_names(context)[0] == "vendor-subgraph_0"


@pytest.mark.parametrize("name", ["", 7, "two\nlines"])
def test_a_name_that_is_no_printable_text_breaks_the_contract(model, context, name):
    class Wrong(Counting):
        def graph_name(self, number, partition):
            return name

    with pytest.raises(epctx.PluginError, match="graph_name"):
        compile_to(context, model, Wrong)


def test_one_name_for_two_graphs_breaks_the_contract(model, context, tmp_path):
    class Same(Counting):
        def graph_name(self, number, partition):
            return "the graph"

    with pytest.raises(
        epctx.PluginError,
        match=(
            r"gave Counting.*_2 the graph_name 'the graph', which another partition "
            r"has"
        ),
    ):
        compile_to(context, model, Same)

    assert list(tmp_path.iterdir()) == [model]


def test_partition_name_as_an_attribute_is_answered_with_the_way_to_say_it(
    model, context
):
    class Attribute(Counting):
        @hookimpl
        def get_ep_context_nodes(self, writer):
            payload = writer.payload()
            payload.write(b"x")
            return [
                EPContextNode(p, payload, attributes={"partition_name": "a"})
                for p, _ in self._compiled
            ]

    with pytest.raises(
        epctx.PluginError, match=r"only the core writes; EPContextNode\.graph_name"
    ):
        compile_to(context, model, Attribute)


def test_each_graph_that_its_ep_named_is_read_back_by_its_name(
    model, context, tmp_path
):
    class Forgetful(Counting):
        def written_name(self, number, partition):
            return (
                "forgotten" if number == 1 else super().written_name(number, partition)
            )

    with pytest.raises(
        epctx.PluginError, match=r"cannot read back .* KeyError: 'vendor-subgraph_1'"
    ):
        compile_to(context, model, Forgetful)

    assert list(tmp_path.iterdir()) == [model]


def test_a_verification_finds_a_node_whose_graph_has_another_name(model, context):
    compile_to(context, model)
    proto = onnx.load(context)
    for attribute in proto.graph.node[0].attribute:
        if attribute.name == "partition_name":
            attribute.s = b"vendor-subgraph_9"
    onnx.save(proto, context)

    report = epctx.verify_model(context, registry=registry_of(Counting))

    assert not report.ok
    assert any("vendor-subgraph_9" in finding.message for finding in report.findings)


def test_a_model_that_is_compiled_again_keeps_the_names_of_its_graphs(
    model, context, tmp_path
):
    compile_to(context, model, ByContent, partition_max_count=1)
    (kept,) = graph_names(context)

    compile_to(tmp_path / "again.onnx", context, ByContent, partition_min_nodes=1)

    assert kept in graph_names(tmp_path / "again.onnx")
    assert len(graph_names(tmp_path / "again.onnx")) == 3
    np.testing.assert_allclose(
        run(tmp_path / "again.onnx", ByContent), run(model), rtol=1e-6
    )


def test_a_name_that_a_node_of_an_earlier_compile_has_is_refused(context, tmp_path):
    model = saved(chain(("Add", "Sigmoid", "Relu")), tmp_path / "m.onnx")
    compile_to(context, model, partition_max_count=1)

    with pytest.raises(
        epctx.InvalidGraph, match="with the partition_name 'vendor-subgraph_0'"
    ):
        compile_to(tmp_path / "again.onnx", context)


def group_of(ep, folder):
    with epctx.ShareGroup(output_dir=folder, registry=registry_of(ep)) as group:
        for name, seed in (("a", 1), ("b", 2)):
            model = saved(chain(OPERATORS, seed=seed), folder / f"{name}.onnx")
            group.compile(model, options_for(ep, isolate=""))


def test_models_of_a_share_group_find_their_own_graphs(tmp_path):
    group_of(ByContent, tmp_path)

    for name in "ab":
        result = run(tmp_path / f"{name}_ctx.onnx", ByContent)
        np.testing.assert_allclose(result, run(tmp_path / f"{name}.onnx"), rtol=1e-6)


def test_two_models_of_a_share_group_with_one_name_for_different_graphs_are_refused(
    tmp_path,
):
    with pytest.raises(
        epctx.PluginError, match=r"'vendor-subgraph_2', which another partition has"
    ):
        group_of(Counting, tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx"]


class CountingToo(Counting):
    """Numbers its graphs as the other one does, and takes what that leaves."""

    name = "CountingTooExecutionProvider"
    binary_suffix = "counting2"
    operators = frozenset({"Sigmoid"})


@pytest.mark.parametrize("embedded", [0, 1])
def test_the_nodes_of_two_eps_whose_vendors_number_alike_have_names_of_their_own(
    model, context, embedded
):
    both = (Counting, CountingToo)
    options = options_for(*both, isolate="", context_embed_mode=embedded)
    epctx.ModelCompiler(options, model, registry=registry_of(*both)).compile_to_file(
        context
    )

    names = [node.name for node in onnx.load(context).graph.node]
    assert len({*names}) == len(names) == 5
    report = epctx.verify_model(context, registry=registry_of(*both))
    assert report.ok
    assert all(payload.digests for payload in report.payloads)
    with epctx.InferenceSession(
        context, options_for(*both), registry=registry_of(*both)
    ) as session:
        (result,) = session.run(None, {"x": example()})
    np.testing.assert_allclose(result, run(model), rtol=1e-6)
