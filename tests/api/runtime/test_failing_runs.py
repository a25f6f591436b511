"""Errors of an EP in `run`: the host hears whose fault it is and its cause, however odd
the exception.
"""

from __future__ import annotations

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

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "Relu")

    @hookimpl
    def compile(self, partitions):
        return [
            CompiledPartition(lambda _inputs, _outputs: type(self).act())
            for _ in partitions
        ]


@pytest.fixture(params=PIECES)
def failing(request, monkeypatch):
    """Give a function that runs a model in which the EP's piece stands alone, or among
    others.
    """
    text = (
        f'<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {{ '
        f"{PIECES[request.param]} }}"
    )
    registry = Registry(entry_points=False)
    registry.register(Failing)

    def failing(act):
        monkeypatch.setattr(Failing, "act", staticmethod(act))
        model = onnx.parser.parse_model(text).SerializeToString()
        with epctx.InferenceSession(
            model, providers=["Failing"], registry=registry
        ) as session:
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
    ],
)
def test_an_exception_is_named_by_its_type_also_without_a_text(failing, error, said):
    with pytest.raises(epctx.RuntimeException, match=f": {said}") as caught:
        failing(raises(error))

    assert caught.value.ep == Failing.name
    assert caught.value.__cause__ is error


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


def test_an_error_of_ours_passes_with_the_ep_and_its_piece_filled_in(failing):
    with pytest.raises(epctx.InvalidGraph, match=r"^the payload is cut") as caught:
        failing(raises(epctx.InvalidGraph("the payload is cut.")))

    assert caught.value.ep == Failing.name
    assert Failing.name in caught.value.node
