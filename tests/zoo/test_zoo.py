"""Models of foreign exporters on each route through epctx, checked against onnxruntime's own answers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from end_to_end.sim_eps import CPU, OPENVINO, QNN, VITISAI, with_eps
from models_breadth.taker import assert_same

import epctx_core as epctx

FOLDER = Path(__file__).parent / "models"
MODELS = sorted(path.stem for path in FOLDER.glob("*.onnx"))
EPS = {"qnn": (QNN,), "openvino": (OPENVINO,), "vitisai": (VITISAI,), "all": (VITISAI, QNN, OPENVINO)}
ENDS_ONNXRUNTIME = {
    name
    for name in MODELS
    if name.startswith(("paddle_recogniser", "tensorflow_sequences", "torch_recurrent"))
}
"""Models whose recurrent operators end onnxruntime's process when they get no rows."""

STEPS = {"quantised_qdq": 1.001 / 255}
"""Models whose results may be one quantisation step away, as onnxruntime's own are without its optimisation."""


class Truth:
    """onnxruntime's view of a model: its arguments, and its answers for several numbers of rows."""

    def __init__(self, name: str) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(FOLDER / f"{name}.onnx", options, providers=[CPU])
        with np.load(FOLDER / f"{name}.npz") as stored:
            given = dict(stored)
        is_open = {x.name: bool(x.shape) and not isinstance(x.shape[0], int) for x in session.get_inputs()}
        rows = (len(next(iter(given.values()))), 1, *((0,) if name not in ENDS_ONNXRUNTIME else ()))
        self.inputs = [
            {key: value[:n] if is_open[key] else value for key, value in given.items()} for n in rows
        ]
        self.answers = [answer(session, feeds) for feeds in self.inputs]
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
    return [[(x.name, x.type) for x in xs] for xs in (session.get_inputs(), session.get_outputs())]


def assert_true(session, name):
    wanted = truth(name)
    assert arguments_of(session) == wanted.arguments
    for feeds, results in zip(wanted.inputs, wanted.answers, strict=True):
        if results is None:
            with pytest.raises(epctx.EpctxError):
                session.run(None, feeds)
        elif name in STEPS:
            np.testing.assert_allclose(session.run(None, feeds), results, rtol=0, atol=STEPS[name])
        else:
            assert_same(session.run(None, feeds), results)


@pytest.mark.parametrize("name", MODELS)
def test_a_plain_session_gives_what_onnxruntime_gives(name):
    with epctx.InferenceSession(FOLDER / f"{name}.onnx", providers=[CPU]) as session:
        assert_true(session, name)


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("name", MODELS)
def test_each_ep_gives_what_onnxruntime_gives_in_a_session_a_file_and_embedded(name, eps, tmp_path):
    with epctx.InferenceSession(FOLDER / f"{name}.onnx", with_eps(*EPS[eps])) as session:
        assert_true(session, name)
    for embedded in (False, True):
        written = tmp_path / f"{embedded}" / "m_ctx.onnx"
        written.parent.mkdir()
        report = epctx.ModelCompiler(with_eps(*EPS[eps]), FOLDER / f"{name}.onnx", embedded).compile_to_file(
            written
        )
        if not report.partitions:
            continue
        with epctx.InferenceSession(written) as session:
            assert_true(session, name)
