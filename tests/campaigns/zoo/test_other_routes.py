"""Some of the zoo on the other routes: the command line, the cache, isolated EPs, a
share group.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.command_line import main
from support.sim_eps import OPENVINO, QNN, VITISAI, with_eps
from zoo.exporters.saving import read_inputs
from zoo.onnxruntime_truth import (
    QUANTISED,
    STEP,
    assert_compiled,
    assert_results,
    path_of,
    truth,
)
from zoo.scripts import FOLDER

import epctx_core as epctx

EPS = (VITISAI, QNN, OPENVINO)
TENSORS = (
    "lightgbm_classes",
    "onnxscript_loop_with_break",
    "paddle_detector_minus_one",
    "quantised_qdq_fixed",
    "sklearn_isolation_forest",
    "tensorflow_sequences_opset13",
)
"""Models whose outputs are tensors, as `epctx run` stores them."""
MAPS = ("sklearn_text_columns", "sklearn_dictionary", "lightgbm_zipmap")


@pytest.mark.parametrize("name", TENSORS)
def test_commands_compile_check_verify_and_run_a_model(name, tmp_path):
    written, results = tmp_path / "m_ctx.onnx", tmp_path / "results.npz"
    eps = [word for ep in EPS for word in ("--ep", ep)]

    flags = ("--check", "--allow-uncompiled")
    assert main(["compile", str(path_of(name)), *eps, "-o", str(written), *flags]) == 0
    assert main(["verify", str(written)]) == 0
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, **read_inputs(FOLDER / f"{name}.npz"))
    given = ["--input", str(inputs), "--output", str(results)]
    assert main(["run", str(written), *given]) == 0

    with np.load(results) as stored:
        assert_results(
            list(stored.values()),
            truth(name).answers[0],
            STEP if name in QUANTISED else 0,
        )


@pytest.mark.parametrize("name", TENSORS + MAPS)
def test_the_cache_gives_the_same_when_it_compiles_and_when_it_loads(name, tmp_path):
    for _ in range(2):
        with epctx.load_or_compile(
            path_of(name), with_eps(*EPS), tmp_path / "cache"
        ) as session:
            assert_compiled(session, name)


@pytest.mark.parametrize(
    "name", ["sklearn_text_columns", "quantised_qdq_fixed", "paddle_detector_minus_one"]
)
def test_isolated_eps_give_the_same(name, tmp_path):
    options = with_eps(*EPS)
    options.add_session_config_entry("ep.isolate", "all")
    written = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(options, path_of(name)).compile_to_file(written)

    with epctx.InferenceSession(written, options) as session:
        assert_compiled(session, name)


def test_a_share_group_of_exports_of_one_network_gives_the_same(tmp_path):
    names = [f"torch_convolutions_opset{opset}" for opset in (7, 9, 11)] + [
        "torch_convolutions"
    ]
    with epctx.ShareGroup(tmp_path) as group:
        for name in names:
            group.compile(path_of(name), with_eps(QNN, OPENVINO))

    for name in names:
        with epctx.InferenceSession(tmp_path / f"{name}_ctx.onnx") as session:
            assert_compiled(session, name)
