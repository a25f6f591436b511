"""Models of foreign exporters in sessions and context models, checked against onnxruntime's own answers."""

from __future__ import annotations

import pytest
from end_to_end.sim_eps import CPU, OPENVINO, QNN, VITISAI, with_eps
from zoo.onnxruntime_truth import MODELS, assert_compiled, assert_plain, path_of

import epctx_core as epctx

EPS = {"qnn": (QNN,), "openvino": (OPENVINO,), "vitisai": (VITISAI,), "all": (VITISAI, QNN, OPENVINO)}


@pytest.mark.parametrize("name", MODELS)
def test_a_plain_session_gives_what_onnxruntime_gives(name):
    with epctx.InferenceSession(path_of(name), providers=[CPU]) as session:
        assert_plain(session, name)


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("name", MODELS)
def test_each_ep_gives_what_onnxruntime_gives_in_a_session_a_file_and_embedded(name, eps, tmp_path):
    with epctx.InferenceSession(path_of(name), with_eps(*EPS[eps])) as session:
        assert_compiled(session, name)
    for embedded in (False, True):
        written = tmp_path / f"{'embedded' if embedded else 'file'}_ctx.onnx"
        epctx.ModelCompiler(with_eps(*EPS[eps]), path_of(name), embedded).compile_to_file(written)
        with epctx.InferenceSession(written) as session:
            assert_compiled(session, name)


@pytest.mark.parametrize("eps", EPS)
def test_each_ep_has_work_in_the_zoo(eps, tmp_path):
    report = epctx.ModelCompiler(with_eps(*EPS[eps]), path_of("quantised_qdq_fixed")).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    assert sum(partition.nodes for partition in report.partitions) > 15
