"""An EP may have kernels instead of a compiler: they run single nodes, statelessly, in
any graph of a model.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from epctx_kernels import KernelDef
from support.acme import (
    DOUBLE,
    FLOAT,
    Acme,
    X,
    kernel_ep,
    model_of,
    results_of,
    scaling,
    session_of,
    with_eps,
)
from support.engine_eps import Alpha

import epctx_core as epctx
from epctx_core.plugin import ComputeCapability, hookimpl

ONE = model_of("y = acme.Scale <by: float = 3.0> (x)")


def test_an_ep_without_a_compiler_runs_its_operator_by_a_kernel():
    (result,) = results_of(ONE, Acme)

    np.testing.assert_array_equal(result, X * 3)


def test_kernels_of_an_ep_stand_between_the_work_of_others():
    model = model_of(
        "a = Relu(x) b = acme.Scale(a) c = Neg(b) y = Add(c, x)", inner="float[2] b"
    )

    (result,) = results_of(model, Alpha, Acme)

    np.testing.assert_array_equal(result, -2 * np.maximum(X, 0) + X)


def test_a_kernel_gets_none_for_an_omitted_input():
    seen = []

    def spying(node):
        assert node.inputs == ("", "x")
        return lambda inputs: seen.append(inputs[0]) or [inputs[1] + 1]

    results_of(model_of('y = acme.Scale("", x)'), kernel_ep(scaling(create=spying)))

    assert seen == [None]


def test_what_a_kernel_gives_for_an_omitted_output_is_dropped():
    two = KernelDef(
        domain="acme",
        op_type="Two",
        since_version=1,
        create=lambda _node: lambda inputs: [None, -inputs[0]],
    )

    (result,) = results_of(model_of('"", y = acme.Two(x)'), kernel_ep(two))

    np.testing.assert_array_equal(result, -X)


def test_kernels_run_nodes_in_bodies_which_read_outer_values():
    model = model_of(
        """
        a = Abs(x)
        y = If (c) <
          then_branch = t () => (float[2] p) { p = acme.Scale(a, x) },
          else_branch = e () => (float[2] q) { q = Identity(a) }
        >
        """,
        inputs="float[2] x, bool c",
    )

    with session_of(model, Acme) as session:
        taken, other = (
            session.run(None, {"x": X, "c": np.array(c)})[0] for c in (True, False)
        )

    np.testing.assert_array_equal(taken, 2 * np.abs(X) + X)
    np.testing.assert_array_equal(other, np.abs(X))


def test_a_kernel_is_made_once_a_node_and_runs_in_many_threads_at_once():
    made = []
    inside = threading.Barrier(4)

    def meeting(node):
        made.append(node.name)

        def kernel(inputs):
            inside.wait(timeout=30)
            return [inputs[0] * 2]

        return kernel

    results = {}
    with session_of(ONE, kernel_ep(scaling(create=meeting))) as session:

        def work(number):
            results[number] = session.run(None, {"x": X + number})[0]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(made) == 1
    for number in range(4):
        np.testing.assert_array_equal(results[number], (X + number) * 2)


def test_the_kernels_that_do_not_fit_are_named_where_nobody_has_the_operator():
    model = model_of("y = acme.Scale(x)", inputs="double[2] x", outputs="double[2] y")

    with pytest.raises(epctx.NotImplementedByProvider) as caught:
        session_of(model, Acme)

    said = str(caught.value)
    assert "acme::Scale" in said
    assert "AcmeExecutionProvider" in said
    assert "is for T = float; 'x' is double[2]" in said
    assert caught.value.hint


def test_an_operator_that_nobody_knows_is_named_without_a_word_of_other_kernels():
    with pytest.raises(epctx.NotImplementedByProvider, match="acme::Other") as caught:
        session_of(model_of("y = acme.Other(x)"), Acme)

    assert "has kernels of" not in str(caught.value)


def test_the_reason_is_there_for_an_ep_to_repeat():
    reasons = []

    @hookimpl
    def get_capability(self, graph):
        kernels = self.match(graph)
        reasons.extend(kernels.refusal(node) for node in graph.nodes)
        return []

    ep = kernel_ep(
        scaling(type_constraints={"T": {DOUBLE}}), get_capability=get_capability
    )
    with pytest.raises(epctx.NotImplementedByProvider):
        session_of(ONE, ep)

    assert reasons == ["acme::Scale 1 is for T = double; 'x' is float[2]"]


def test_a_claim_without_a_kernel_says_why_none_fits():
    @hookimpl
    def get_capability(self, graph):
        kernels = self.match(graph)
        return [kernels.claim(node) for node in graph.nodes]

    ep = kernel_ep(scaling(since_version=2), get_capability=get_capability)

    with pytest.raises(
        epctx.PluginError, match="this node is version 1 of the operator"
    ) as caught:
        session_of(ONE, ep)

    assert caught.value.hook == "get_capability"


def test_what_is_claimed_without_a_kernel_is_not_taken_for_one():
    @hookimpl
    def get_capability(self, graph):
        return [ComputeCapability(list(graph.nodes))]

    with pytest.raises(epctx.PluginError, match=r"is claimed without a kernel"):
        session_of(ONE, kernel_ep(scaling(), get_capability=get_capability))


def test_an_ep_with_neither_kernels_nor_a_compiler_is_broken():
    class Nothing(epctx.plugin.ExecutionProvider):
        name = "NothingExecutionProvider"

        @hookimpl
        def get_capability(self, graph):
            return []

    with pytest.raises(epctx.PluginError, match="the required hook compile is missing"):
        with_eps(Nothing)


def test_a_constraint_that_the_operator_has_not_names_the_plugin():
    ep = kernel_ep(scaling(type_constraints={"U": {FLOAT}}))

    with pytest.raises(epctx.PluginError, match="constrains 'U'") as caught:
        session_of(ONE, ep)

    assert caught.value.ep == ep.name


@pytest.mark.parametrize("answer", [[], {"Scale": 1}])
def test_something_else_than_a_registry_is_refused(answer):
    ep = kernel_ep(get_kernel_registry=lambda self: answer)

    with pytest.raises(
        epctx.PluginError, match="instead of a KernelRegistry"
    ) as caught:
        session_of(ONE, ep)

    assert caught.value.hook == "get_kernel_registry"


def test_an_ep_may_turn_out_to_have_no_kernels():
    ep = kernel_ep(get_kernel_registry=lambda self: None)

    (result,) = results_of(model_of("y = Abs(x)"), ep)

    np.testing.assert_array_equal(result, np.abs(X))


def test_what_makes_a_kernel_must_give_something_to_call():
    with pytest.raises(
        epctx.PluginError, match=r"gave a int instead of a kernel"
    ) as caught:
        session_of(ONE, kernel_ep(scaling(create=lambda _node: 5)))

    assert caught.value.hook == "KernelDef.create"


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (
            lambda inputs: [inputs[0].astype(np.float64)],
            r"gave float64\[2\] for the output 'y', which is float",
        ),
        (lambda inputs: [inputs[0] + 1, inputs[0] + 2], "gave 2 results for 1 outputs"),
        (lambda inputs: inputs[0] + 1, "gave a ndarray instead of a list of arrays"),
        (lambda inputs: [np.float32(1)], "gave a float32 instead of an array"),
        (lambda inputs: [inputs[0]], "shares memory with an input"),
        (lambda inputs: [inputs[0][:]], "shares memory with an input"),
        (lambda inputs: [np.zeros(4, np.float32)[::2]], "not C-contiguous"),
    ],
    ids=[
        "type",
        "count",
        "no list",
        "no array",
        "an input",
        "a view of an input",
        "strided",
    ],
)
def test_a_wrong_result_of_a_kernel_names_ep_node_and_kernel(kernel, said):
    model = model_of("[one] y = acme.Scale(x)")
    ep = kernel_ep(scaling(create=lambda _node: kernel))

    with (
        session_of(model, ep) as session,
        pytest.raises(epctx.PluginError, match=said) as caught,
    ):
        session.run(None, {"x": X})

    assert (caught.value.ep, caught.value.node) == (ep.name, "one")
    assert "of 'one'" in str(caught.value)


def short(_node):
    return lambda inputs: [inputs[0][:1] + 1]


def test_a_length_that_inference_alone_contradicts_is_told_and_the_kernel_not_blamed():
    ep = kernel_ep(scaling(domain="", op_type="Relu", since_version=14, create=short))
    said = r"gave float32\[1\] for (the output )?'y'"

    with (
        session_of(model_of("y = Relu(x)"), ep) as session,
        pytest.raises(epctx.InvalidGraph, match=said),
    ):
        session.run(None, {"x": X})


def test_a_length_that_is_only_declared_is_nobodys_fault():
    with session_of(
        model_of("y = acme.Scale(x)"), kernel_ep(scaling(create=short))
    ) as session:
        (result,) = session.run(None, {"x": X})

    assert result.shape == (1,)


def test_a_length_that_inference_refutes_is_nobodys_fault(caplog):
    model = model_of(
        "a = Relu(x) y = Relu(a)",
        inputs="float[n] x",
        outputs="float[n] y",
        inner="float[3] a",
    )
    ep = type(
        "First",
        (Alpha,),
        {"name": "FirstExecutionProvider", "get_capability": first_node},
    )

    with session_of(model, ep) as session:
        (result,) = session.run(None, {"x": X})

    np.testing.assert_array_equal(result, np.maximum(X, 0))
    # For onnx's own strict inference a length may be both `n` and 3.
    assert "wrong declarations" not in caplog.text


@hookimpl
def first_node(self, graph):
    return [ComputeCapability([graph.nodes[0]])]


def test_a_kernel_may_give_any_length_where_the_model_leaves_it_open():
    model = model_of("y = acme.Scale(x)", outputs="float[n] y")
    ep = kernel_ep(scaling(create=lambda _node: lambda inputs: [np.tile(inputs[0], 2)]))

    (result,) = results_of(model, ep)

    assert result.shape == (4,)


def test_a_kernel_cannot_write_to_what_other_nodes_read():
    def create(_node):
        return lambda inputs: [inputs[0].fill(9)]

    with (
        session_of(
            model_of("a = Exp(x) b = acme.Scale(a) y = Add(a, b)", inner="float[2] b"),
            kernel_ep(scaling(create=create)),
        ) as session,
        pytest.raises(epctx.RuntimeException, match="read-only"),
    ):
        session.run(None, {"x": X})


def test_a_kernel_that_raises_keeps_its_own_words():
    def raising(_inputs):
        raise ValueError("own words")

    ep = kernel_ep(scaling(create=lambda _node: raising))

    with (
        session_of(ONE, ep) as session,
        pytest.raises(epctx.RuntimeException, match="own words") as caught,
    ):
        session.run(None, {"x": X})

    assert caught.value.ep == ep.name


def test_kernels_count_as_nodes_of_their_ep():
    registry, options = with_eps(Acme)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")

    with epctx.InferenceSession(
        ONE.SerializeToString(), options, registry=registry
    ) as session:
        (subgraph,) = session.get_provider_graph_assignment_info()

    assert subgraph.ep_name == Acme.name
    assert [node.op_type for node in subgraph.get_nodes()] == ["Scale"]
