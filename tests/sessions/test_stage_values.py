"""Values that stages hand on: each has what the one before it has, and none changes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise

import pytest
from support.small_models import chain, saved

import epctx_core as epctx
from epctx_core.engines.cpu_engine import CpuEngine
from epctx_core.options import GraphOptimizationLevel
from epctx_core.plugin import EnginePolicy, Purpose
from epctx_core.sessions.stage_values import (
    Assigned,
    Chosen,
    Opened,
    Routed,
    Started,
    choose,
)
from epctx_core.sessions.stages import Request

pytestmark = pytest.mark.internal

STAGES = [Request, Chosen, Opened, Routed, Started, Assigned]


@pytest.fixture
def request_of_qnn(tmp_path):
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    model = saved(chain(["Relu", "Exp"]), tmp_path / "m.onnx")
    return Request.from_options(
        model, options, epctx.default_registry, options.providers
    )


@pytest.fixture
def values(request_of_qnn):
    chosen = choose(request_of_qnn, Purpose.RUN)
    with closing(chosen.providers):
        opened = chosen.open()
        routed = opened.route()
        started = routed.start(CpuEngine(EnginePolicy()))
        yield [
            request_of_qnn,
            chosen,
            opened,
            routed,
            started,
            started.assign(routed.settled),
        ]


def test_each_value_has_all_that_the_one_before_it_has(values):
    assert [type(value) for value in values] == STAGES
    for before, after in pairwise(values):
        assert vars(before).items() <= vars(after).items()
        assert len(fields(before)) < len(fields(after))


def test_no_value_changes(values):
    for value in values:
        for field in fields(value):
            with pytest.raises(FrozenInstanceError):
                setattr(value, field.name, None)


@pytest.mark.parametrize(
    ("step", "stage"),
    [("open", Chosen), ("route", Opened), ("start", Routed), ("assign", Started)],
)
def test_a_stage_can_only_follow_the_one_before_it(step, stage):
    index = STAGES.index(stage)

    assert not any(hasattr(earlier, step) for earlier in STAGES[:index])
    assert hasattr(stage, step)


def test_an_optimised_model_leaves_the_value_before_it_as_it_was(values):
    started = values[STAGES.index(Started)]
    model = started.model

    optimised = started.optimise(GraphOptimizationLevel.ORT_ENABLE_BASIC)

    assert started.model is model
    assert optimised.model is not model
    assert optimised.providers is started.providers


def test_a_compile_gives_nodes_that_are_there_to_no_ep(values):
    kept = values[STAGES.index(Opened)].keep_nodes()

    assert (kept.manifest, dict(kept.nodes), tuple(kept.keepers)) == (None, {}, ())
