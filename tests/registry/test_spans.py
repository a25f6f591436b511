"""Spans: what a host plugin with a method `span` sees of loads, compiles and runs."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import onnx.parser
import pytest
from support.engine_eps import Alpha
from support.small_models import chain, saved

import epctx_core as epctx
from epctx_core.errors import Fail
from epctx_core.plugin import CompiledPartition, hookimpl

INPUT = {"x": np.ones((2, 3), np.float32)}


class Observer:
    """Remembers each span as (depth, category, name), with its facts."""

    def __init__(self):
        self.seen = []
        self.facts = {}
        self.depth = 0

    @contextmanager
    def span(self, name, category, facts):
        self.seen.append((self.depth, category, name))
        self.facts[name] = facts
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def names(self, category):
        return [name for _, kind, name in self.seen if kind == category]


class Marking(Alpha):
    """Marks what it does in its hooks and runs."""

    name = "MarkingExecutionProvider"

    def __init__(self, context):
        super().__init__(context)
        self.context = context

    @hookimpl
    def compile(self, partitions):
        with self.context.span("lower", partitions=len(partitions)):
            compiled = super().compile(partitions)

        def make_run(inner):
            def run(inputs, outputs=None):
                with self.context.span("submit"):
                    return inner(inputs, outputs)

            return run

        return [CompiledPartition(run=make_run(each.run)) for each in compiled]


@pytest.fixture
def observer():
    return Observer()


@pytest.fixture
def model(tmp_path):
    return saved(chain(["Add", "Relu", "Sigmoid", "Relu", "Add"]), tmp_path / "m.onnx")


def options_of(observer, *eps):
    registry = epctx.Registry(entry_points=False)
    options = epctx.SessionOptions()
    for ep in eps:
        registry.register(ep)
        options.add_provider(ep.name)
    options.add_host_plugin(observer)
    return options, registry


def test_a_compile_has_its_stages(observer, model):
    options, registry = options_of(observer, Alpha)

    epctx.ModelCompiler(options, model, registry=registry).compile_to_file()

    assert observer.names("stage") == [
        "read", "optimise", "partition", "compile", "write", "read_back", "write",
    ]  # fmt: skip


def test_a_load_and_each_run_have_theirs(observer, model):
    options, registry = options_of(observer, Alpha)
    epctx.ModelCompiler(options, model, registry=registry).compile_to_file()
    observer.seen.clear()
    context = model.with_name("m_ctx.onnx")

    with epctx.InferenceSession(context, options, registry=registry) as session:
        stages = observer.names("stage")
        observer.seen.clear()
        session.run(None, INPUT)

    assert stages == ["read", "start", "partition", "load", "prepare", "plan"]
    assert observer.seen[0] == (0, "run", "run")
    assert {(depth, kind) for depth, kind, _ in observer.seen[1:]} == {(1, "step")}


def test_each_call_of_a_hook_is_a_span_that_says_what_it_was_about(observer, model):
    options, registry = options_of(observer, Alpha)

    epctx.ModelCompiler(options, model, registry=registry).compile_to_file()
    with epctx.InferenceSession(
        model.with_name("m_ctx.onnx"), options, registry=registry
    ):
        pass

    assert observer.names("hook") == [
        "get_capability", "compile", "get_ep_context_nodes", "load_context",
    ]  # fmt: skip
    assert observer.facts["get_capability"] == {"ep": Alpha.name, "left": 5}
    partitions = observer.facts["compile"]["partitions"]
    assert observer.facts["load_context"]["nodes"] == partitions


def test_steps_say_who_runs_which_nodes_on_what(observer, model):
    options, registry = options_of(observer, Alpha)

    with epctx.InferenceSession(model, options, registry=registry) as session:
        session.run(None, INPUT)

    steps = [observer.facts[name] for name in observer.names("step")]
    assert {step["ep"] for step in steps} == {Alpha.name, "CPUExecutionProvider"}
    explained = epctx.explain_model(model, options, registry=registry)
    for step in steps:
        assert {explained.nodes[node].ep for node in step["nodes"]} == {step["ep"]}
    assert sorted(n for step in steps for n in step["nodes"]) == [
        *range(len(explained.nodes))
    ]
    assert steps[0]["shapes"][0] == (2, 3)


def test_what_an_ep_marks_lies_within_its_hook_or_step(observer, model):
    options, registry = options_of(observer, Marking)

    with epctx.InferenceSession(model, options, registry=registry) as session:
        session.run(None, INPUT)

    depths = {name: depth for depth, _, name in observer.seen}
    assert depths["lower"] == depths["compile"] + 1
    assert depths["submit"] == depths["run"] + 2
    assert observer.facts["lower"] == {"ep": Marking.name, "partitions": 2}


def test_an_ep_may_mark_what_nobody_observes(model):
    registry = epctx.Registry(entry_points=False)
    registry.register(Marking)

    with epctx.InferenceSession(
        model, providers=[Marking.name], registry=registry
    ) as session:
        (result,) = session.run(None, INPUT)

    assert result.shape == (2, 3)


@pytest.mark.parametrize("kind", [KeyError, SystemExit, GeneratorExit, BaseException])
def test_a_span_that_raises_is_the_hosts_fault(model, kind):
    class Broken:
        def span(self, name, category, facts):
            raise kind(name)

    options, registry = options_of(Broken(), Alpha)

    said = rf"span of the host plugin .*Broken raised: {kind.__name__}"
    with pytest.raises(Fail, match=said):
        epctx.InferenceSession(model, options, registry=registry)


@pytest.mark.parametrize("swallows", [True, False])
def test_a_span_that_fails_when_it_is_left_harms_nothing(model, caplog, swallows):
    class Leaving:
        def __enter__(self):
            pass

        def __exit__(self, *_):
            if swallows:
                return True
            raise KeyError("left")

    class Plugin:
        def span(self, name, category, facts):
            return Leaving()

    class Failing(Alpha):
        name = "FailingExecutionProvider"

        @hookimpl
        def compile(self, partitions):
            raise ValueError("broken")

    options, registry = options_of(Plugin(), Alpha)
    with epctx.InferenceSession(model, options, registry=registry) as session:
        (result,) = session.run(None, INPUT)
    assert result.shape == (2, 3)
    assert ("KeyError: 'left'" in caplog.text) is not swallows

    options, registry = options_of(Plugin(), Failing)
    with pytest.raises(epctx.EPFail, match="broken"):
        epctx.InferenceSession(model, options, registry=registry)


def test_a_step_of_a_subgraph_names_its_graph(observer, tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[2,3] x, bool c) => '
        "(float[2,3] y) { a = Relu (x) b = If (c) <then_branch = t () => "
        "(float[2,3] p) { q = Add (a, x) p = Relu (q) }, else_branch = e () => "
        "(float[2,3] r) { r = Neg (a) }> y = Relu (b) }"
    )
    onnx.save(model, tmp_path / "if.onnx")
    options, registry = options_of(observer, Alpha)
    with epctx.InferenceSession(
        tmp_path / "if.onnx", options, registry=registry
    ) as session:
        session.run(None, {**INPUT, "c": np.array(True)})

    explained = epctx.explain_model(tmp_path / "if.onnx", options, registry=registry)
    eps = {(node.graph, node.index): node.ep for node in explained.nodes}
    steps = [observer.facts[name] for name in observer.names("step")]
    known = [
        (eps[step["graph"], node], step["ep"])
        for step in steps
        for node in step["nodes"]
        if (step["graph"], node) in eps
    ]
    assert len(known) >= 4
    assert all(explained_ep == ep for explained_ep, ep in known)
    assert {step["graph"] for step in steps} == {(), ((1, "then_branch"),)}


def test_an_unobserved_session_has_steps_of_its_own(observer, model):
    """A run that nobody observes calls what it called before there were spans."""
    options, registry = options_of(observer, Alpha)
    epctx.ModelCompiler(options, model, registry=registry).compile_to_file()
    context = model.with_name("m_ctx.onnx")

    with epctx.InferenceSession(context, registry=registry) as session:
        called = calls_of(lambda: session.run(None, INPUT))
    with epctx.InferenceSession(context, options, registry=registry) as session:
        observed = calls_of(lambda: session.run(None, INPUT))

    assert not [name for name in called if name.endswith((".span", ".observed"))]
    assert [name for name in observed if name.endswith(".span")]


def calls_of(work):
    """Return the names of all Python functions that some work calls."""
    import sys

    names = []

    def note(frame, event, _argument):
        if event == "call":
            names.append(frame.f_code.co_qualname)

    work()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return names
