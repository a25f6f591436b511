"""EPs that compile to find out what they take: their sets are partitions as they stand,
and nothing is compiled twice.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.engine_eps import EngineProvider
from support.isolation import options_for, registry_of
from support.small_models import chain, example, finished, saved, tensor

import epctx_core as epctx
from epctx_core.plugin import CompiledPartition, ComputeCapability, Refusal, hookimpl

OPERATORS = ("Relu", "Add", "Relu", "Add", "Sigmoid", "Relu")


class Compiled:
    """Product of a vendor's compiler; it cannot be sent to another process."""

    def __init__(self, nodes, engine):
        self.nodes = nodes
        self.engine = engine

    def __reduce__(self):
        raise TypeError("a handle of a device")


class Exact(EngineProvider):
    """Takes pairs of nodes, each compiled when it is claimed."""

    name = "ExactExecutionProvider"
    binary_suffix = "exact"
    operators = frozenset({"Relu", "Add"})

    def sets(self, graph):
        nodes = [node for node in graph.nodes if node.op_type in self.operators]
        return [nodes[i : i + 2] for i in range(0, len(nodes), 2)]

    @hookimpl
    def get_capability(self, graph):
        return [
            ComputeCapability(
                nodes,
                exact=True,
                token=Compiled([n.name for n in nodes], self.context.engine),
            )
            for nodes in self.sets(graph)
        ]

    @hookimpl
    def compile(self, partitions):
        for partition in partitions:
            token = partition.token
            if type(token) is not Compiled or token.engine is not self.context.engine:
                raise TypeError(f"{token!r} is not what this instance made")
            if token.nodes != [node.name for node in partition.nodes]:
                raise ValueError(
                    f"{token.nodes} came back with "
                    f"{[node.name for node in partition.nodes]}"
                )
        return super().compile(partitions)


def claiming(*sets, **arguments):
    """Return an EP that claims sets of nodes, which are given by their names."""

    class Claiming(EngineProvider):
        name = "ClaimingExecutionProvider"

        @hookimpl
        def get_capability(self, graph):
            by_name = {node.name: node for node in graph.nodes}
            return [
                ComputeCapability([by_name[name] for name in names], **arguments)
                for names in sets
            ]

    return Claiming


def compile_with(ep, model, folder, isolate="", **entries):
    compiler = epctx.ModelCompiler(
        options_for(ep, isolate=isolate, **entries), model, registry=registry_of(ep)
    )
    return compiler.compile_to_file(folder / "m_ctx.onnx")


def run(model, ep=None, isolate=""):
    options, registry = (
        (options_for(ep, isolate=isolate), registry_of(ep)) if ep else (None, None)
    )
    with epctx.InferenceSession(model, options, registry=registry) as session:
        return session.run(None, {"x": example()})[0]


def node_names(report):
    return [partition.node_names for partition in report.partitions]


def reasons(report):
    return [
        refusal.reason
        for refusal in report.refusals
        if refusal.ep != "CPUExecutionProvider"
    ]


@pytest.fixture
def model(tmp_path):
    return saved(chain(OPERATORS), tmp_path / "m.onnx")


@pytest.mark.parametrize("isolate", ["", "compile", "all"])
def test_exact_sets_are_partitions_whose_tokens_come_back(model, tmp_path, isolate):
    report = compile_with(Exact, model, tmp_path, isolate)

    assert node_names(report) == [("n0", "n1"), ("n2", "n3"), ("n5",)]
    np.testing.assert_allclose(
        run(tmp_path / "m_ctx.onnx", Exact), run(model), rtol=1e-6
    )


@pytest.mark.parametrize("isolate", ["", "compile", "all"])
def test_tokens_come_back_in_a_session_that_compiles(model, isolate):
    np.testing.assert_allclose(run(model, Exact, isolate), run(model), rtol=1e-6)


def test_the_same_sets_without_exact_are_merged_and_have_no_token(model, tmp_path):
    class Merged(claiming(["n0", "n1"], ["n2", "n3"], ["n5"])):
        @hookimpl
        def compile(self, partitions):
            assert [partition.token for partition in partitions] == [None, None]
            return super().compile(partitions)

    report = compile_with(Merged, model, tmp_path)

    assert node_names(report) == [("n0", "n1", "n2", "n3"), ("n5",)]


def test_other_sets_are_merged_around_exact_ones(tmp_path):
    model = saved(chain(("Relu",) * 6), tmp_path / "m.onnx")

    class Mixed(EngineProvider):
        name = "MixedExecutionProvider"

        @hookimpl
        def get_capability(self, graph):
            nodes = list(graph.nodes)
            return [
                ComputeCapability(nodes[2:4], exact=True),
                *(ComputeCapability([n]) for n in nodes[:2] + nodes[4:]),
            ]

    report = compile_with(Mixed, model, tmp_path)

    assert node_names(report) == [("n0", "n1"), ("n2", "n3"), ("n4", "n5")]
    np.testing.assert_allclose(
        run(tmp_path / "m_ctx.onnx", Mixed), run(model), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("entries", "kept", "reason"),
    [
        (
            {"partition_min_nodes": 2},
            2,
            "a partition of 1 node is smaller than ep.partition_min_nodes=2",
        ),
        (
            {"partition_max_count": 1},
            1,
            "is not among the ep.partition_max_count=1 largest",
        ),
    ],
)
def test_a_limit_leaves_out_whole_sets_and_says_why(
    model, tmp_path, entries, kept, reason
):
    report = compile_with(Exact, model, tmp_path, **entries)

    assert node_names(report) == [("n0", "n1"), ("n2", "n3")][:kept]
    assert all(reason in said for said in reasons(report))
    assert len(reasons(report)) == 3 - kept


def test_a_set_whose_boundary_no_context_node_carries_is_refused_whole(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Cast", ["a"], ["b"], name="text", to=TensorProto.STRING),
        helper.make_node("Cast", ["b"], ["c"], name="number", to=TensorProto.FLOAT),
        helper.make_node("Relu", ["c"], ["y"], name="last"),
    ]
    model = saved(finished(nodes, [tensor("x")], [tensor("y")]), tmp_path / "m.onnx")

    report = compile_with(
        claiming(["first", "text"], ["last"], exact=True), model, tmp_path
    )

    assert node_names(report) == [("last",)]
    (reason,) = reasons(report)
    assert "'b' is string" in reason
    assert reason.endswith(
        "the EP takes the 2 nodes of this set together or not at all"
    )


def test_a_set_may_hold_a_part_of_a_quantized_group_as_the_ep_compiled_it(tmp_path):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="in"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="before"),
        helper.make_node("Relu", ["d"], ["r"], name="work"),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["p"], name="behind"),
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["e"], name="out"),
        helper.make_node("Neg", ["e"], ["y"], name="end"),
    ]
    weights = [
        numpy_helper.from_array(np.float32(0.1), "s"),
        numpy_helper.from_array(np.int8(0), "z"),
    ]
    model = saved(
        finished(nodes, [tensor("x")], [tensor("y")], weights), tmp_path / "m.onnx"
    )

    report = compile_with(
        claiming(["before", "work"], ["end"], exact=True), model, tmp_path
    )

    assert node_names(report) == [("before", "work"), ("end",)]


@pytest.mark.parametrize(
    ("ep", "message"),
    [
        (claiming(["n0", "n2"], exact=True), "claims sets that enclose nodes outside of them"),
        (claiming(["n0"], token=object()), "with a token, but without exact=True"),
        (claiming(["n0"], metadata={"a": 1}), "with metadata that are no texts"),
        (claiming(["n0"], metadata={"epctx.manifest": ""}), "or the core's"),
    ],
)  # fmt: skip
def test_what_no_exact_set_can_be_breaks_the_contract(model, tmp_path, ep, message):
    with pytest.raises(epctx.PluginError, match=message):
        compile_with(ep, model, tmp_path)

    assert list(tmp_path.iterdir()) == [model]


def test_exact_sets_that_overlap_break_the_contract_and_a_node_without_a_name_is_named_all_the_same(
    tmp_path,
):
    class Overlapping(Exact):
        def sets(self, graph):
            return [graph.nodes[:1], graph.nodes[:2]]

    nameless = chain(OPERATORS)
    for node in nameless.graph.node:
        node.name = ""

    with pytest.raises(
        epctx.PluginError,
        match=rf"claims node '{OPERATORS[0]}_0' \({OPERATORS[0]}\) twice",
    ):
        compile_with(Overlapping, saved(nameless, tmp_path / "m.onnx"), tmp_path)


def test_sets_that_enclose_each_other_break_the_contract(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="a"),
        helper.make_node("Neg", ["x"], ["b"], name="b"),
        helper.make_node("Relu", ["b"], ["c"], name="c"),
        helper.make_node("Neg", ["a"], ["d"], name="d"),
        helper.make_node("Add", ["c", "d"], ["y"], name="e"),
    ]
    model = saved(finished(nodes, [tensor("x")], [tensor("y")]), tmp_path / "m.onnx")

    with pytest.raises(
        epctx.PluginError, match="claims sets that enclose nodes outside of them"
    ):
        compile_with(claiming(["a", "c"], ["b", "d"], exact=True), model, tmp_path)


def test_work_that_is_kept_between_hooks_is_the_instances_own(model):
    compiled = []

    class Keeping(EngineProvider):
        name = "KeepingExecutionProvider"

        @hookimpl
        def get_capability(self, graph):
            nodes = graph.nodes[:3]
            compiled.append(nodes)
            token = self.context.engine.prepare(graph.model(inline_weights=True))
            refused = Refusal("it is the rest", graph.nodes[3:])
            return [
                ComputeCapability(nodes, exact=True, token=(id(self), token)),
                refused,
            ]

        @hookimpl
        def compile(self, partitions):
            (partition,) = partitions
            owner, _ = partition.token
            assert owner == id(self)
            prepared = self.context.engine.prepare(partition.model(inline_weights=True))
            return [CompiledPartition(prepared.run, close=prepared.close)]

    for _ in range(2):
        np.testing.assert_allclose(run(model, Keeping), run(model), rtol=1e-6)

    assert [[node.name for node in nodes] for nodes in compiled] == [
        ["n0", "n1", "n2"]
    ] * 2
