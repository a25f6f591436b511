"""Whatever an EP gave is closed once, before the EP is shut down, however the session
or the compile ends.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx.parser
import pytest

import epctx_core as epctx
from epctx_core import Registry
from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    hookimpl,
    supported_partitions,
)

MODEL = """
<ir_version: 9, opset_import: ["": 17]>
g (float[2] x) => (float[2] y) { a = Relu(x)  y = Neg(a) }
"""


class Closing(ExecutionProvider):
    """Takes Relu; tells what is closed."""

    name = "ClosingExecutionProvider"
    heard: list[str]

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "Relu")

    @hookimpl
    def compile(self, partitions):
        self._partitions = list(partitions)
        return [self._runnable() for _ in partitions]

    def _runnable(self):
        return CompiledPartition(
            lambda inputs, _: [np.maximum(inputs[0], 0)],
            close=lambda: self.heard.append("close"),
        )

    @hookimpl
    def get_ep_context_nodes(self, writer):
        payload = writer.payload()
        payload.write(b"relu")
        return [EPContextNode(partition, payload) for partition in self._partitions]

    @hookimpl
    def load_context(self, nodes, reader):
        return [self._runnable() for _ in nodes]

    @hookimpl
    def shutdown(self):
        self.heard.append("shutdown")


class Failing(ExecutionProvider):
    """Takes Neg, and cannot compile it."""

    name = "FailingExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "Neg")

    @hookimpl
    def compile(self, partitions):
        raise RuntimeError("no Neg today")


@pytest.fixture
def registry():
    Closing.heard = []
    registry = Registry(entry_points=False)
    registry.register(Closing)
    registry.register(Failing)
    return registry


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def test_a_compile_closes_what_it_compiled(model, registry):
    options = epctx.SessionOptions()
    options.add_provider("Closing")

    epctx.ModelCompiler(options, model, registry=registry).compile_to_file()

    assert Closing.heard == ["close", "shutdown"]


def test_a_session_closes_what_was_compiled_and_what_was_loaded(model, registry):
    options = epctx.SessionOptions()
    options.add_provider("Closing")
    context = (
        epctx.ModelCompiler(options, model, registry=registry).compile_to_file().output
    )
    Closing.heard.clear()

    epctx.InferenceSession(model, options, registry=registry).close()
    epctx.InferenceSession(context, registry=registry).close()

    assert Closing.heard == ["close", "shutdown"] * 2


def test_what_one_ep_compiled_is_closed_when_the_next_one_fails(model, registry):
    with pytest.raises(epctx.EPFail, match="no Neg today"):
        epctx.InferenceSession(
            model, providers=["Closing", "Failing"], registry=registry
        )

    assert Closing.heard == ["close", "shutdown"]


KEPT_TO_THE_END = """
import json, sys
import epctx_core as epctx
session = epctx.InferenceSession(sys.stdin.buffer.read())
json.kept = lambda: session
"""


def test_a_session_that_outlives_its_modules_at_the_interpreters_end_ends_without_a_word():
    model = onnx.parser.parse_model(MODEL).SerializeToString()

    done = subprocess.run(
        [sys.executable, "-c", KEPT_TO_THE_END],
        input=model,
        capture_output=True,
        timeout=60,
        check=True,
    )

    assert done.stderr == b""
