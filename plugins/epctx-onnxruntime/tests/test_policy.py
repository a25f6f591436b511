"""How engines are set up: threads and prepacking by rule, with the host's overrides."""

from __future__ import annotations

import numpy as np
import pytest
from epctx_onnxruntime.engine import OnnxRuntimeEngine
from support.graph_models import FLOAT, model, node, value
from support.models_for_engines import group_model

from epctx_core.plugin import EnginePolicy

pytestmark = pytest.mark.internal


def session_options(policy, made, weight, *, heavy=None):
    engine = OnnxRuntimeEngine(policy)
    return engine.session_options(made, heavy, prepacks=engine.prepacks(weight.nbytes))


@pytest.mark.parametrize(
    ("prefer_latency", "megabytes", "prepacked"),
    [(None, 64, True), (None, 65, False), (True, 65, True), (False, 1, False)],
)
def test_prepacking_follows_the_rule(prefer_latency, megabytes, prepacked):
    weight = np.empty(megabytes << 20, np.uint8)

    options = session_options(
        EnginePolicy(prefer_latency=prefer_latency), group_model(), weight
    )

    try:
        disabled = options.get_session_config_entry("session.disable_prepacking")
    except RuntimeError:
        disabled = "0"
    assert (disabled == "1") is not prepacked


@pytest.mark.parametrize(
    ("policy", "heavy", "threads"),
    [
        (EnginePolicy(), None, 0),
        (EnginePolicy(), True, 0),
        (EnginePolicy(), False, 1),
        (EnginePolicy(intra_op_num_threads=3), None, 3),
        (EnginePolicy(intra_op_num_threads=3, pieces=9), False, 3),
        (EnginePolicy(pieces=2), None, 1),
        (EnginePolicy(pieces=2), True, 0),
        (EnginePolicy(pieces=2), False, 1),
    ],
)
def test_threads_follow_the_rule(policy, heavy, threads):
    options = session_options(
        policy, group_model(), np.empty(1, np.float32), heavy=heavy
    )

    assert options.intra_op_num_threads == threads


@pytest.mark.parametrize(
    ("op", "nodes", "shape", "threads"),
    [
        ("Conv", 1, [1, 1, 8, 8], 0),
        ("MatMul", 1, [256, 256], 0),
        ("MatMul", 1, [32, 32], 1),
        ("MatMul", 1, ["n", 32], 0),
        ("Neg", 1, [256, 256], 1),
        ("Neg", 9, [256, 256], 0),
        ("Neg", 9, [32, 32], 1),
    ],
)
def test_one_piece_of_several_has_threads_of_its_own_if_it_has_work_for_them(
    op, nodes, shape, threads
):
    chain = [
        node(op, [f"v{i}", f"v{i}"][: 1 + (op != "Neg")], [f"v{i + 1}"])
        for i in range(nodes)
    ]
    ends = [value("v0", FLOAT, shape), value(f"v{nodes}", FLOAT, shape)]

    made = model(chain, ends[:1], ends[1:])

    assert (
        OnnxRuntimeEngine(EnginePolicy(pieces=2))._count_threads(made, None) == threads
    )
