"""Context models that another tool wrote, or nobody knows who: no manifest, and every
EP in a process of its own.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from end_to_end.engine_eps import Alpha
from end_to_end.sim_eps import OPENVINO, QNN, VITISAI, with_eps
from end_to_end.small_models import chain, example, finished, saved, tensor
from epctx_kernels import KernelDef, KernelProvider, KernelRegistry
from isolation.harness import children, nothing_left, options_for, registry_of
from onnx import helper, numpy_helper

import epctx_core as epctx
from epctx_core.plugin import hookimpl

FLOAT = onnx.TensorProto.FLOAT


class Single(KernelProvider):
    """A kernel for Neg that counts its calls in this process."""

    name = "SingleExecutionProvider"
    calls = 0

    def get_kernel_registry(self):
        return KernelRegistry(
            [
                KernelDef(
                    domain="",
                    op_type="Neg",
                    since_version=13,
                    create=self._neg,
                    type_constraints={"T": {FLOAT}},
                )
            ]
        )

    def _neg(self, _node):
        def run(inputs):
            Single.calls += 1
            return [-inputs[0]]

        return run


class Loading(Alpha, Single):
    """Alpha, with this kernel."""

    name = "LoadingExecutionProvider"
    binary_suffix = "loading"

    @hookimpl
    def get_capability(self, graph):
        compiled = Alpha.get_capability(self, graph)
        return [*compiled, *Single.get_capability(self, graph)]

    @hookimpl
    def compile(self, partitions):
        return [
            base.compile(self, [partition])[0]
            for partition in partitions
            for base in [Alpha if partition.token is None else Single]
        ]


def from_other_process(path):
    """Leave of a context model what any tool writes: its nodes with their EP's
    attributes.
    """
    model = onnx.load(path, load_external_data=False)
    for field in ("metadata_props", "producer_name", "producer_version"):
        model.ClearField(field)
    onnx.save(model, path)
    return path


def convolution():
    """Return an INT8 convolution between floats, and Erf behind it: something for each
    simulated EP.
    """
    weights = {
        "scale": np.float32(2.0**-4),
        "zero": np.int8(0),
        "w": np.random.default_rng(0).integers(-100, 100, (4, 4, 3, 3), dtype=np.int8),
        "w_scale": np.float32(2.0**-9),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["a"]),
        helper.make_node("DequantizeLinear", ["a", "scale", "zero"], ["b"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "zero"], ["c"]),
        helper.make_node("Conv", ["b", "c"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["d", "scale", "zero"], ["e"]),
        helper.make_node("DequantizeLinear", ["e", "scale", "zero"], ["f"]),
        helper.make_node("Tanh", ["f"], ["g"]),
        helper.make_node("IsInf", ["g"], ["h"]),
        helper.make_node("Where", ["h", "scale", "g"], ["i"]),
        helper.make_node("Erf", ["i"], ["y"]),
    ]
    inner = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in weights.items()
    ]
    shape = (1, 4, 8, 8)
    return finished(
        nodes, [tensor("x", shape=shape)], [tensor("y", shape=shape)], inner
    )


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
