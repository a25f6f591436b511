"""Errors by partition: which partition makes an error, which inherits it, and the
smallest part that has it.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from epctx_bench.partition_errors import compare_partitions, measure_deviation
from epctx_cli.reduction import make_folder, reduce_partition
from support.faulty_ep import FAULTS, ROWS, SIZE, FaultyProvider, Network, find_block

import epctx_core as epctx
from epctx_core.errors import InvalidArgument

pytestmark = pytest.mark.internal

FLOAT16 = 2.0**-11
"""Relative error of rounding to float16."""
INT8_SNR = 36.0
"""dB: rounding of one value to 8 bits has 43 at a peak of three deviations, and each of
the roundings behind each other, of which a partition has up to ten, adds its own.
"""


@pytest.fixture(autouse=True)
def faulty_ep(monkeypatch):
    """Register the EP, without a fault."""
    monkeypatch.setattr(FaultyProvider, "fault", None)
    with epctx.temporary_execution_provider(FaultyProvider):
        yield


def draw_inputs(count=1):
    """Return functions that return drawn inputs."""
    arrays = [
        np.random.default_rng(seed).standard_normal((ROWS, SIZE), np.float32)
        for seed in range(count)
    ]
    return [lambda array=array: {"x": array} for array in arrays]


def compile_network(network, folder):
    """Compile a network with the EP; return context model and source with options."""
    source = folder / "net.onnx"
    onnx.save(network.model, source)
    options = epctx.SessionOptions()
    options.add_provider("Faulty")
    context = folder / "net_ctx.onnx"
    epctx.ModelCompiler(options, source).compile_to_file(context)
    return (str(context), options), (str(source), epctx.SessionOptions())


def is_rounding(row, network):
    """Return whether an error is that of the network's format, float16 or 8 bits."""
    if network.quantized:
        return row.own.worst.snr_db > INT8_SNR
    return row.own.worst.max_rel < 4 * FLOAT16


@pytest.mark.parametrize(
    "seed",
    [
        *range(6),
        *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(6, 30)),
    ],
)
def test_the_partition_with_a_planted_error_is_first_and_reduced_to_three_nodes(
    seed, tmp_path, monkeypatch
):
    quantized = seed % 2 == 1
    network = Network(seed, quantized=quantized)
    fault = network.draw_fault(FAULTS[seed % 3])
    monkeypatch.setattr(FaultyProvider, "fault", fault)
    a, b = compile_network(network, tmp_path)

    errors = compare_partitions(a, b, draw_inputs())
    folder = tmp_path / "reduced"
    folder.mkdir()
    reduced = reduce_partition(a, b, errors.rows[0], draw_inputs(), folder)

    assert len({row.partition for row in errors.rows}) == 12
    assert errors.uncompared == []
    assert find_block(errors.rows[0].output) == fault.block
    assert reduced.reproduced
    assert reduced.nodes <= 3
    assert "MatMul" in reduced.operators
    right = [row for row in errors.rows if find_block(row.output) != fault.block]
    assert [row for row in right if not is_rounding(row, network)] == []


def test_own_and_inherited_errors_are_told_apart(tmp_path, monkeypatch):
    network = Network(2, quantized=False)
    fault = network.draw_fault("transposed")
    monkeypatch.setattr(FaultyProvider, "fault", fault)
    a, b = compile_network(network, tmp_path)

    rows = compare_partitions(a, b, draw_inputs()).rows

    for row in rows:
        block = find_block(row.output)
        own, inherited, total = (
            each.worst for each in (row.own, row.inherited, row.total)
        )
        # Rounding to float16 is inherited, too.
        assert (own.max_rel > 0.01) == (block == fault.block)
        if block <= fault.block:
            assert inherited.max_rel < 0.01
        if block == fault.block + 1:
            assert inherited.max_rel > 0.01
        assert total.max_abs <= own.max_abs + inherited.max_abs


def test_of_many_inputs_the_worst_and_the_mean_are_given(tmp_path):
    a, b = compile_network(Network(4, quantized=False), tmp_path)
    many = draw_inputs(3)

    errors = compare_partitions(a, b, many)

    each = [compare_partitions(a, b, [load]) for load in many]
    assert errors.inputs == 3
    for row in errors.rows:
        alone = [
            next(r.own.worst for r in one.rows if r.output == row.output)
            for one in each
        ]
        largest = [deviation.max_rel for deviation in alone]
        assert row.own.worst.max_rel == max(largest)
        assert row.own.worst.snr_db == min(deviation.snr_db for deviation in alone)
        assert math.isclose(row.own.mean.max_rel, sum(largest) / 3)
        assert row.worst_input == np.argmin([each.snr_db for each in alone])


def test_partitions_are_loaded_as_often_for_many_inputs_as_for_one(tmp_path):
    a, b = compile_network(Network(4, quantized=False), tmp_path)
    counts = []
    for inputs in (draw_inputs(1), draw_inputs(3)):
        before = FaultyProvider.loads
        compare_partitions(a, b, inputs)
        counts.append(FaultyProvider.loads - before)

    # Each once alone, and all in the context model once for each.
    assert counts == [12 + 12 * 12] * 2


def test_an_error_of_the_context_model_alone_is_reported_with_the_whole_part(
    tmp_path, monkeypatch
):
    network = Network(5, quantized=False)
    fault = network.draw_fault("scaled")
    monkeypatch.setattr(FaultyProvider, "fault", fault)
    a, b = compile_network(network, tmp_path)
    monkeypatch.setattr(FaultyProvider, "fault", None)

    row = compare_partitions(a, b, draw_inputs()).rows[0]
    folder = tmp_path / "reduced"
    folder.mkdir()
    reduced = reduce_partition(a, b, row, draw_inputs(), folder)

    assert find_block(row.output) == fault.block
    assert not reduced.reproduced
    assert reduced.error == row.own.worst
    # The context model in the folder is the one with the error.
    feed = dict(np.load(folder / "inputs.npz"))
    expected = np.load(folder / "expected.npz")
    results = {
        name: epctx.InferenceSession(folder / name).run(None, feed)[0]
        for name in ("model.onnx", "model_ctx.onnx")
    }
    right = expected[row.output]
    assert measure_deviation(results["model.onnx"], right).max_rel < FLOAT16
    assert measure_deviation(results["model_ctx.onnx"], right).max_rel == (
        pytest.approx(reduced.error.max_rel)
    )


def test_a_partition_whose_values_the_source_lacks_is_named_with_the_reason(tmp_path):
    a, b = compile_network(Network(6, quantized=False), tmp_path)
    model = onnx.load(b[0])
    end = next(node for node in model.graph.node if node.op_type == "Softsign")
    for node in model.graph.node:
        names = [name.replace(end.output[0], "renamed") for name in node.input]
        node.input[:] = names
    end.output[0] = "renamed"
    onnx.save(model, b[0])

    errors = compare_partitions(a, b, draw_inputs())

    assert len(errors.rows) == 11
    assert len(errors.uncompared) == 1
    assert "b0_end" in errors.uncompared[0].reason


def test_a_model_without_partitions_is_refused(tmp_path):
    _, b = compile_network(Network(7, quantized=False), tmp_path)

    with pytest.raises(InvalidArgument, match="no EPContext node"):
        compare_partitions(b, b, draw_inputs())


def test_a_folder_with_files_is_not_written_to(tmp_path):
    (tmp_path / "notes").touch()

    with pytest.raises(InvalidArgument, match="not empty"):
        make_folder(tmp_path)


@pytest.mark.parametrize(
    ("value", "reference", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], (0.0, 0.0, 0.0, math.inf, 1.0)),
        ([3.0, 4.0], [0.0, 4.0], (3.0, 1.5, 0.75, 20 * math.log10(4 / 3), 0.8)),
        ([math.nan, 1.0], [math.nan, 1.0], (0.0, 0.0, 0.0, math.inf, 1.0)),
        ([math.inf, 1.0], [math.inf, 1.0], (0.0, 0.0, 0.0, math.inf, 1.0)),
        ([], [], (0.0, 0.0, 0.0, math.inf, 1.0)),
    ],
)
def test_numbers_of_a_deviation(value, reference, expected):
    found = measure_deviation(np.array(value), np.array(reference))

    assert tuple(vars(found).values()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_number_where_there_is_none_is_an_infinite_error(wrong):
    found = measure_deviation(np.array([wrong, 1.0]), np.ones(2))

    assert found.max_rel == math.inf
    assert found.snr_db == -math.inf
