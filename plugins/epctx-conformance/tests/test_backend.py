"""epctx behind ONNX's backend interface: a model, a node, on EPs, directly and over
context models.
"""

from __future__ import annotations

import tempfile

import numpy as np
import onnx
import pytest
from support.agreement_of_routes import model_of
from support.engine_eps import Alpha
from support.onnxruntime_results import onnxruntime_result

from epctx_core import backend
from epctx_core.errors import InvalidArgument, InvalidGraph, NotImplementedByProvider

WAYS = ("direct", "file", "embed")
MODEL = model_of("""
    agraph (float[4] x, float[4] z) => (float[4] y, float[4] d) {
        a = Relu(x)
        b = Neg(a)
        d = Add(a, z)
        y = Mul(b, d)
    }""")
X, Z = np.float32([1, -2, 3, -4]), np.float32([5, 6, 7, 8])


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder in which temporary ones are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("through", WAYS)
def test_a_model_gives_onnxruntimes_results_on_each_way_and_leaves_nothing_behind(
    through, temporary
):
    source = temporary / "m.onnx"
    onnx.save(MODEL, source)
    expected = onnxruntime_result(source, {"x": X, "z": Z})

    with backend.prepare(MODEL, providers=[Alpha], through=through) as rep:
        by_order, by_name = rep.run([X, Z]), rep.run({"z": Z, "x": X})
        files = sorted(path.name for path in temporary.rglob("*") if path.is_file())

    np.testing.assert_array_equal(by_order, expected)
    np.testing.assert_array_equal(by_name, expected)
    assert rep.claimed == 2
    assert files == (
        ["m.onnx"]
        if through != "file"
        else ["m.onnx", "model_alpha.bin", "model_ctx.onnx"]
    )
    assert [path.name for path in temporary.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("through", WAYS)
def test_a_model_that_is_refused_leaves_no_file_behind(through, temporary):
    broken = model_of("agraph (float[4] x) => (float[4] y) { y = Relu(nothing) }")

    with pytest.raises(InvalidGraph):
        backend.prepare(broken, providers=[Alpha], through=through)

    assert list(temporary.iterdir()) == []


def test_installed_eps_go_by_their_names_with_options_and_config_entries():
    providers = [("QNN", {"htp_arch": "73"})]
    options = {"session.disable_cpu_ep_fallback": "1", "graph_optimization_level": 0}

    with backend.prepare(MODEL, "CPU", providers, "embed", **options) as rep:
        assert rep.claimed == 4
    with pytest.raises(InvalidArgument, match="no_such_option"):
        backend.prepare(MODEL, providers=[("QNN", {"no_such_option": "1"})])
    with pytest.raises(InvalidArgument, match="'QNN' is a text"):
        backend.prepare(MODEL, providers="QNN")
    with pytest.raises(AttributeError, match="no_such_attribute"):
        backend.prepare(MODEL, no_such_attribute=1)


def test_a_model_may_be_bytes_or_a_path_and_an_only_input_stands_for_itself(tmp_path):
    model = model_of("agraph (float[4] x) => (float[4] y) { y = Relu(x) }")
    onnx.save(model, tmp_path / "m.onnx")

    for given in (
        model.SerializeToString(),
        tmp_path / "m.onnx",
        str(tmp_path / "m.onnx"),
    ):
        (y,) = backend.run_model(given, X)
        np.testing.assert_array_equal(y, [1, 0, 3, 0])
    (y,) = backend.run(model, [X], "CPU", providers=[Alpha], through="file")
    np.testing.assert_array_equal(y, [1, 0, 3, 0])


def test_a_node_alone_is_refused_as_by_onnxruntime_and_the_hint_names_the_way():
    node = onnx.helper.make_node("Neg", ["x"], ["y"])

    with pytest.raises(NotImplementedByProvider, match=r"onnx\.helper\.make_model"):
        backend.run_node(node, [X])


def test_inputs_and_outputs_are_in_the_cpus_memory():
    assert backend.supports_device("CPU")
    assert backend.is_compatible(MODEL)
    for device in ("CUDA", "CUDA:1", "NPU", ""):
        assert not backend.supports_device(device)
    with pytest.raises(InvalidArgument, match="device 'CUDA'"):
        backend.prepare(MODEL, "CUDA")
    with pytest.raises(InvalidArgument, match="through='memory'"):
        backend.prepare(MODEL, through="memory")


def test_a_backend_with_other_defaults_takes_what_a_call_says_all_the_same():
    bound = backend.make_backend([Alpha], "embed")

    with (
        bound.prepare(MODEL) as by_default,
        bound.prepare(MODEL, providers=[], through="direct") as said,
    ):
        np.testing.assert_array_equal(by_default.run([X, Z]), said.run([X, Z]))
    assert [by_default.claimed, said.claimed] == [2, 0]
    assert bound.supports_device("CPU")
    assert not backend.EpctxBackend.prepare(MODEL).claimed
