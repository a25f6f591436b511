"""The filled networks answer to their input, strongly enough that a wrong layer would
show.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.agreement import TOLERANCE, relative_error, worst_relative_error
from support.networks import fill
from support.networks.catalog import EXPORTED, LARGE, run_onnxruntime
from support.networks.matrix import DEEP

RARE = {*LARGE, *DEEP[2:]}
NETWORKS = [
    pytest.param(n, marks=[pytest.mark.stress] if n in RARE else [])
    for n in fill.NETWORKS
]
SMALLER = [parameter for parameter in NETWORKS if parameter.values[0] not in LARGE]


def logits(path):
    """Return the model's answer to two inputs, taken before the last Softmax."""
    model = onnx.load(path, load_external_data=False)
    last = model.graph.node[-1]
    if last.op_type == "Softmax":
        model.graph.output[0].name = last.input[0]
        model.graph.output[0].type.tensor_type.ClearField("shape")
        del model.graph.node[-1]
    shown = path.with_name("logits.onnx")
    onnx.save(model, shown)
    shape = [
        dimension.dim_value
        for dimension in model.graph.input[0].type.tensor_type.shape.dim
    ]
    generator = np.random.default_rng(5)
    feeds = [generator.standard_normal(shape, dtype=np.float32) for _ in range(2)]
    return [
        run_onnxruntime(shown, {model.graph.input[0].name: feed})[0] for feed in feeds
    ]


@pytest.mark.parametrize("name", NETWORKS)
def test_two_inputs_give_clearly_different_outputs(network, name):
    one, other = network(name, seed=0), network(name, seed=1)

    error = relative_error(one.reference[0], other.reference[0])

    assert np.isfinite(one.reference[0]).all()
    assert 0.05 < error < float("inf")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_signal_neither_dies_nor_explodes_and_the_softmax_is_not_one_hot(
    network, name
):
    first, second = logits(network(name).path)

    assert 0.3 < first.std() < 8
    assert (first - second).std() > 0.05 * first.std()
    probability = np.exp(first - first.max())
    assert (probability / probability.sum()).max() < 0.9


@pytest.mark.parametrize("name", SMALLER)
def test_no_weight_is_constant_and_only_data_is_an_input(network, name):
    graph = onnx.load(network(name).path).graph

    floats = [
        tensor
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
    ]

    assert len(graph.input) == 1
    assert all(
        dimension.dim_value > 0
        for dimension in graph.input[0].type.tensor_type.shape.dim
    )
    assert "ConstantOfShape" not in {node.op_type for node in graph.node}
    assert all(onnx.numpy_helper.to_array(tensor).std() > 0 for tensor in floats)


@pytest.mark.parametrize("name", SMALLER)
def test_all_nodes_but_the_constants_stay_as_they_were(network, name):
    light = onnx.load(
        Path(onnx.__file__).parent / "backend/test/data/light" / f"light_{name}.onnx"
    ).graph

    filled = onnx.load(network(name).path).graph

    assert list(filled.node) == [
        node for node in light.node if node.op_type != "ConstantOfShape"
    ]
    assert list(filled.output) == list(light.output)


def test_a_variance_is_between_a_half_and_one_and_a_half(network):
    graph = onnx.load(network("densenet121").path).graph
    weights = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer
    }

    variances = [
        weights[node.input[4]]
        for node in graph.node
        if node.op_type == "BatchNormalization"
    ]

    assert len(variances) == 121
    assert min(variance.min() for variance in variances) >= 0.5
    assert max(variance.max() for variance in variances) <= 1.5


def test_a_seed_gives_the_same_bytes_in_another_process_and_another_seed_does_not(
    tmp_path,
):
    script = [sys.executable, fill.__file__, "squeezenet"]
    for output, seed in (("a.onnx", "3"), ("b.onnx", "3"), ("c.onnx", "4")):
        subprocess.run(
            [*script, tmp_path / output, "--seed", seed], check=True, timeout=60
        )

    a, b, c = (
        (tmp_path / output).read_bytes() for output in ("a.onnx", "b.onnx", "c.onnx")
    )

    assert a == b
    assert a != c


def test_external_weights_give_the_same_answer_and_are_not_appended_to_an_older_file(
    network, tmp_path
):
    inline = network("squeezenet")
    for _ in range(2):
        fill.save(fill.fill("squeezenet"), tmp_path / "squeezenet.onnx", external=True)

    results = run_onnxruntime(tmp_path / "squeezenet.onnx", inline.inputs)

    assert worst_relative_error(results, inline.reference) == 0
    assert (tmp_path / "squeezenet.onnx").stat().st_size < 100_000
    assert (
        tmp_path / "squeezenet.onnx.data"
    ).stat().st_size < inline.path.stat().st_size


def test_an_unknown_network_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no light network 'resnet51'.*resnet50"):
        fill.fill("resnet51")


@pytest.mark.parametrize("name", EXPORTED)
def test_the_stored_reference_of_an_exported_network_is_what_onnxruntime_gives_here(
    network, name
):
    exported = network(name)

    results = run_onnxruntime(exported.path, exported.inputs)

    assert worst_relative_error(results, exported.reference) <= TOLERANCE


@pytest.mark.parametrize("name", [*EXPORTED, "squeezenet"])
def test_each_test_gets_a_copy_of_its_own(network, name):
    one = network(name)
    one.path.write_bytes(b"changed")
    one.reference[0][:] = 0

    other = network(name)

    assert other.path != one.path
    onnx.checker.check_model(onnx.load(other.path))
    assert np.abs(other.reference[0]).max() > 0


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_network_answers_to_other_inputs(network, name):
    assert (
        worst_relative_error(network(name, seed=1).reference, network(name).reference)
        > 0.05
    )


def test_results_of_another_type_shape_or_number_or_with_a_nan_never_agree():
    zeros = np.zeros(3, np.float32)

    assert relative_error(zeros, zeros) == 0
    assert relative_error(zeros.astype(np.float64), zeros) == float("inf")
    assert relative_error(zeros[:2], zeros) == float("inf")
    assert relative_error(np.full(3, np.nan, np.float32), zeros) == float("inf")
    assert worst_relative_error([], [zeros]) == float("inf")
