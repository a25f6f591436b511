"""Errors by partition of real vendors' EPs: a wrong operator in one of twelve
partitions is found, and reduced to the operator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from epctx_bench.partition_errors import (
    compare_partitions,
    measure_deviation,
    open_values,
    run_values,
)
from epctx_cli.reduction import reduce_partition
from support.faulty_ep import FAULTS, ROWS, SIZE, Network, find_block, plant
from support.vendor_routes import route

import epctx_core as epctx
from epctx_core.plugin import ComputeCapability, hookimpl


class Case(NamedTuple):
    """An EP, the form of its networks, and the signal-to-noise ratio in dB that its
    rounding does not fall below.
    """

    route: str
    quantized: bool
    rounding: float


CASES = {
    "QNN in half precision": Case("epctx with QNN", False, 58.0),
    # QNN's Tanh is a table, and each of up to ten values behind each other is rounded.
    "QNN in 8 bits": Case("epctx with QNN", True, 32.0),
    "OpenVINO in float32": Case("epctx-openvino", False, 120.0),
    "OpenVINO in 8 bits": Case("epctx-openvino", True, 32.0),
}
ACTIVATIONS = ("Relu", "Tanh")
"""QNN leaves a quantised LeakyRelu to the CPU EP."""
QUANTISERS = {"QuantizeLinear", "DequantizeLinear"}
REFERENCE = epctx.SessionOptions()


class Planting:
    """Host plugin that gives what is compiled a fault, and keeps Softsign, which stands
    between the partitions, off OpenVINO; QNN refuses it.
    """

    version = "1"

    def __init__(self, fault):
        self.fault = fault

    @hookimpl
    def transform_model(self, model):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        return changed if plant(changed.graph, self.fault) else None

    @hookimpl(wrapper=True)
    def get_capability(self, graph):
        claims = yield
        changed = []
        for claim in claims:
            if not isinstance(claim, ComputeCapability) or claim.exact:
                changed.append(claim)
                continue
            kept = [node for node in claim.nodes if node.op_type != "Softsign"]
            groups = graph.convex_groups(kept)
            changed += [replace(claim, nodes=group) for group in groups]
        return changed


def draw_input(seed):
    array = np.random.default_rng(seed).standard_normal((ROWS, SIZE), np.float32)
    return {"x": array}


def draw_visible_fault(network, name, feed, case, folder):
    """Return a drawn fault that changes its partition's result by more than rounding:
    5 % of a weight may be less than a step of 8 bits, which nobody can see.
    """
    right, wrong = folder / "right.onnx", folder / "wrong.onnx"
    onnx.save(network.model, right)
    while True:
        fault = network.draw_fault(name)
        planted = onnx.ModelProto.FromString(network.model.SerializeToString())
        plant(planted.graph, fault)
        onnx.save(planted, wrong)
        end = [
            name
            for node in planted.graph.node
            for name in node.output
            if name.startswith(f"b{fault.block}_")
        ][-1]
        value = onnx.helper.make_tensor_value_info(
            end, onnx.TensorProto.FLOAT, [ROWS, SIZE]
        )
        results = []
        for path in (wrong, right):
            with open_values((str(path), REFERENCE), [value]) as session:
                results.append(run_values(session, feed)[end])
        if measure_deviation(*results).snr_db < case.rounding:
            return fault


def compile_network(network, case, fault, folder):
    """Compile a network with a fault or none; return context model and source, with
    options.
    """
    source = folder / "net.onnx"
    onnx.save(network.model, source)
    options = route(case.route).session_options()
    options.add_host_plugin(Planting(fault))
    context = folder / "net_ctx.onnx"
    epctx.ModelCompiler(options, source).compile_to_file(context)
    return (str(context), options), (str(source), REFERENCE)


@pytest.mark.parametrize(
    "seed",
    [
        *range(3),
        *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(3, 30)),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_operator_of_a_vendors_ep_is_first_and_reduced_to_three_nodes(
    name, seed, tmp_path
):
    case = CASES[name]
    network = Network(seed, quantized=case.quantized, activations=ACTIVATIONS)
    feed = draw_input(seed)
    fault = draw_visible_fault(network, FAULTS[seed % 3], feed, case, tmp_path)
    a, b = compile_network(network, case, fault, tmp_path)

    errors = compare_partitions(a, b, [lambda: feed])
    folder = tmp_path / "reduced"
    folder.mkdir()
    reduced = reduce_partition(a, b, errors.rows[0], [lambda: feed], folder)

    assert len({row.partition for row in errors.rows}) == 12
    assert errors.uncompared == []
    assert find_block(errors.rows[0].output) == fault.block
    right = [row for row in errors.rows if find_block(row.output) != fault.block]
    assert [row for row in right if row.own.worst.snr_db < case.rounding] == []
    assert reduced.reproduced
    assert "MatMul" in reduced.operators
    if name == "QNN in 8 bits":
        # For QNN an operator with the quantisers around it is one.
        assert len([op for op in reduced.operators if op not in QUANTISERS]) <= 3
    else:
        assert reduced.nodes <= 3


@pytest.mark.parametrize(
    "seed",
    [30, *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(31, 40))],
)
@pytest.mark.parametrize("name", CASES)
def test_partitions_that_are_right_have_the_rounding_of_their_format_alone(
    name, seed, tmp_path
):
    case = CASES[name]
    network = Network(seed, quantized=case.quantized, activations=ACTIVATIONS)
    a, b = compile_network(network, case, None, tmp_path)

    errors = compare_partitions(a, b, [lambda: draw_input(seed)])

    assert len({row.partition for row in errors.rows}) == 12
    assert [row for row in errors.rows if row.own.worst.snr_db < case.rounding] == []
