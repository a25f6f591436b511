"""What tests of reports share: networks, their context model, and a profile of a run."""

from __future__ import annotations

import pytest
from epctx_bench import Profile
from support.cli_fixtures import epctx  # noqa: F401 - a fixture
from support.folders import MODELS
from support.sim_eps import OPENVINO, with_eps

from epctx_core import InferenceSession, ModelCompiler

BERT = MODELS / "bert" / "model.onnx"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with BERT, its context model for OpenVINO, and a profile of two runs."""
    import numpy as np

    folder = tmp_path_factory.mktemp("report")
    source = folder / "bert.onnx"
    source.write_bytes(BERT.read_bytes())
    ModelCompiler(with_eps(OPENVINO), source).compile_to_file(folder / "bert_ctx.onnx")

    profile = Profile()
    options = with_eps(OPENVINO)
    options.add_host_plugin(profile)
    with InferenceSession(folder / "bert_ctx.onnx", options) as session:
        feeds = {
            value.name: np.ones(value.shape, np.int64) for value in session.get_inputs()
        }
        for _ in range(2):
            session.run(None, feeds)
    profile.write(folder / "profile.json")
    return folder
