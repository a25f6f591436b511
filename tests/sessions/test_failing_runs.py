"""Errors of an EP in `run`: the host hears whose fault it is and its cause, however odd
the exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import queue
import weakref

import numpy as np
import onnx.parser
import pytest

import epctx_core as epctx
from epctx_core import Registry
from epctx_core.plugin import (
    CompiledPartition,
    ExecutionProvider,
    hookimpl,
    supported_partitions,
)

PIECES = {"alone": "y = Relu(x)", "among others": "a = Relu(x) b = Abs(a) y = Abs(b)"}


class Speechless(Exception):
    """Its text cannot be had."""

    def __str__(self):
        raise ValueError("no text")


class Failing(ExecutionProvider):
    """Takes Relu, and does in `run` what a test wants."""

    name = "FailingExecutionProvider"
    act = None
    given = ()

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "Relu")

    @hookimpl
    def compile(self, partitions):
        return [CompiledPartition(self.run) for _ in partitions]

    def run(self, inputs, _outputs):
        type(self).given = [weakref.ref(value.base) for value in inputs]
        return type(self).act()


@pytest.fixture(params=PIECES)
def failing_session(request, monkeypatch):
    """Give a function that loads a model in which the EP's piece stands alone, or among
    others.
    """
    text = (
        f'<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {{ '
        f"{PIECES[request.param]} }}"
    )
    registry = Registry(entry_points=False)
    registry.register(Failing)

    def failing_session(act):
        monkeypatch.setattr(Failing, "act", staticmethod(act))
        model = onnx.parser.parse_model(text).SerializeToString()
        return epctx.InferenceSession(model, providers=["Failing"], registry=registry)

    return failing_session


@pytest.fixture
def failing(failing_session):
    """Give a function that runs such a model."""

    def failing(act):
        with failing_session(act) as session:
            session.run(None, {"x": np.ones(2, np.float32)})

    return failing


def raises(error):
    def act():
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no room"), "ValueError: no room"),
        (MemoryError(), "MemoryError"),
        (SystemExit(2), "SystemExit: 2"),
        (Speechless(), "Speechless"),
        (asyncio.CancelledError("gone"), "CancelledError: gone"),
    ],
)
def test_an_exception_is_named_by_its_type_also_without_a_text(failing, error, said):
    with pytest.raises(epctx.RuntimeException, match=f": {said}") as caught:
        failing(raises(error))

    assert caught.value.ep == Failing.name
    assert caught.value.__cause__ is error
    assert str(caught.value).startswith("FailingExecutionProvider (")


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([], "gave 0 results for 1 output"),
        ([1, 2], "gave 2 results for 1 output"),
        (5, "gave a int instead of a list of arrays"),
        (None, "gave a NoneType instead of a list of arrays"),
    ],
)
def test_a_wrong_number_of_results_is_said_in_words(failing, results, said):
    with pytest.raises(epctx.PluginError, match=said) as caught:
        failing(lambda: results)

    assert caught.value.ep == Failing.name


def test_control_c_passes(failing):
    with pytest.raises(KeyboardInterrupt):
        failing(raises(KeyboardInterrupt()))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (asyncio.CancelledError("gone"), "CancelledError: gone"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_callback_of_a_run_is_called_whatever_the_ep_raises(
    failing_session, error, said
):
    called = queue.SimpleQueue()

    with failing_session(raises(error)) as session:
        session.run_async(
            None,
            {"x": np.ones(2, np.float32)},
            lambda results, _data, text: called.put((results, text)),
            None,
        )
        results, text = called.get(timeout=60)

    assert results == []
    assert said in text


def test_a_failed_run_keeps_no_values(failing_session):
    def refuse():
        raise epctx.InvalidGraph("no")

    gc.disable()
    try:
        with (
            failing_session(refuse) as session,
            contextlib.suppress(epctx.InvalidGraph),
        ):
            session.run(None, {"x": np.ones(2, np.float32)})
        assert [value() for value in Failing.given] == [None]
    finally:
        gc.enable()


def test_of_many_nodes_of_the_cpu_ep_that_fail_together_none_is_blamed():
    nodes = "a = Relu(x) b = Abs(a) c = Concat <axis = 1> (b, x) y = Reshape(c, s)"
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[N, 2] x, int64[1] s) => '
        f"(float[M] y) {{ {nodes} }}"
    )
    session = epctx.InferenceSession(model.SerializeToString())

    with pytest.raises(epctx.RuntimeException, match="one of 4 nodes from") as caught:
        session.run(None, {"x": np.ones((1, 2), np.float32), "s": np.array([3])})

    assert caught.value.node is None


def test_an_error_of_ours_passes_with_the_ep_and_its_piece_filled_in(failing):
    with pytest.raises(epctx.InvalidGraph, match=r"^the payload is cut") as caught:
        failing(raises(epctx.InvalidGraph("the payload is cut.")))

    assert caught.value.ep == Failing.name
    assert Failing.name in caught.value.node
