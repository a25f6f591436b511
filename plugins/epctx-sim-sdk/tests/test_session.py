"""The SDK as one EP instance uses it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from epctx_sim_sdk.device import open_device
from epctx_sim_sdk.session import SimSession

from epctx_core.errors import ModelLoadCanceled
from epctx_core.plugin import ProviderContext, Purpose, WeightlessMode

pytestmark = pytest.mark.internal

X = np.ones((1, 400), np.float32)


@pytest.fixture
def context(scene):
    steps = []
    return SimpleNamespace(
        engine=scene.engine(),
        purpose=Purpose.EXPORT,
        weightless=WeightlessMode.NONE,
        cancel=scene.cancel(),
        steps=steps,
        progress=lambda *step: steps.append(step),
        workspace=scene.workspace(),
        span=ProviderContext.span,
    )


def session_of(scene, context, **half):
    return SimSession(scene.ep, context, open_device(context), **half)


def two(scene):
    return [
        scene.partition(scene.dense()),
        scene.partition(scene.dense(scale=2.0), number=1),
    ]


def test_an_export_compiles_and_writes_and_makes_nothing_ready_to_run(
    scene, context, monkeypatch
):
    prepared = []
    monkeypatch.setattr(
        type(context.engine), "prepare", lambda *given, **_more: prepared.append(given)
    )
    session, payload = session_of(scene, context), scene.payload()

    compiled = session.compile(two(scene))
    tables = session.write(payload, scene.facts, session.graphs)

    assert [one.run for one in compiled] == [None, None]
    assert list(tables.graphs) == [graph.name for graph in session.graphs]
    assert scene.open(payload.content).tables.made_by == scene.facts
    assert prepared == []
    assert context.steps[:3] == [
        ("compile", 0, 2),
        ("compile", 1, 2),
        ("compile", 2, 2),
    ]
    assert context.steps[-1][0] == "write"


def test_later_partitions_follow_the_earlier_ones(scene, context):
    session, again = session_of(scene, context), session_of(scene, context)

    session.compile(two(scene))
    for partition in two(scene):
        again.compile([partition])

    assert [g.name for g in again.graphs] == [g.name for g in session.graphs]


def test_to_run_it_opens_a_device_and_closing_that_closes_what_runs(scene, context):
    context.purpose = Purpose.RUN
    session = session_of(scene, context)

    first, second = session.compile(two(scene))
    assert not np.array_equal(first.run([X], None)[0], second.run([X], None)[0])
    session.device.close()

    assert not session.device._shared


def test_half_precision_is_the_vendors_to_ask_for(scene, context):
    full, half = session_of(scene, context), session_of(scene, context, fp16=True)

    for session in (full, half):
        session.compile(two(scene))

    sizes = [
        sum(view.nbytes for graph in s.graphs for view in graph.weights.values())
        for s in (full, half)
    ]
    assert sizes[1] * 2 == sizes[0]


@pytest.mark.parametrize("stage", ["compile", "write"])
def test_a_cancelled_stage_stops(scene, context, stage):
    session = session_of(scene, context)
    if stage == "write":
        session.compile(two(scene))
    context.cancel.set(True)

    with pytest.raises(ModelLoadCanceled):
        if stage == "compile":
            session.compile(two(scene))
        else:
            session.write(scene.payload(), scene.facts, session.graphs)
