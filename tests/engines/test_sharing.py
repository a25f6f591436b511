"""Equal groups of a session share one prepared model; a prepared model lives until it
is closed and its last run is over.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref

import numpy as np
import onnxruntime
import pytest
from support.graph_models import model, node, tensor, value
from support.models_for_engines import SIZE, group_model

import epctx_core as epctx
from epctx_core.errors import RuntimeException
from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    ExecutionProvider,
    hookimpl,
)


@pytest.fixture
def sessions(monkeypatch):
    """Weak references to the onnxruntime sessions that are made."""
    made = []
    real = onnxruntime.InferenceSession

    def counted(*args, **options):
        session = real(*args, **options)
        made.append(weakref.ref(session))
        return session

    monkeypatch.setattr(onnxruntime, "InferenceSession", counted)
    return made


def left_over(*nodes, inputs=("x",), initializers=()):
    """Run a model whose Neg nodes an EP claims; what is left between them goes to the
    CPU EP, node by node.
    """
    registry = epctx.Registry(entry_points=False)
    registry.register(negating())
    made = model(list(nodes), list(inputs), ["y"], initializers)
    return epctx.InferenceSession(
        made.SerializeToString(), providers=["Negating"], registry=registry
    )


def negating():
    class Negating(ExecutionProvider):
        name = "Negating"

        @hookimpl
        def get_capability(self, graph):
            return [
                ComputeCapability([node])
                for node in graph.nodes
                if node.op_type == "Neg"
            ]

        @hookimpl
        def compile(self, partitions):
            return [
                CompiledPartition(lambda inputs, _outputs=None: [-inputs[0]])
                for _ in partitions
            ]

    return Negating


def test_equal_groups_of_a_session_share_one_prepared_model(sessions):
    with left_over(
        node("Elu", ["x"], ["a"], alpha=2.0),
        node("Neg", ["a"], ["b"]),
        node("Elu", ["b"], ["c"], alpha=2.0),
        node("Neg", ["c"], ["d"]),
        node("Elu", ["d"], ["y"], alpha=3.0),
    ) as session:
        (result,) = session.run(None, {"x": np.array([-1, 2], np.float32)})

    assert len(sessions) == 2
    a = np.array([2 * math.expm1(-1), 2])
    c = np.where(a > 0, 2 * np.expm1(-a), -a)
    np.testing.assert_allclose(result, np.where(c > 0, 3 * np.expm1(-c), -c), rtol=1e-5)


def test_groups_that_read_weights_do_not_share(sessions):
    with left_over(
        node("Add", ["x", "v"], ["a"]),
        node("Neg", ["a"], ["b"]),
        node("Add", ["b", "w"], ["y"]),
        initializers=[tensor("v", np.ones(2)), tensor("w", np.full(2, 5.0))],
    ) as session:
        (result,) = session.run(None, {"x": np.array([1, 2], np.float32)})

    assert len(sessions) == 2
    assert result.tolist() == [3, 2]


class MadeOnDemand(dict):
    """Weights that are a new array at each look-up."""

    def __getitem__(self, name):
        return super().__getitem__(name).copy()


def test_weights_may_be_made_on_demand(engine):
    handle = engine.prepare(group_model(), MadeOnDemand(w=np.full(SIZE, 3, np.float32)))

    assert handle.run([np.zeros(SIZE, np.float32)])[0].tolist() == [3] * SIZE


def test_closing_releases_the_model_and_its_weights(engine, sessions):
    owned = np.ones(SIZE, np.float32)
    references = sys.getrefcount(owned)
    handle = engine.prepare(group_model(), {"w": owned})
    (made,) = sessions
    assert made() is not None

    handle.close()
    gc.collect()

    assert made() is None
    assert sys.getrefcount(owned) == references
    with pytest.raises(RuntimeException, match="after it was closed"):
        handle.run([np.zeros(SIZE, np.float32)])


def test_a_run_that_is_under_way_survives_closing(engine):
    made = model(
        [node("MatMul", ["x", "x"], ["a"]), node("MatMul", ["a", "x"], ["y"])],
        [value("x", shape=[500, 500])],
        [value("y", shape=[500, 500])],
    )
    x = np.eye(500, dtype=np.float32)
    handle = engine.prepare(made)
    run = handle.run
    results = []
    thread = threading.Thread(target=lambda: results.extend(run([x])))

    thread.start()
    handle.close()
    thread.join()

    assert np.array_equal(results[0], x)
