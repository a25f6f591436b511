"""Many threads on one session, many times: every result is the one that a thread alone
gets.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fuzz.seeds import write_seeds

import epctx_core as epctx

THREADS = 32
RUNS = (200, pytest.param(2000, marks=pytest.mark.stress))
FEEDS = 8
MODELS = ("qnn_file", "openvino_file", "vitisai_file", "mixed_file")

pytestmark = pytest.mark.not_for_onnxruntime("one of the seeds has operators of acme")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """A folder of small context models."""
    folder = tmp_path_factory.mktemp("seeds")
    write_seeds(folder)
    return folder


def differing(session: epctx.InferenceSession, runs: int) -> int:
    """Run from all threads at once; return how many results are not what one thread
    alone gets.
    """
    (given,) = session.get_inputs()
    random = np.random.default_rng(3)
    feeds = [
        {given.name: random.standard_normal(given.shape, dtype=np.float32)}
        for _ in range(FEEDS)
    ]
    alone = [session.run(None, feed)[0] for feed in feeds]
    assert len({result.tobytes() for result in alone}) == FEEDS
    gate = threading.Barrier(THREADS)

    def work(number: int) -> int:
        gate.wait(timeout=60)
        places = [(number + step) % FEEDS for step in range(runs)]
        return sum(
            not np.array_equal(session.run(None, feeds[at])[0], alone[at])
            for at in places
        )

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(work, range(THREADS)))


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("model", MODELS)
def test_runs_from_each_of_32_threads_are_equal_to_sequential_ones(seeds, model, runs):
    options = epctx.SessionOptions()
    options.intra_op_num_threads = 1

    with epctx.InferenceSession(seeds / model / "m_ctx.onnx", options) as session:
        assert differing(session, runs) == 0
