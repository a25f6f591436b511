"""Partitions that an EP fails to compile: they end all work, or with the option
`ep.on_compile_failure=next` go to the EPs after it.
"""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import pytest
from epctx_kernels import KernelDef, KernelRegistry
from epctx_sim_qnn import QnnProvider
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.acme import KernelProvider
from support.agreement_of_routes import model_of
from support.compiling import compiler, context_nodes
from support.engine_eps import Alpha, Beta, EngineProvider, Fragile, fragile
from support.onnxruntime_results import onnxruntime_result
from support.random_graphs import assert_partitions_are_whole, drawn_model
from support.routes import refused
from support.share_models import run, write_model
from support.small_models import chain, example, saved
from support.validating_eps import options_with, registry_with, session

import epctx_core as epctx
from epctx_core import EPFail, Fail, InvalidArgument, ModelLoadCanceled, PluginError
from epctx_core.plugin import ComputeCapability, hookimpl, supported_partitions

NEXT = {"ep__on_compile_failure": "next"}
TEXT = r"RuntimeError: QNN graph finalize failed:\nerror 1002"
OPERATORS = ("Relu", "Add", "Sigmoid", "Add", "Relu", "Neg", "Sigmoid", "Add")
"""Fragile takes n0 and n1, n3 and n4, n7, and fails for the second of these; of those,
Beta takes n4 and, with it, n5.
"""
CPU = "CPUExecutionProvider"


@pytest.fixture
def model(tmp_path):
    """A model of these operators, alone in a folder."""
    return saved(chain(OPERATORS), tmp_path / "m.onnx")


def taken(report):
    """Return the EP and the nodes of each partition."""
    return [(p.ep.removesuffix("ExecutionProvider"), p.node_names) for p in report]


def compiled(model, *eps, **entries):
    """Compile beside the model; return the report."""
    made = compiler(
        model,
        *eps,
        entries={**NEXT, **entries},
        graph_optimization_level=epctx.GraphOptimizationLevel.ORT_DISABLE_ALL,
    )
    return made.compile_to_file(model.with_name("m_ctx.onnx"))


def result(model, *eps, **entries):
    """Return a session's result, and the nodes of each EP that is not the CPU's."""
    entries = {"session__record_ep_graph_assignment_info": 1, **entries}
    with session(model, *eps, **entries) as opened:
        (output,) = opened.run(None, {"x": example()})
        info = opened.get_provider_graph_assignment_info()
    names = [(s.ep_name, tuple(n.name for n in s.nodes)) for s in info]
    return output, [
        (ep.removesuffix("ExecutionProvider"), nodes)
        for ep, nodes in names
        if ep != CPU
    ]


def expected(model):
    return onnxruntime_result(model, {"x": example()})[0]


# --- where the nodes go ---------------------------------------------------------------


def test_the_next_ep_gets_the_nodes_and_the_report_has_the_vendors_text(model, caplog):
    report = compiled(model, fragile("n3"), Beta)

    assert taken(report.partitions) == [
        ("Fragile", ("n0", "n1")),
        ("Beta", ("n4", "n5")),
        ("Fragile", ("n7",)),
    ]
    assert report.assignments == {Fragile.name: 3, Beta.name: 2, CPU: 3}
    (failure,) = [r for r in report.refusals if TEXT in r.reason]
    assert (failure.ep, failure.nodes) == (Fragile.name, ("n3", "n4"))
    assert failure.reason == f"it failed to compile: {TEXT}"
    (warning,) = caplog.records
    assert (warning.name, warning.levelname) == ("epctx.session", "WARNING")
    assert warning.message == (
        f"{Fragile.name} failed to compile 1 of its 3 partitions (nodes: 2), which go "
        f"on to the next EP: {TEXT}"
    )


def test_the_context_model_loads_and_gives_the_right_numbers(model):
    report = compiled(model, fragile("n3"), Beta)
    wanted = expected(model)
    nodes = context_nodes(report.output)
    model.unlink()

    found, loaded = result(report.output, fragile(), Beta)

    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert [name for _, (name,) in loaded] == [nodes[index].name for index in (0, 2, 1)]


def test_the_next_ep_gets_the_nodes_in_a_session(model, caplog):
    found, nodes = result(model, fragile("n3"), Beta, **NEXT)

    np.testing.assert_allclose(found, expected(model), rtol=1e-6)
    assert nodes == [
        ("Fragile", ("n0", "n1")),
        ("Fragile", ("n7",)),
        ("Beta", ("n4", "n5")),
    ]
    (warning,) = caplog.messages
    assert TEXT in warning


def test_without_another_ep_the_cpu_ep_runs_the_nodes(model):
    report = compiled(model, fragile("n3"))
    found, nodes = result(model, fragile("n3"), **NEXT)

    assert taken(report.partitions) == [
        ("Fragile", ("n0", "n1")),
        ("Fragile", ("n7",)),
    ]
    assert nodes == taken(report.partitions)
    assert report.assignments[CPU] == 5
    np.testing.assert_allclose(found, expected(model), rtol=1e-6)
    np.testing.assert_allclose(
        result(report.output, fragile())[0], expected(model), rtol=1e-6
    )


def test_an_ep_that_compiles_nothing_leaves_a_plain_model(model, caplog):
    report = compiled(model, fragile("n0", "n3", "n7"))

    assert not report.compiled
    assert report.output.read_bytes() == model.read_bytes()
    assert len(caplog.messages) == 2
    assert "failed to compile 3 of its 3 partitions (nodes: 5)" in caplog.messages[0]
    assert "nothing was compiled" in caplog.messages[1]
    assert f"{Fragile.name} says: it failed to compile: {TEXT}" in caplog.messages[1]


def test_an_ep_that_compiles_nothing_in_a_session_is_warned_about(model, caplog):
    found, nodes = result(model, fragile("n0", "n3", "n7"), **NEXT)

    np.testing.assert_allclose(found, expected(model), rtol=1e-6)
    assert nodes == []
    assert len(caplog.messages) == 2
    assert "the CPU EP runs them all" in caplog.messages[1]
    assert TEXT in caplog.messages[1]


def test_each_of_several_eps_may_fail(model, caplog):
    second = fragile("n4", name="SecondExecutionProvider", binary_suffix="second")

    report = compiled(model, fragile("n3"), second, Beta)

    assert taken(report.partitions)[1] == ("Beta", ("n4", "n5"))
    failures = [m for m in caplog.messages if "partitions (nodes" in m]
    assert [m.split()[0] for m in failures] == [Fragile.name, second.name]
    assert [r.nodes for r in report.refusals if TEXT in r.reason] == [
        ("n3", "n4"),
        ("n3", "n4"),
    ]


def test_an_ep_that_was_asked_before_is_not_asked_again(model):
    report = compiled(model, Beta, fragile("n3"))

    assert taken(report.partitions) == [
        ("Beta", ("n0",)),
        ("Fragile", ("n1",)),
        ("Beta", ("n4", "n5")),
        ("Fragile", ("n7",)),
    ]
    assert [r.nodes for r in report.refusals if TEXT in r.reason] == [("n3",)]


def test_each_partition_is_compiled_once_and_by_a_call_of_its_own(model):
    ep = fragile("n3")

    compiled(model, ep)

    assert ep.given == [["n0", "n1"], ["n3", "n4"], ["n7"]]


def test_an_optional_ep_may_fail_too(model):
    ep = fragile("n3")
    options = options_with(Beta, **NEXT)
    options.add_provider(ep.name, optional=True)

    report = epctx.ModelCompiler(
        options, model, registry=registry_with(Beta, ep)
    ).compile_to_file()

    assert ("Beta", ("n4", "n5")) in taken(report.partitions)
    assert report.assignments[ep.name] == 2


def test_a_session_exports_what_was_compiled_in_the_end(model):
    with session(model, fragile("n3"), Beta, ep__context_enable=1, **NEXT) as opened:
        (found,) = opened.run(None, {"x": example()})

    written = model.with_name("m_ctx.onnx")
    assert len(context_nodes(written)) == 3
    np.testing.assert_array_equal(result(written, fragile(), Beta)[0], found)


def test_equal_partitions_get_different_names(tmp_path):
    # Relu alone three times; the last two are made after the first was compiled.
    model = saved(
        chain(["Relu", "Sigmoid", "Relu", "Sigmoid", "Relu"]), tmp_path / "m.onnx"
    )

    report = compiled(model, fragile("n2"), Beta)

    names = [p.name for p in report.partitions]
    assert taken(report.partitions)[1] == ("Beta", ("n2",))
    assert len(set(names)) == 3
    assert [node.name for node in context_nodes(report.output)] == names


@pytest.mark.parametrize("isolate", ["compile", "all"])
def test_an_isolated_ep_may_fail_too(model, isolate):
    report = compiled(model, Fragile, Beta, ep__isolate=isolate)

    assert ("Beta", ("n4", "n5")) in taken(report.partitions)
    assert any(TEXT in refusal.reason for refusal in report.refusals)


def test_an_ep_that_runs_isolated_may_fail_too(model):
    found, nodes = result(model, Fragile, Beta, ep__isolate="all", **NEXT)

    assert ("Beta", ("n4", "n5")) in nodes
    np.testing.assert_allclose(found, expected(model), rtol=1e-6)


@pytest.mark.parametrize(
    "limit", [{"ep__isolate": "compile"}, {"ep__compile_timeout": 60}]
)
def test_an_ep_may_fail_in_a_session_that_compiles_elsewhere_and_runs_here(
    model, limit
):
    found, nodes = result(model, Fragile, Beta, **limit, **NEXT)

    assert [ep for ep, _ in nodes].count("Beta") == 1
    np.testing.assert_allclose(found, expected(model), rtol=1e-6)


def test_limits_on_partitions_hold_for_the_next_ep(model):
    report = compiled(model, fragile("n3"), Beta, ep__partition_max_count=2)

    assert taken(report.partitions) == [
        ("Fragile", ("n0", "n1")),
        ("Beta", ("n4", "n5")),
    ]

    report = compiled(model, fragile("n1"), Beta, ep__partition_min_nodes=2)

    assert taken(report.partitions) == [("Fragile", ("n3", "n4"))]


# --- other kinds of claims ------------------------------------------------------------


class Exact(Alpha):
    """Claims pairs of its nodes as they stand, with tokens."""

    name = "ExactExecutionProvider"
    binary_suffix = "exact"
    operators = frozenset({"Relu", "Add", "Neg"})

    @hookimpl
    def get_capability(self, graph):
        nodes = [node for node in graph.nodes if node.op_type in self.operators]
        pairs = [nodes[i : i + 2] for i in range(0, len(nodes), 2)]
        return [
            ComputeCapability(pair, exact=True, token=[n.name for n in pair])
            for pair in pairs
        ]

    @hookimpl
    def compile(self, partitions):
        for partition in partitions:
            names = [node.name for node in partition.nodes]
            if partition.token != names:
                raise RuntimeError(f"{names} came with the token {partition.token}")
        return super().compile(partitions)


def test_the_next_ep_names_its_sets_anew(tmp_path):
    model = saved(
        chain(["Relu", "Add", "Sigmoid", "Neg", "Sigmoid"]), tmp_path / "m.onnx"
    )

    report = compiled(model, fragile("n0"), Exact)

    assert taken(report.partitions) == [("Exact", ("n0", "n1")), ("Exact", ("n3",))]
    np.testing.assert_allclose(
        result(report.output, Exact)[0], expected(model), rtol=1e-6
    )


def test_a_set_that_an_ep_named_is_released_whole(model):
    class FragileExact(Fragile, Exact):
        operators = Alpha.operators
        get_capability = Exact.get_capability

    report = compiled(model, FragileExact, Beta)

    assert taken(report.partitions) == [
        ("Fragile", ("n0", "n1")),
        ("Beta", ("n4", "n5")),
        ("Fragile", ("n7",)),
    ]


class ReluKernel(KernelProvider):
    """Runs Relu and Neg by kernels."""

    name = "KernelExecutionProvider"
    asked: ClassVar[list[str]] = []
    kernels: ClassVar[list[KernelDef]] = [
        KernelDef(
            op_type=op_type,
            since_version=since,
            create=lambda _node, act=act: lambda inputs: [act(inputs[0])],
        )
        for op_type, since, act in (
            ("Relu", 14, lambda x: np.maximum(x, np.float32(0))),
            ("Neg", 13, np.negative),
        )
    ]

    def get_kernel_registry(self):
        self.asked.append("get_kernel_registry")
        return KernelRegistry(self.kernels, ())


def test_kernels_of_the_next_ep_run_the_nodes(model):
    ReluKernel.asked.clear()

    found, nodes = result(model, fragile("n3"), ReluKernel, **NEXT)

    assert nodes[2:] == [("Kernel", ("n4",)), ("Kernel", ("n5",))]
    assert ReluKernel.asked == ["get_kernel_registry"]
    np.testing.assert_allclose(found, expected(model), rtol=1e-6)


BRANCH = """agraph (bool c, float[2] x) => (float[2] y) {
    [choose] y = If (c) <
        then_branch = t () => (float[2] a) { [n0] b = Relu(x)  [n1] a = Neg(b) },
        else_branch = e () => (float[2] a) { [n2] b = Sigmoid(x)  [n3] a = Add(b, b) }
    >
}"""
X = np.array([-1.5, 2.5], np.float32)


class Greedy(EngineProvider):
    """Takes every node that is left."""

    name = "GreedyExecutionProvider"
    binary_suffix = "greedy"

    @hookimpl
    def get_capability(self, graph):
        return [ComputeCapability(graph.nodes)] if graph.nodes else []


class Whole(Greedy):
    """Takes every node of a main graph that is left."""

    name = "WholeExecutionProvider"
    binary_suffix = "whole"

    @hookimpl
    def get_capability(self, graph):
        return super().get_capability(graph) if graph.parent_node is None else []


@pytest.mark.parametrize(
    ("bad", "eps", "nodes"),
    [
        (["n3"], [], [("Fragile", ("n0",))]),
        (["n0", "n3"], [], []),
        (["n0"], [Beta], [("Fragile", ("n3",)), ("Beta", ("n0", "n1"))]),
        # With nothing in its branches, the next EP takes the node whole.
        (["n0", "n3"], [Greedy], [("Greedy", ("n0", "n1")), ("Greedy", ("n2", "n3"))]),
        (["n0", "n3"], [Whole], [("Whole", ("choose",))]),
        (["n0"], [Whole], [("Fragile", ("n3",))]),
    ],
)
def test_a_partition_in_a_branch_goes_to_the_next_ep(tmp_path, bad, eps, nodes):
    model = saved(model_of(BRANCH), tmp_path / "m.onnx")
    report = compiled(model, fragile(*bad), *eps)

    assert set(nodes) <= set(taken(report.partitions))
    assert bool(nodes) == report.compiled
    for flag in (True, False):
        feeds = {"c": np.array(flag), "x": X}
        wanted = onnxruntime_result(model, feeds)
        for path in (model, report.output):
            with session(path, fragile(*bad), *eps, **NEXT) as opened:
                np.testing.assert_allclose(
                    opened.run(None, feeds)[0], wanted[0], rtol=1e-6
                )


class Moody(Fragile):
    """Fails for every other partition, told by the names of its nodes."""

    @hookimpl
    def compile(self, partitions):
        for partition in partitions:
            if zlib.crc32("".join(n.name for n in partition.nodes).encode()) % 2:
                raise RuntimeError("not today")
        return EngineProvider.compile(self, partitions)


class Moodier(Moody):
    name = "MoodierExecutionProvider"
    binary_suffix = "moodier"
    operators = frozenset({"Relu", "Neg", "Mul", "Sigmoid", "If", "Add"})


@given(model=st.composite(drawn_model)(), flag=st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_graph_over_eps_that_fail_keeps_results_and_partitions_whole(model, flag):
    feeds = {
        name: example(9 + number)
        for number, name in enumerate(v.name for v in model.graph.input)
    }
    feeds["flag"] = np.array([flag])
    eps = [Moody, Moodier, Beta]
    with tempfile.TemporaryDirectory() as folder:
        source = saved(model, Path(folder, "m.onnx"))
        wanted = onnxruntime_result(source, feeds)
        report = compiled(source, *eps)
        assert_partitions_are_whole(model, onnx.load(report.output), report)
        for path in (source, report.output):
            with session(path, *eps, **NEXT) as opened:
                results = opened.run(None, feeds)
            for one, other in zip(results, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# --- share groups ---------------------------------------------------------------------


class FragileQnn(QnnProvider):
    """The simulated QNN, whose compiler fails for one model's last layer."""

    @hookimpl
    def compile(self, partitions):
        for partition in partitions:
            if any("b" in name for name in partition.weights):
                raise RuntimeError("QNN graph finalize failed: error 1002")
        return super().compile(partitions)


def test_a_member_of_a_share_group_may_fail(tmp_path):
    rows = {"a": 1, "b": 8, "c": 5}
    options = options_with(QnnProvider, **NEXT)
    registry = registry_with(FragileQnn)
    with epctx.ShareGroup(registry=registry) as group:
        for name, count in rows.items():
            source = write_model(
                QnnProvider.name, tmp_path / f"{name}.onnx", count, prefix=name
            )
            group.compile(source, options)

    members = group.report.members
    assert [member.compiled for member in members] == [True, False, True]
    for member, count in zip(members, rows.values(), strict=True):
        found = run(member.output, count, options_with(QnnProvider))
        wanted = run(tmp_path / member.output.name.replace("_ctx", ""), count)
        np.testing.assert_allclose(found, wanted, atol=1e-4)


# --- what stays an error --------------------------------------------------------------


@pytest.mark.parametrize("entries", [{}, {"ep__on_compile_failure": "stop"}])
def test_by_default_a_failure_ends_all_work(model, tmp_path, entries):
    words = r"Fragile.* failed in compile: RuntimeError: QNN graph finalize failed"

    with refused(EPFail, words, folder=tmp_path, ep=Fragile.name):
        compiler(model, fragile("n3"), Beta, entries=entries).compile_to_file()
    with refused(EPFail, words, folder=tmp_path, ep=Fragile.name):
        session(model, fragile("n3"), Beta, **entries)


def test_another_value_of_the_option_is_refused(model):
    with refused(InvalidArgument, "'on'; allowed is 'stop' or 'next'"):
        options_with(Beta, ep__on_compile_failure="on")


def returning_nothing(_self, partitions):
    return []


def breaking_off(_self, partitions):
    raise PluginError("the driver is gone.", hint="Start it.")


@pytest.mark.parametrize(
    ("act", "words"),
    [(returning_nothing, "gave 0 results for 1"), (breaking_off, "driver is gone")],
)
def test_a_broken_contract_still_ends_all_work(model, tmp_path, act, words):
    ep = fragile(compile=hookimpl(act))

    with refused(PluginError, words, folder=tmp_path, ep=ep.name):
        compiled(model, ep, Beta)
    with refused(PluginError, words, folder=tmp_path, ep=ep.name):
        session(model, ep, Beta, **NEXT)


def test_a_fault_of_a_host_plugin_still_ends_all_work(model, tmp_path):
    class Host:
        @hookimpl(wrapper=True)
        def compile(self, ep, partitions):
            raise RuntimeError("the host's own")
            yield

    options = options_with(fragile(), **NEXT)
    options.add_host_plugin(Host())

    with refused(InvalidArgument, "the host's own", folder=tmp_path):
        epctx.ModelCompiler(
            options, model, registry=registry_with(fragile())
        ).compile_to_file()


def test_an_ep_that_fails_when_it_is_told_to_stop_is_cancelled(model, tmp_path):
    options = options_with(Fragile, Beta, **NEXT)

    class Stopping(Fragile):
        @hookimpl
        def compile(self, partitions):
            options.set_load_cancellation_flag(True)
            raise RuntimeError("interrupted")

    registry = registry_with(Stopping, Beta)
    with pytest.raises(ModelLoadCanceled):
        epctx.ModelCompiler(options, model, registry=registry).compile_to_file()
    options.set_load_cancellation_flag(False)
    with pytest.raises(ModelLoadCanceled):
        epctx.InferenceSession(model, options, registry=registry)

    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_nodes_that_no_ep_compiles_are_an_error_where_the_cpu_ep_is_forbidden(tmp_path):
    model = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")
    entries = {"session__disable_cpu_ep_fallback": 1, **NEXT}

    with refused(Fail, "disable_cpu_ep_fallback", folder=tmp_path):
        session(model, fragile("n0"), **entries)

    assert result(model, fragile("n0"), Alpha, **entries)[1] == [
        ("Alpha", ("n0", "n1"))
    ]


def test_a_compile_that_must_compile_something_says_what_failed(model, tmp_path):
    made = compiler(
        model,
        fragile("n0", "n3", "n7"),
        entries=NEXT,
        flags=epctx.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
    )

    with refused(
        Fail, "no node of m.onnx could be compiled", folder=tmp_path
    ) as caught:
        made.compile_to_file()

    assert TEXT in caught.value.hint


class KeepingNeg(Alpha):
    """Compiles Sigmoid, and keeps Neg in the model."""

    name = "KeepingExecutionProvider"
    binary_suffix = "keeping"
    keeps_nodes = True
    given: ClassVar[list[str]] = []

    @hookimpl
    def get_capability(self, graph):
        return [
            *(
                ComputeCapability([node], keep_nodes=True)
                for node in graph.nodes
                if node.op_type == "Neg"
            ),
            *supported_partitions(graph, lambda node: node.op_type == "Sigmoid"),
        ]

    @hookimpl
    def compile(self, partitions):
        self.given.extend(n.op_type for p in partitions for n in p.nodes)
        return super().compile(partitions)


def test_nodes_that_the_next_ep_keeps_in_the_model_are_not_compiled(tmp_path):
    """It is asked again in the middle of the compile."""
    operators = ("Relu", "Add", "Neg", "Sigmoid", "Add", "Relu", "Neg", "Sigmoid")
    model = saved(chain(operators), tmp_path / "m.onnx")
    keeping = type("OneKeeping", (KeepingNeg,), {"given": []})

    report = compiled(model, fragile("n0"), keeping)

    written = [node.op_type for node in onnx.load(report.output).graph.node]
    assert written.count("Neg") == 2
    assert keeping.given == ["Sigmoid", "Sigmoid"]
    np.testing.assert_allclose(
        result(report.output, fragile(), keeping)[0], expected(model), rtol=1e-6
    )
