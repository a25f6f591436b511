"""The device: shared engines, lifetimes, and graphs that do not fit their tables."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from epctx_sim_sdk.device import Device, GraphReader
from epctx_sim_sdk.writing import write_container

from epctx_core.errors import InvalidGraph

pytestmark = pytest.mark.internal


class CountingEngine:
    """The real engine, counting what was prepared and closed."""

    def __init__(self, engine):
        self.engine = engine
        self.prepared = self.closed = 0

    @property
    def name(self):
        return self.engine.name

    def prepare(self, model, weights=None, *, heavy=True):
        self.prepared += 1
        real = self.engine.prepare(model, weights)
        outer = self

        class Counted:
            run = staticmethod(real.run)

            def close(self):
                outer.closed += 1
                real.close()

        return Counted()


X = np.random.default_rng(3).standard_normal((1, 400)).astype(np.float32)


def loaded(scene, device, *graphs):
    container = scene.open(scene.write(*graphs))
    return [device.load(container, entry) for entry in container.tables.graphs.values()]


def test_a_loaded_graph_gives_what_the_compiled_one_gives(scene):
    graph = scene.graph(scene.dense())
    device = Device(engine=scene.engine())
    (from_container,) = loaded(scene, device, graph)

    assert np.array_equal(
        from_container.run([X], None)[0], device.compile(graph).run([X], None)[0]
    )


def test_results_go_into_the_arrays_that_are_given(scene):
    (compiled,) = loaded(
        scene, Device(engine=scene.engine()), scene.graph(scene.dense())
    )
    target = np.zeros((1, 4), np.float32)

    result = compiled.run([X], [target])

    assert result[0] is target
    assert np.array_equal(target, compiled.run([X], None)[0])


def test_equal_graphs_of_one_container_share_an_engine_until_the_last_is_closed(scene):
    engine = CountingEngine(scene.engine())
    graphs = [
        scene.graph(scene.dense(names=names), number=i)
        for i, names in enumerate(("abc", "xyz", "pqr"))
    ]

    runnables = loaded(scene, Device(engine=engine), *graphs)

    assert engine.prepared == 1
    for runnable in runnables[:-1]:
        runnable.close()
    assert engine.closed == 0
    runnables[-1].run([X], None)
    runnables[-1].close()
    assert engine.closed == 1


def test_graphs_with_other_weights_do_not_share(scene):
    engine = CountingEngine(scene.engine())
    weights = (np.ones((400, 4), np.float32), np.zeros((400, 4), np.float32))
    graphs = [
        scene.graph(scene.dense(weight=w, scale=0.0), number=i)
        for i, w in enumerate(weights)
    ]

    ones, zeros = loaded(scene, Device(engine=engine), *graphs)

    assert engine.prepared == 2
    assert zeros.run([X], None)[0].max() == 0
    scene.same(ones.run([np.ones_like(X)], None)[0], np.full((1, 4), 400.0))


def test_equal_partitions_share_an_engine_when_run_without_a_container(scene):
    engine = CountingEngine(scene.engine())
    device = Device(engine=engine)

    for number, names in enumerate(("abc", "xyz")):
        device.compile(scene.graph(scene.dense(names=names), number=number))

    assert engine.prepared == 1


def test_closing_the_device_closes_what_is_open_and_only_once(scene):
    engine = CountingEngine(scene.engine())
    device = Device(engine=engine)
    (runnable,) = loaded(scene, device, scene.graph(scene.dense()))

    device.close()
    runnable.close()
    device.close()

    assert engine.closed == 1


def changed(scene, change):
    """A container whose structure was changed before it was written."""
    graph = scene.graph(scene.dense())
    model = graph.model()
    change(model)
    object.__setattr__(graph, "structure", model.SerializeToString())
    payload = scene.payload()
    write_container(payload, [graph], scene.facts)
    return scene.open(payload.content)


def rename(model):
    model.graph.initializer[0].name = "elsewhere"
    model.graph.node[0].input[1] = "elsewhere"


def reshape(model):
    model.graph.initializer[0].dims[:] = [4, 400]


def retype(model):
    model.graph.initializer[0].data_type = onnx.TensorProto.INT32


def hide(model):
    """A Constant whose value claims to lie in a file of the machine."""
    node = model.graph.node.add(op_type="Constant", output=["hidden"])
    attribute = node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    attribute.t.CopyFrom(model.graph.initializer[0])
    attribute.t.external_data[0].value = "/etc/passwd"


@pytest.mark.parametrize("change", [rename, reshape, retype, hide])
def test_a_structure_that_does_not_fit_its_tables_is_refused(scene, change):
    container = changed(scene, change)
    (entry,) = container.tables.graphs.values()

    with pytest.raises(InvalidGraph, match="name different weights"):
        Device(engine=scene.engine()).load(container, entry)


def test_a_structure_that_onnx_refuses_is_refused_without_a_device(scene):
    def make_two(model):
        model.graph.node[-1].output.append("another")

    container = changed(scene, make_two)
    (entry,) = container.tables.graphs.values()

    with pytest.raises(InvalidGraph, match="the ONNX checker refuses"):
        GraphReader(engine=scene.engine(), prepares=True).load(container, entry)


@pytest.mark.parametrize("boundary", ["input", "output"])
def test_a_structure_of_another_boundary_than_the_tables_is_refused(scene, boundary):
    def widen(model):
        values = getattr(model.graph, boundary)
        values.add().CopyFrom(values[0])
        values[-1].name = "more"

    container = changed(scene, widen)
    (entry,) = container.tables.graphs.values()

    with pytest.raises(InvalidGraph, match="different boundaries"):
        Device(engine=scene.engine()).load(container, entry)


def test_a_structure_that_is_no_model_is_refused(scene):
    graph = scene.graph(scene.dense())
    object.__setattr__(graph, "structure", b"\xff\xff\xff")
    container = scene.open(scene.write(graph))
    (entry,) = container.tables.graphs.values()

    with pytest.raises(InvalidGraph, match="no ONNX model"):
        Device(engine=scene.engine()).load(container, entry)
