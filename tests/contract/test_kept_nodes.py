"""An EP may claim nodes that stay in the model: it runs them in sessions, nobody after it
gets them, and a load asks it again.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from support.acme import X, compiled, model_of, results_of, session_of, with_eps
from support.engine_eps import Alpha, Beta

import epctx_core as epctx
from epctx_core.plugin import ComputeCapability, hookimpl

MODEL = model_of("a = Exp(x) b = Neg(a) c = Exp(b) y = Relu(c)")
EXPECTED = np.exp(-np.exp(X))
KEY = "keeping.asked"
KEPT = "kept"


class Keeping(Alpha):
    """Compiles what Alpha does, and keeps Neg with the Exp behind it."""

    name = "KeepingExecutionProvider"
    binary_suffix = "keeping"
    keeps_nodes = True
    kept = ("Neg", "Exp")

    @hookimpl
    def get_capability(self, graph):
        asked = int(graph.metadata.get(KEY, "0")) + 1
        nodes = graph.nodes[1:3]
        own = [
            ComputeCapability(
                nodes, keep_nodes=True, token=KEPT, metadata={KEY: str(asked)}
            )
        ]
        return [*super().get_capability(graph), *own]

    @hookimpl
    def compile(self, partitions):
        for partition in partitions:
            if partition.token == KEPT:
                assert tuple(n.op_type for n in partition.nodes) == self.kept
        return super().compile(partitions)


def operators(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def metadata(path):
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_a_session_runs_the_set_as_it_is_and_each_node_counts_for_its_ep():
    with session_of(MODEL, Keeping, Beta) as session:
        (result,) = session.run(None, {"x": X})
        rows = {row["ep"]: row["operators"] for row in session.placement().eps}

    np.testing.assert_allclose(result, EXPECTED, rtol=1e-6)
    assert rows[Keeping.name] == {"Neg": 1, "Exp": 1, "Relu": 1}


def test_no_ep_after_it_gets_them_and_a_context_model_has_them_as_they_are(tmp_path):
    # Beta would take Neg.
    context = compiled(MODEL, tmp_path, Keeping, Beta)

    assert operators(context) == ["Exp", "Neg", "Exp", "EPContext"]
    onnx.checker.check_model(onnx.load(context))
    manifest = json.loads(metadata(context)["epctx.manifest"])
    assert manifest["kernel_providers"] == [Keeping.name]
    assert [*manifest["providers"]] == [Keeping.name]


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "found"])
def test_a_load_asks_it_again_and_compiles_nothing_else(tmp_path, listed):
    context = compiled(MODEL, tmp_path, Keeping)
    registry, options = with_eps(Keeping)
    options = options if listed else epctx.SessionOptions()
    options.add_session_config_entry("session.disable_model_compile", "1")

    with epctx.InferenceSession(context, options, registry=registry) as session:
        (result,) = session.run(None, {"x": X})
        rows = {row["ep"]: row["operators"] for row in session.placement().eps}

    np.testing.assert_allclose(result, EXPECTED, rtol=1e-6)
    assert rows[Keeping.name] == {"Neg": 1, "Exp": 1, "com.microsoft::EPContext": 1}


def test_what_the_claim_says_for_the_model_comes_back_where_it_is_asked_again(tmp_path):
    context = compiled(MODEL, tmp_path, Keeping)
    seen = []

    class Reading(Keeping):
        @hookimpl
        def get_capability(self, graph):
            seen.append(dict(graph.metadata))
            return super().get_capability(graph)

    results_of(context, Reading)

    assert metadata(context)[KEY] == "1"
    assert [each[KEY] for each in seen] == ["1"]
    assert "epctx.manifest" not in seen[0]


def test_a_class_has_to_say_that_it_keeps_nodes():
    silent = type("Silent", (Keeping,), {"keeps_nodes": False})

    with pytest.raises(epctx.PluginError, match="the class does not say keeps_nodes"):
        session_of(MODEL, silent)


def test_a_kept_set_is_not_split_or_merged_and_may_have_any_type_at_its_boundary():
    text = model_of(
        "y = Identity(x) z = Identity(y)",
        inputs="string[2] x",
        outputs="string[2] y, string[2] z",
    )

    class Texts(Keeping):
        kept = ("Identity",)

        @hookimpl
        def get_capability(self, graph):
            return [
                ComputeCapability([node], keep_nodes=True, token=KEPT)
                for node in graph.nodes
            ]

    x = np.array(["a", "b"], object)
    y, z = results_of(text, Texts, x=x)

    assert y.tolist() == z.tolist() == ["a", "b"]
