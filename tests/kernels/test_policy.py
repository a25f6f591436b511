"""How engines are set up: threads and prepacking by rule, with the host's overrides."""

from __future__ import annotations

import numpy as np
import pytest
from graph.making import model, node
from kernels.pieces import piece

from epctx_core.kernels import EnginePolicy
from epctx_core.kernels.onnxruntime_engine import OnnxRuntimeEngine


def session_options(policy, made, weight, *, heavy=None):
    return OnnxRuntimeEngine(policy)._session_options(made, {"w": weight}, heavy)


@pytest.mark.parametrize(
    ("prefer_latency", "megabytes", "prepacked"),
    [(None, 64, True), (None, 65, False), (True, 65, True), (False, 1, False)],
)
def test_prepacking_follows_the_rule(prefer_latency, megabytes, prepacked):
    weight = np.empty(megabytes << 20, np.uint8)

    options = session_options(EnginePolicy(prefer_latency=prefer_latency), piece(), weight)

    try:
        disabled = options.get_session_config_entry("session.disable_prepacking")
    except RuntimeError:
        disabled = "0"
    assert (disabled == "1") is not prepacked


@pytest.mark.parametrize(
    ("policy", "heavy", "threads"),
    [
        (EnginePolicy(), None, 0),
        (EnginePolicy(intra_op_num_threads=3), None, 3),
        (EnginePolicy(intra_op_num_threads=3, pieces=9), False, 3),
        (EnginePolicy(pieces=2), None, 1),
        (EnginePolicy(pieces=2), True, 0),
        (EnginePolicy(pieces=2), False, 1),
    ],
)
def test_threads_follow_the_rule(policy, heavy, threads):
    options = session_options(policy, piece(), np.empty(1, np.float32), heavy=heavy)

    assert options.intra_op_num_threads == threads


def test_a_piece_is_heavy_by_its_operators_or_its_length():
    policy = EnginePolicy(pieces=2)
    long = model([node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(9)], ["v0"], ["v9"])

    assert policy.threads(piece(op="MatMul"), None) == 0
    assert policy.threads(long, None) == 0
    del long.graph.node[8:]
    assert policy.threads(long, None) == 1
