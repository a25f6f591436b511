"""Context models that another tool wrote, or nobody knows who: no manifest, and every
EP in a process of its own.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.counting_kernels import Loading, Single
from support.engine_eps import Alpha
from support.foreign_models import convolution, from_other_process
from support.isolation import children, nothing_left, options_for, registry_of
from support.sim_eps import OPENVINO, QNN, VITISAI, with_eps
from support.small_models import chain, example, saved

import epctx_core as epctx


@pytest.mark.parametrize("embedded", [False, True], ids=["file", "embedded"])
def test_payloads_of_every_simulated_ep_run_isolated_without_a_manifest(
    tmp_path, temporary, embedded
):
    model, eps = saved(convolution(), tmp_path / "m.onnx"), (VITISAI, QNN, OPENVINO)
    epctx.ModelCompiler(with_eps(*eps), model, embedded).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )
    path = from_other_process(tmp_path / "m_ctx.onnx")
    x = {"x": np.random.default_rng(1).standard_normal((1, 4, 8, 8), dtype=np.float32)}
    with epctx.InferenceSession(path) as session:
        assert {*eps} <= {*session.get_providers()}
        (expected,) = session.run(None, x)
    before = children()

    with (
        nothing_left(temporary),
        epctx.InferenceSession(path, options_for(isolate="all")) as session,
    ):
        (result,) = session.run(None, x)
        there = len(children() - before)

    assert np.array_equal(result, expected)
    assert there == 1


def test_kernels_of_an_ep_run_in_its_process_where_its_payload_runs_isolated(
    tmp_path, temporary
):
    model, registry = (
        saved(chain(("Add", "Neg", "Relu")), tmp_path / "m.onnx"),
        registry_of(Loading),
    )
    options = options_for(Loading, isolate="")
    epctx.ModelCompiler(options, model, registry=registry).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )
    path = from_other_process(tmp_path / "m_ctx.onnx")
    with epctx.InferenceSession(path, options, registry=registry) as session:
        (expected,) = session.run(None, {"x": example()})
    calls = Single.calls

    isolated = options_for(Loading, isolate="all")
    with (
        nothing_left(temporary),
        epctx.InferenceSession(path, isolated, registry=registry) as session,
    ):
        (result,) = session.run(None, {"x": example()})

    assert np.array_equal(result, expected)
    assert calls
    assert Single.calls == calls


def test_an_ep_that_a_manifest_names_for_its_kernels_alone_runs_them_in_its_process(
    tmp_path,
):
    model, registry = (
        saved(chain(("Add", "Neg", "Relu")), tmp_path / "m.onnx"),
        registry_of(Alpha, Single),
    )
    options = options_for(Alpha, Single, isolate="")
    epctx.ModelCompiler(options, model, registry=registry).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )
    with epctx.InferenceSession(
        tmp_path / "m_ctx.onnx", options, registry=registry
    ) as session:
        (expected,) = session.run(None, {"x": example()})
    calls = Single.calls

    with epctx.InferenceSession(
        tmp_path / "m_ctx.onnx", options_for(isolate="all"), registry=registry
    ) as session:
        (result,) = session.run(None, {"x": example()})
        eps = session.get_providers()

    assert calls
    assert Single.calls == calls
    assert Single.name in eps
    assert np.array_equal(result, expected)


def test_kernels_cannot_run_here_what_another_process_claimed(tmp_path):
    model = saved(chain(("Add", "Neg", "Relu")), tmp_path / "m.onnx")
    options = options_for(Single, isolate="compile")

    with pytest.raises(epctx.InvalidArgument, match=r"ep\.isolate=compile") as caught:
        epctx.InferenceSession(model, options, registry=registry_of(Single))

    assert "ep.isolate=all" in caught.value.hint
