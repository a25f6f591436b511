"""Partitions that run on one runtime object, and nodes that share one payload."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from support.engine_eps import EngineProvider, packed, unpacked
from support.isolation import options_for, registry_of
from support.small_models import chain, example, saved

import epctx_core as epctx
from epctx_core.plugin import CompiledPartition, EPContextNode, Purpose, hookimpl

OPERATORS = ("Relu", "Sigmoid", "Add", "Sigmoid", "Add", "Sigmoid", "Relu")
"""Four partitions."""


class Runtime:
    """Runtime object of one binary: holds all its graphs, and ends once."""

    def __init__(self, context, graphs):
        self.context = context
        self.prepared = {
            name: context.engine.prepare(onnx.load_from_string(bytes(graph)))
            for name, graph in graphs.items()
        }
        context.logger.info("opened")

    def partition(self, name):
        return CompiledPartition(self.prepared[name].run, close=self.close)

    def close(self):
        self.context.logger.info("closed %d graphs", len(self.prepared))


class Sharing(EngineProvider):
    """One runtime for each payload; nodes carry payloads as `carried` says: payload and
    main_context of each.
    """

    name = "SharingExecutionProvider"
    binary_suffix = "sharing"
    operators = frozenset({"Relu", "Add"})
    carried = ((None, 1), (None, 1), (None, 1), (None, 1))

    @hookimpl
    def compile(self, partitions):
        exported = super().compile(partitions)
        if self.context.purpose is Purpose.EXPORT:
            return exported
        runtime = Runtime(
            self.context, {partition.name: graph for partition, graph in self._compiled}
        )
        return [runtime.partition(partition.name) for partition in partitions]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        payloads = {
            name: writer.payload(name)
            for name in dict.fromkeys(name for name, _ in self.carried)
        }
        graphs = {name: {} for name in payloads}
        nodes = []
        for (partition, graph), (name, main) in zip(
            self._compiled, self.carried, strict=True
        ):
            graphs[name][partition.name] = graph
            nodes.append(EPContextNode(partition, payloads[name], main))
        for name, own in graphs.items():
            payloads[name].write(packed(own))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        runtimes = {}
        for node in nodes:
            payload = reader.payload(node)
            if payload not in runtimes:
                runtimes[payload] = Runtime(self.context, unpacked(payload.view))
        return [
            runtimes[reader.payload(node)].partition(node.partition_name)
            for node in nodes
        ]


def carrying(*carried):
    return type("Carrying", (Sharing,), {"carried": carried})


@pytest.fixture
def model(tmp_path):
    return saved(chain(OPERATORS), tmp_path / "m.onnx")


@pytest.fixture
def said(caplog):
    """Give what EPs log, in order."""
    caplog.set_level(logging.INFO, "epctx")
    return lambda: [
        r.getMessage() for r in caplog.records if r.name.startswith("epctx.ep")
    ]


def compile_with(ep, model, **entries):
    compiler = epctx.ModelCompiler(
        options_for(ep, isolate="", **entries), model, registry=registry_of(ep)
    )
    compiler.compile_to_file(model.with_name("m_ctx.onnx"))
    return model.with_name("m_ctx.onnx")


def run(model, ep=None, isolate=""):
    options, registry = (
        (options_for(ep, isolate=isolate), registry_of(ep)) if ep else (None, None)
    )
    with epctx.InferenceSession(model, options, registry=registry) as session:
        return session.run(None, {"x": example()})[0]


@pytest.mark.parametrize("isolate", ["", "compile", "all"])
def test_a_runtime_that_loaded_nodes_share_is_closed_once_after_the_last(
    model, said, isolate
):
    context = compile_with(Sharing, model)

    result = run(context, Sharing, isolate)

    np.testing.assert_allclose(result, run(model), rtol=1e-6)
    assert said() == ["opened", "closed 4 graphs"]


@pytest.mark.parametrize("isolate", ["", "compile", "all"])
def test_a_runtime_that_compiled_partitions_share_is_closed_once(model, said, isolate):
    result = run(model, Sharing, isolate)

    np.testing.assert_allclose(result, run(model), rtol=1e-6)
    assert said() == ["opened", "closed 4 graphs"]


def test_what_partitions_share_is_closed_after_what_each_has_for_itself(model):
    closed = []

    class Both(EngineProvider):
        name = "BothExecutionProvider"
        operators = Sharing.operators

        @hookimpl
        def compile(self, partitions):
            made = super().compile(partitions)

            def shared():
                closed.append("shared")

            own = [
                shared,
                lambda: closed.append("first"),
                shared,
                lambda: closed.append("last"),
            ]
            made[0] = made[2] = CompiledPartition(made[0].run, close=own[0])
            return [
                made[0],
                *(
                    CompiledPartition(m.run, close=c)
                    for m, c in zip(made[1:], own[1:], strict=True)
                ),
            ]

    epctx.InferenceSession(
        model, options_for(Both, isolate=""), registry=registry_of(Both)
    ).close()

    assert closed == ["first", "shared", "last"]


@pytest.mark.parametrize("embedded", [0, 1])
@pytest.mark.parametrize("mains", [(1, 0, 0, 0), (0, 0, 1, 0), (0, 1, 1, 0)])
def test_one_payload_of_nodes_with_main_context_1_and_0_is_one_binary(
    model, said, embedded, mains
):
    ep = carrying(*((None, main) for main in mains))

    context = compile_with(ep, model, context_embed_mode=embedded)
    result = run(context, ep)

    np.testing.assert_allclose(result, run(model), rtol=1e-6)
    assert said() == ["opened", "closed 4 graphs"]
    assert len(list(model.parent.glob("*.bin"))) == 1 - embedded
    assert [
        f.code for f in epctx.verify_model(context, registry=registry_of(ep)).findings
    ] == ["container-not-checked"]


@pytest.mark.parametrize("embedded", [0, 1])
@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_node_with_main_context_0_finds_the_one_of_two_payloads_that_it_was_given(
    model, said, embedded, with_manifest
):
    ep = carrying(("a", 0), ("b", 1), ("a", 1), ("b", 0))
    context = compile_with(ep, model, context_embed_mode=embedded)
    if not with_manifest:
        proto = onnx.load(context)
        del proto.metadata_props[:]
        onnx.save(proto, context)

    if embedded and not with_manifest:
        with pytest.raises(
            epctx.InvalidGraph, match="more than one primary could hold its graph"
        ):
            run(context, ep)
    else:
        np.testing.assert_allclose(run(context, ep), run(model), rtol=1e-6)
        assert said() == ["opened", "opened", "closed 2 graphs", "closed 2 graphs"]


OPENED = """
import sys
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
from contract.test_shared_runtimes import Sharing, run
run(sys.argv[1], Sharing)
print(sum(name.endswith(".bin") for name in opened))
"""


def test_a_binary_that_all_nodes_name_is_opened_once(model):
    context = compile_with(Sharing, model)

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = [sys.executable, "-c", OPENED, context]
    done = subprocess.run(
        script, env=environment, capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("1\n", "")
