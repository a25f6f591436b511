"""Models of foreign exporters in sessions and context models, checked against
onnxruntime's own answers.
"""

from __future__ import annotations

import pytest
from support.models_for_engines import on_the_reference
from support.sim_eps import CPU, with_eps
from zoo.onnxruntime_truth import (
    MODELS,
    QUANTISED,
    STEP,
    assert_compiled,
    assert_plain,
    assert_results,
    path_of,
    truth,
)
from zoo.routes import EPS

import epctx_core as epctx

OPERATORS_OF_ONNXRUNTIME = (
    "quantised_four_bits",
    "quantised_qoperator",
    "sklearn_count",
    "sklearn_tfidf",
)
"""Beginnings of models with operators of com.microsoft, which `onnx.reference` does not
have.
"""


@pytest.mark.parametrize("name", MODELS)
def test_a_plain_session_gives_what_onnxruntime_gives_without_a_warning(name, caplog):
    with epctx.InferenceSession(path_of(name), providers=[CPU]) as session:
        assert_plain(session, name)

    assert [r for r in caplog.records if r.name.startswith("epctx")] == []


@pytest.mark.parametrize("name", MODELS)
def test_on_the_reference_rows_give_the_same_or_an_operator_is_refused(name):
    expected = truth(name)
    if name.startswith(OPERATORS_OF_ONNXRUNTIME):
        with pytest.raises(epctx.NotImplementedByProvider, match=r"com\.microsoft"):
            epctx.InferenceSession(path_of(name), on_the_reference(), providers=[CPU])
        return

    with epctx.InferenceSession(
        path_of(name), on_the_reference(), providers=[CPU]
    ) as session:
        for inputs, results in zip(
            expected.inputs[:2], expected.answers[:2], strict=True
        ):
            assert_results(
                session.run(None, inputs), results, STEP if name in QUANTISED else 0
            )


@pytest.mark.parametrize("name", MODELS)
def test_context_models_give_what_onnxruntime_gives_for_one_row_and_none_too(
    name, tmp_path
):
    written = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(with_eps(*EPS["all"]), path_of(name)).compile_to_file(written)
    with epctx.InferenceSession(written) as session:
        assert_compiled(session, name)


@pytest.mark.parametrize("eps", EPS)
def test_each_ep_has_work_in_the_zoo(eps, tmp_path):
    report = epctx.ModelCompiler(
        with_eps(*EPS[eps]), path_of("quantised_qdq_fixed")
    ).compile_to_file(tmp_path / "m_ctx.onnx")

    assert sum(partition.nodes for partition in report.partitions) > 15
