"""Equal pieces share one prepared model, which lives as long as its last user."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from engines.pieces import SIZE, on_the_reference, piece, session_engine
from graph.making import model, node, value
from onnx import TensorProto

from epctx_core.errors import RuntimeException


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


def test_equal_pieces_share_one_prepared_model(engine, sessions):
    weight = np.ones(SIZE, np.float32)
    one = piece()
    other = piece(x="in", w="kernel", y="out")
    other.graph.node[0].metadata_props.add(key="namespace", value="layer 2")
    other.graph.node[0].doc_string = "another"

    handles = [engine.prepare(one, {"w": weight}), engine.prepare(other, {"kernel": weight})]

    assert len(sessions) == 1
    x = np.arange(SIZE, dtype=np.float32)
    assert all(h.run([x])[0].tolist() == (x + 1).tolist() for h in handles)


def test_pieces_over_different_memory_or_of_different_operators_do_not_share(engine, sessions):
    weight = np.ones(SIZE, np.float32)

    handles = [
        engine.prepare(piece(), {"w": weight}),
        engine.prepare(piece(), {"w": weight.copy()}),
        engine.prepare(piece(op="Mul"), {"w": weight}),
    ]

    assert len(sessions) == len(handles) == 3


def test_two_layouts_of_one_memory_do_not_share(engine):
    made = model(
        [node("MatMul", ["x", "w"], ["y"])], [value("x", shape=[1, 20])], [value("y", shape=[1, 20])]
    )
    made.graph.initializer.add(name="w", data_type=1, dims=[20, 20], data_location=TensorProto.EXTERNAL)
    weight = np.arange(400, dtype=np.float32).reshape(20, 20)
    x = np.arange(20, dtype=np.float32).reshape(1, 20)

    straight, turned = (engine.prepare(made, {"w": w}) for w in (weight, weight.T))

    assert straight.run([x])[0].tolist() == (x @ weight).tolist()
    assert turned.run([x])[0].tolist() == (x @ weight.T).tolist()


@pytest.mark.parametrize("with_onnxruntime", [True, False], ids=["onnxruntime", "reference"])
def test_an_address_that_is_used_again_does_not_bring_back_an_older_weight(with_onnxruntime):
    # Nibbles are copied into the model, so nothing but the shared model keeps the given array alive.
    engine = session_engine(None if with_onnxruntime else on_the_reference())
    made = piece(elem_type=TensorProto.INT4)
    made.graph.node[0].CopyFrom(node("Cast", ["w"], ["y"], to=TensorProto.FLOAT))
    made.graph.output[0].CopyFrom(value("y", shape=[SIZE]))
    del made.graph.input[:]
    handles = [engine.prepare(made, {"w": np.full(SIZE, n, ml_dtypes.int4)}) for n in range(-8, 8)]

    assert [handle.run([])[0][0] for handle in handles] == list(range(-8, 8))


class MadeOnDemand(dict):
    """Weights that are a new array at each look-up."""

    def __getitem__(self, name):
        return super().__getitem__(name).copy()


def test_weights_may_be_made_on_demand(engine):
    handle = engine.prepare(piece(), MadeOnDemand(w=np.full(SIZE, 3, np.float32)))

    assert handle.run([np.zeros(SIZE, np.float32)])[0].tolist() == [3] * SIZE


def test_closing_one_handle_leaves_the_others_alive(engine, sessions):
    weight = np.ones(SIZE, np.float32)
    one, other = (engine.prepare(piece(), {"w": weight}) for _ in range(2))
    x = np.zeros(SIZE, np.float32)

    one.close()

    assert other.run([x])[0].tolist() == [1] * SIZE
    with pytest.raises(RuntimeException, match="after it was closed"):
        one.run([x])
    assert len(sessions) == 1


def test_closing_the_last_handle_releases_the_model_and_its_weights(engine, sessions):
    owned = np.ones(SIZE, np.float32)
    references = sys.getrefcount(owned)
    one, other = (engine.prepare(piece(), {"w": owned}) for _ in range(2))
    (shared,) = sessions

    one.close()
    gc.collect()
    kept = shared()
    assert kept is not None
    del kept
    other.close()
    gc.collect()

    assert shared() is None
    assert sys.getrefcount(owned) == references


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
