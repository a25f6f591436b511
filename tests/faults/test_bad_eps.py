"""EPs that raise or break the contract: one typed error, nothing left behind, shut down
exactly once.
"""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from epctx_kernels import KernelDef
from onnx import helper
from support.acme import kernel_ep
from support.engine_eps import scripted
from support.routes import (
    by_compiler,
    by_session,
    compile_with,
    refused,
    session_with,
)
from support.small_models import example, finished, saved, tensor

import epctx_core as epctx
from epctx_core import (
    EPFail,
    NotImplementedByProvider,
    PluginError,
)
from epctx_core.plugin import (
    Availability,
    ComputeCapability,
    ExecutionProvider,
    Refusal,
    hookimpl,
)

pytestmark = pytest.mark.usefixtures("no_temporary_files")


# --- EPs that raise -------------------------------------------------------------------


def raising(*_given):
    raise LookupError("the EP's own words")


def leaving(*_given):
    sys.exit(3)


def closing(*_given):
    raise GeneratorExit


@pytest.mark.parametrize("act", [raising, leaving, closing])
@pytest.mark.parametrize("route", [by_compiler, by_session])
@pytest.mark.parametrize(
    ("hook", "kind"),
    [
        ("__init__", PluginError),
        ("get_capability", PluginError),
        ("compile", EPFail),
        ("get_ep_context_nodes", PluginError),
    ],
)
def test_an_ep_that_raises_while_a_model_is_compiled(
    route, act, hook, kind, source, tmp_path
):
    ep = scripted(**{hook: act})
    words = {
        raising: "the EP's own words",
        leaving: "SystemExit: 3",
        closing: "GeneratorExit",
    }[act]

    with refused(
        kind, f"Scripted.* failed in {hook}: .*{words}", folder=tmp_path, ep=ep.name
    ) as caught:
        route(ep, source, source.with_name("m_ctx.onnx"))

    assert type(caught.value) is kind
    assert isinstance(caught.value.__cause__, (LookupError, SystemExit, GeneratorExit))
    assert ep.calls.count("shutdown") == (0 if hook == "__init__" else 1)
    if kind is PluginError:
        assert caught.value.hook == hook


def test_an_error_of_epctx_that_an_ep_raises_passes_with_the_ep_filled_in(
    source, tmp_path
):
    def out_of_memory(_honest):
        raise EPFail("the NPU has 4 MiB, and this needs 9.")

    ep = scripted(compile=out_of_memory)

    with pytest.raises(
        EPFail, match=re.escape("the NPU has 4 MiB, and this needs 9.")
    ) as caught:
        compile_with(ep, source)

    assert caught.value.ep == ep.name
    assert ep.calls.count("shutdown") == 1
    assert [p.name for p in source.parent.iterdir()] == ["m.onnx"]


def test_an_ep_that_raises_while_it_loads(source):
    compile_with(scripted(), source)
    ep = scripted(load_context=raising)

    with refused(
        PluginError,
        "load_context.*own words",
        folder=source.parent,
        ep=ep.name,
        hook="load_context",
    ):
        session_with(ep, source.with_name("m_ctx.onnx"))

    assert ep.calls.count("shutdown") == 1


@pytest.mark.parametrize("act", [raising, leaving, closing])
@pytest.mark.parametrize("route", ["compiled", "loaded"])
def test_an_ep_that_raises_while_it_runs(source, route, act):
    compile_with(scripted(), source)
    model = source if route == "compiled" else source.with_name("m_ctx.onnx")
    hook = "compile" if route == "compiled" else "load_context"
    ep = scripted(**{hook: lambda honest: [type(made)(act) for made in honest()]})

    with (
        session_with(ep, model) as session,
        pytest.raises(epctx.RuntimeException, match=ep.name) as caught,
    ):
        session.run(None, {"x": example()})

    assert caught.value.ep == ep.name
    assert caught.value.node
    assert isinstance(caught.value.__cause__, (LookupError, SystemExit, GeneratorExit))
    assert ep.calls.count("shutdown") == 1


def test_an_ep_that_raises_in_shutdown_loses_no_work(source, caplog):
    ep = scripted(shutdown=raising)

    report = compile_with(ep, source)

    assert report.output.exists()
    assert ep.calls.count("shutdown") == 1
    assert "own words" in caplog.text


def test_what_raises_when_it_is_closed_keeps_nothing_else_open(source, caplog):
    closed = []

    def closing(number):
        def close():
            closed.append(number)
            raising()

        return close

    def compiled(honest):
        return [
            type(made)(made.run, close=closing(number))
            for number, made in enumerate(honest())
        ]

    ep = scripted(compile=compiled)

    session_with(ep, source).close()

    assert closed == [0, 1]
    assert ep.calls.count("shutdown") == 1
    assert "own words" in caplog.text


def test_what_an_ep_compiled_is_closed_when_the_session_cannot_be_made(tmp_path):
    closed = []
    nodes = [
        helper.make_node("Relu", ["x"], ["v"]),
        helper.make_node("Odd", ["v"], ["y"], domain="my"),
    ]
    model = finished(nodes, [tensor("x")], [tensor("y")])
    model.opset_import.add(domain="my", version=1)
    path = saved(model, tmp_path / "m.onnx")
    ep = scripted(
        compile=lambda honest: [
            type(m)(m.run, close=lambda: closed.append(1)) for m in honest()
        ]
    )

    with pytest.raises(NotImplementedByProvider):
        session_with(ep, path)

    assert closed == [1]
    assert ep.calls.count("shutdown") == 1


# --- EPs that break the contract ------------------------------------------------------


def nodes_of(change):
    return lambda honest, _writer: [change(node) for node in honest()]


def changed(node, **fields):
    values = {
        "partition": node.partition,
        "payload": node.payload,
        "main_context": node.main_context,
        "attributes": node.attributes,
    }
    return type(node)(**{**values, **fields})


def with_second_payload(honest, writer):
    nodes = honest()
    writer.payload("forgotten").write(b"never used")
    return nodes


def around_others(honest, graph):
    """Claim the first and the last node as one set, and so what lies between them,
    without saying so.
    """
    (whole,) = {type(item) for item in honest() if hasattr(item, "keep_nodes")}
    return [whole([graph.nodes[0], graph.nodes[-1]])]


def twice(honest, _graph):
    return [*honest(), *(item for item in honest() if hasattr(item, "keep_nodes"))]


def claiming_index(index):
    return lambda _honest, _graph: [ComputeCapability([index])]


BREACHES = [
    ("get_capability", twice, "claims node 'n0' .* twice"),
    (
        "get_capability",
        around_others,
        r"claims sets that enclose nodes outside of them \(at node 'n0' \(Relu\)\)",
    ),
    (
        "get_capability",
        lambda _honest, _graph: [ComputeCapability([])],
        "claims a set of no nodes",
    ),
    (
        "get_capability",
        lambda _honest, _graph: [ComputeCapability(["n0"])],
        "names something else than nodes",
    ),
    (
        "get_capability",
        lambda _honest, _graph: [ComputeCapability(7)],
        "names something else than nodes",
    ),
    (
        "get_capability",
        claiming_index(4),
        "names node 4, which the graph does not have",
    ),
    (
        "get_capability",
        claiming_index(-1),
        "names node -1, which the graph does not have",
    ),
    (
        "get_capability",
        lambda _honest, _graph: [Refusal(7, [0])],
        "gave a int instead of a text as the reason",
    ),
    (
        "get_capability",
        lambda _honest, _graph: None,
        "in get_capability: it gave a NoneType instead of a list",
    ),
    (
        "get_capability",
        lambda _honest, _graph: ["n0"],
        "gave a str instead of a ComputeCapability",
    ),
    ("compile", lambda honest: honest()[:1], "gave 1 results for 2"),
    ("compile", lambda honest: [*honest(), *honest()], "gave 4 results for 2"),
    (
        "compile",
        lambda _honest: None,
        "in compile: it gave a NoneType instead of a list",
    ),
    (
        "compile",
        lambda honest: [None for _ in honest()],
        "gave a NoneType instead of a CompiledPartition",
    ),
    (
        "get_ep_context_nodes",
        lambda honest, _writer: honest()[:1],
        "described 1 nodes for its 2 partitions",
    ),
    (
        "get_ep_context_nodes",
        lambda honest, _writer: honest() * 2,
        "described 4 nodes for its 2 partitions",
    ),
    (
        "get_ep_context_nodes",
        lambda _honest, _writer: None,
        "gave a NoneType instead of a list",
    ),
    (
        "get_ep_context_nodes",
        lambda _honest, _writer: [{}, {}],
        "gave a dict instead of an EPContextNode",
    ),
    ("get_ep_context_nodes", with_second_payload, "forgotten.*which no node carries"),
    (
        "get_ep_context_nodes",
        nodes_of(lambda node: changed(node, payload=None, main_context=0)),
        "which no node carries with main_context=1",
    ),
    (
        "get_ep_context_nodes",
        nodes_of(lambda node: changed(node, main_context=1)),
        "main_context=1 without a payload",
    ),
    (
        "get_ep_context_nodes",
        nodes_of(
            lambda node: changed(node, attributes={"source": "Mine", "embed_mode": 1})
        ),
        "set embed_mode, source, which only the core writes",
    ),
    (
        "get_ep_context_nodes",
        nodes_of(lambda node: changed(node, attributes={"notes": 7})),
        "'notes'",
    ),
    (
        "get_ep_context_nodes",
        nodes_of(lambda node: changed(node, attributes={"mine": object()})),
        "'mine'",
    ),
]


@pytest.mark.parametrize("route", [by_compiler, by_session])
@pytest.mark.parametrize(("hook", "act", "match"), BREACHES)
def test_an_ep_that_breaks_the_contract(route, hook, act, match, source, tmp_path):
    ep = scripted(**{hook: act})

    with refused(PluginError, match, folder=tmp_path, ep=ep.name, hook=hook):
        route(ep, source, source.with_name("m_ctx.onnx"))

    assert ep.calls.count("shutdown") == 1


class Hostile(list):
    """A list that says of itself what is not so."""

    def __iter__(self):
        return itertools.repeat(None)

    def __len__(self):
        raise LookupError("no length")

    __getitem__ = __bool__ = __reversed__ = raising


class HostileText(str):
    __slots__ = ()
    __str__ = __format__ = __len__ = __hash__ = raising


class HostileMapping(dict):
    keys = items = __iter__ = __getitem__ = __contains__ = raising


def refusing(honest, graph):
    claimed = honest()
    return [*claimed, Refusal(HostileText("not today"), [])]


@pytest.mark.parametrize("route", [by_compiler, by_session])
def test_what_a_subclass_says_of_itself_changes_no_answer(route, source):
    def hostile(honest, *_given):
        return Hostile(honest())

    def described(honest, *_given):
        return Hostile(
            changed(node, attributes=HostileMapping(notes="mine")) for node in honest()
        )

    ep = scripted(
        get_capability=hostile, compile=hostile, get_ep_context_nodes=described
    )

    route(ep, source, source.with_name("m_ctx.onnx"))

    with session_with(
        scripted(load_context=hostile), source.with_name("m_ctx.onnx")
    ) as session:
        assert len(session.run(None, {"x": example()})) == 1
    nodes = epctx.inspect_model(source.with_name("m_ctx.onnx")).ep_contexts
    assert {node.attributes["notes"] for node in nodes} == {"mine"}


@pytest.mark.parametrize("route", [by_compiler, by_session])
def test_a_flag_of_a_claim_is_taken_by_its_truth(route, source):
    def keeping(honest, _graph):
        return [
            replace(item, keep_initializers="yes")
            if isinstance(item, ComputeCapability)
            else item
            for item in honest()
        ]

    ep = scripted(get_capability=keeping)

    route(ep, source, source.with_name("m_ctx.onnx"))


class Opaque:
    """An object that cannot be shown, compared, counted or asked for its truth."""

    __repr__ = __str__ = __bool__ = __eq__ = __hash__ = __iter__ = __len__ = (
        __float__
    ) = __index__ = raising
    __class__ = property(raising)


def flagged(**flags):
    def act(honest, *_given):
        return [
            replace(item, **flags) if hasattr(item, "keep_nodes") else item
            for item in honest()
        ]

    return act


OPAQUE = [
    (
        "get_capability",
        lambda _honest, _graph: [Opaque()],
        "gave a Opaque instead of a ComputeCapability",
    ),
    ("get_capability", flagged(keep_initializers=Opaque()), "own words"),
    ("get_capability", flagged(exact=Opaque()), "own words"),
    (
        "compile",
        lambda honest: [Opaque() for _ in honest()],
        "gave a Opaque instead of a CompiledPartition",
    ),
    (
        "get_ep_context_nodes",
        nodes_of(lambda node: changed(node, graph_name=Opaque())),
        "gave a Opaque instead of a text as graph_name",
    ),
    (
        "get_ep_context_nodes",
        nodes_of(lambda node: changed(node, main_context=Opaque())),
        "own words",
    ),
    (
        "get_ep_context_nodes",
        nodes_of(lambda node: changed(node, attributes={"mine": Opaque()})),
        "own words",
    ),
]


@pytest.mark.parametrize(("hook", "act", "match"), OPAQUE)
def test_what_no_message_can_show_is_named_by_its_type_or_blamed_on_its_ep(
    hook, act, match, source, tmp_path
):
    ep = scripted(**{hook: act})

    with refused(PluginError, match, folder=tmp_path, ep=ep.name, hook=hook):
        by_compiler(ep, source, source.with_name("m_ctx.onnx"))


CLASS_ANSWERS = {
    "availability": "gave a Opaque instead of an Availability",
    "get_build_info": "gave a Opaque instead of a BuildInfo",
    "get_compatibility_info": "gave a Opaque instead of a str",
}


@pytest.mark.parametrize("method", CLASS_ANSWERS)
def test_an_answer_of_a_class_method_is_checked_by_the_table_of_hooks(
    method, source, tmp_path
):
    ep = scripted()
    setattr(ep, method, classmethod(lambda _cls, *_given: Opaque()))

    with refused(
        PluginError, CLASS_ANSWERS[method], folder=tmp_path, ep=ep.name, hook=method
    ):
        by_compiler(ep, source, source.with_name("m_ctx.onnx"))


def test_what_breaks_the_contract_says_whose_where_and_what(source, tmp_path):
    ep = scripted(compile=lambda honest: honest()[:1])
    message = (
        rf"^{ep.name} \(.*\) broke the contract in compile: it gave 1 results for 2"
    )

    with refused(PluginError, message, folder=tmp_path, ep=ep.name, hook="compile"):
        by_compiler(ep, source, source.with_name("m_ctx.onnx"))


def test_results_of_run_in_a_list_of_an_eps_own_are_the_items_that_it_holds(source):
    with session_with(scripted(), source) as session:
        expected = session.run(None, {"x": example()})
    ep = scripted(
        get_capability=refusing,
        compile=lambda honest: [
            type(made)(lambda *given, run=made.run: Hostile(run(*given)))
            for made in honest()
        ],
    )

    with session_with(ep, source) as session:
        results = session.run(None, {"x": example()})

    np.testing.assert_allclose(results[0], expected[0])


@pytest.mark.parametrize(
    ("nodes", "match"),
    [
        (lambda _nodes: (raising() for _ in "x"), "own words"),
        (itertools.cycle, "more nodes than"),
    ],
    ids=["raises", "never ends"],
)
def test_the_nodes_of_a_claim_are_looked_at_with_care(nodes, match, source):
    def claim(_honest, graph):
        return [ComputeCapability(nodes(list(graph.nodes)))]

    ep = scripted(get_capability=claim)

    with refused(
        PluginError, match, folder=source.parent, ep=ep.name, hook="get_capability"
    ):
        compile_with(ep, source)


@pytest.mark.parametrize(
    ("act", "match"),
    [
        (lambda honest: honest()[1:], "gave 1 results for 2"),
        (lambda _honest: None, "gave a NoneType instead of a list"),
        (
            lambda honest: [type(made)(None) for made in honest()],
            "without `run` .* outside of purpose EXPORT",
        ),
    ],
)
def test_an_ep_that_breaks_the_contract_while_it_loads(act, match, source):
    compile_with(scripted(), source)
    ep = scripted(load_context=act)

    with refused(
        PluginError, match, folder=source.parent, ep=ep.name, hook="load_context"
    ):
        session_with(ep, source.with_name("m_ctx.onnx"))

    assert ep.calls.count("shutdown") == 1


def test_a_partition_without_run_is_refused_in_a_session(source):
    ep = scripted(compile=lambda honest: [type(made)(None) for made in honest()])

    with refused(
        PluginError, "without `run`", folder=source.parent, ep=ep.name, hook="compile"
    ):
        session_with(ep, source)

    assert ep.calls.count("shutdown") == 1


@pytest.mark.parametrize("results", [[], [example(), example()], None, 7])
def test_a_wrong_number_of_results_of_run(source, results):
    ep = scripted(
        compile=lambda honest: [
            type(made)(lambda *_given: results) for made in honest()
        ]
    )

    with (
        session_with(ep, source) as session,
        pytest.raises(epctx.PluginError) as caught,
    ):
        session.run(None, {"x": example()})

    assert caught.value.ep == ep.name


@pytest.mark.parametrize("route", [by_compiler, by_session])
def test_an_ep_that_cannot_export_says_so_before_it_is_asked_for_anything(
    route, source
):
    ep = scripted()
    bare = type(
        "Bare",
        (ExecutionProvider,),
        {**required_hooks(ep), "name": "BareExecutionProvider"},
    )

    with refused(
        NotImplementedByProvider,
        "BareExecutionProvider .*get_ep_context_nodes",
        folder=source.parent,
    ):
        route(bare, source, source.with_name("m_ctx.onnx"))

    assert ep.calls == []


def required_hooks(ep):
    def optimize_model(self, model):
        ep.calls.append("optimize_model")

    def get_capability(self, graph):
        ep.calls.append("get_capability")
        return []

    def compile(self, partitions):  # noqa: A001 - the hook's name
        ep.calls.append("compile")
        return []

    return {f.__name__: hookimpl(f) for f in (optimize_model, get_capability, compile)}


# --- questions to the class, and kernels ----------------------------------------------


def asked(**methods):
    """Return a scripted EP class with these class methods."""
    return type(
        "Asked",
        (scripted(),),
        {name: classmethod(method) for name, method in methods.items()},
    )


@pytest.mark.parametrize("route", [by_compiler, by_session])
@pytest.mark.parametrize("question", ["availability", "get_compatibility_info"])
@pytest.mark.parametrize(
    ("answer", "match"),
    [(raising, "own words"), (lambda *_given: 7, "int")],
    ids=["raises", "answers wrongly"],
)
def test_a_question_to_the_class_that_goes_wrong(
    route, question, answer, match, source, tmp_path
):
    ep = asked(**{question: answer})

    with refused(PluginError, match, folder=tmp_path, ep=ep.name, hook=question):
        route(ep, source, source.with_name("m_ctx.onnx"))

    assert ep.calls.count("shutdown") == ep.calls.count("__init__")


@pytest.mark.parametrize("route", [by_compiler, by_session])
def test_an_ep_that_this_machine_cannot_serve(route, source, tmp_path):
    ep = asked(
        availability=lambda _cls, _purpose: Availability(
            False, reason="no NPU driver found"
        )
    )

    with refused(
        NotImplementedByProvider, "no NPU driver found", folder=tmp_path, ep=ep.name
    ):
        route(ep, source, source.with_name("m_ctx.onnx"))

    assert ep.calls == []


def with_kernel(create):
    """Return an EP that runs each Relu by a kernel made by `create`."""

    ep = kernel_ep(KernelDef(op_type="Relu", since_version=14, create=create))
    ep.calls = []

    @hookimpl
    def shutdown(self):
        self.calls.append("shutdown")

    ep.shutdown = shutdown
    return ep


def test_a_kernel_runs_single_nodes(source):
    ep = with_kernel(lambda _node: lambda inputs: [np.maximum(inputs[0], 0)])

    with session_with(ep, source) as session, epctx.InferenceSession(source) as plain:
        mine, plains = (s.run(None, {"x": example()})[0] for s in (session, plain))

    np.testing.assert_allclose(mine, plains, rtol=1e-6)


def test_a_kernel_that_raises_when_it_is_made(source):
    ep = with_kernel(raising)

    with refused(PluginError, "own words", folder=source.parent, ep=ep.name):
        session_with(ep, source)

    assert ep.calls.count("shutdown") == 1


def test_a_kernel_that_raises_when_it_runs(source):
    ep = with_kernel(lambda _node: raising)

    with (
        session_with(ep, source) as session,
        pytest.raises(epctx.RuntimeException, match="own words") as caught,
    ):
        session.run(None, {"x": example()})

    assert caught.value.ep == ep.name
    assert caught.value.node == "n0"
