"""onnxruntime's answers for the models of the zoo, computed when they are asked for,
and a comparison with them.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime
import pytest
from support.sim_eps import CPU
from support.taker import assert_same
from zoo.exporters.saving import read_inputs
from zoo.scripts import FOLDER

import epctx_core as epctx

ON_ROUTES_ONLY = ("derived_", "programs_", "transformers_")
"""Beginnings of models whose inputs are not all rows of one table."""
MODELS = sorted(
    path.stem
    for path in FOLDER.glob("*.onnx")
    if not path.stem.startswith(ON_ROUTES_ONLY)
)

ENDS_ONNXRUNTIME = ("paddle_recogniser", "tensorflow_sequences", "torch_recurrent")
"""Beginnings of models whose recurrent operators end onnxruntime's process when they
get no rows: ours refuses.
"""

STEP = 1.001 / 255
"""A quantisation step of the models in `QUANTISED`, whose last operator is a
Softmax.
"""
QUANTISED = ("quantised_qdq", "quantised_qdq_fixed")
"""Models that onnxruntime itself computes otherwise by a step in a few elements, when
it may not fuse.
"""

REFUSES_NO_ROWS = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32)
"""Whether this onnxruntime refuses the models in `QUANTISED` without rows, as it did up
to 1.31; payloads have them unfused and give a result of no rows.
"""


def path_of(name):
    return FOLDER / f"{name}.onnx"


class Truth:
    """onnxruntime's view of a model: its arguments, and its answers for several numbers
    of rows.
    """

    def __init__(self, name):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(path_of(name), options, providers=[CPU])
        given = read_inputs(FOLDER / f"{name}.npz")
        is_open = {
            x.name: bool(x.shape) and not isinstance(x.shape[0], int)
            for x in session.get_inputs()
        }
        rows = [len(next(iter(given.values())))]
        if any(is_open.values()):
            rows += [1] if name in QUANTISED and REFUSES_NO_ROWS else [1, 0]
        self.inputs = [
            {key: x[:n] if is_open[key] else x for key, x in given.items()}
            for n in rows
        ]
        ends = name.startswith(ENDS_ONNXRUNTIME)
        self.answers = [
            None if ends and n == 0 else answer(session, feeds)
            for n, feeds in zip(rows, self.inputs, strict=True)
        ]
        self.arguments = arguments_of(session)


truth = cache(Truth)


def answer(session, feeds):
    """Return a session's results, or nothing where it refuses the inputs."""
    try:
        return session.run(None, feeds)
    except Exception:  # noqa: BLE001 - onnxruntime's exceptions have no base of their own
        return None


def arguments_of(session):
    """Return names and types of inputs and outputs, in the session's order."""
    return [
        [(x.name, x.type) for x in xs]
        for xs in (session.get_inputs(), session.get_outputs())
    ]


def assert_plain(session, name):
    """Expect what onnxruntime gives, and refusals where it refuses."""
    _assert_true(session, name, 0)


def assert_compiled(session, name):
    """Expect what onnxruntime gives, in quantised models at most a step away."""
    _assert_true(session, name, STEP if name in QUANTISED else 0)


def _assert_true(session, name, step):
    expected = truth(name)
    assert arguments_of(session) == expected.arguments
    for feeds, results in zip(expected.inputs, expected.answers, strict=True):
        if results is None:
            with pytest.raises(epctx.EpctxError):
                session.run(None, feeds)
        else:
            assert_results(session.run(None, feeds), results, step)


def assert_results(results, expected, step=0):
    """Expect equal values, or numbers that are at most a quantisation step away."""
    if step:
        np.testing.assert_allclose(results, expected, rtol=0, atol=step)
    else:
        assert_same(results, expected)
