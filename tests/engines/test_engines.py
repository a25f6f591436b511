"""Engines compute what the model says, over the weights where they lie, or say what
they lack.
"""

from __future__ import annotations

import gc
import logging
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.graph_models import model, node, tensor, value
from support.models_for_engines import (
    SIZE,
    WITHOUT_ONNXRUNTIME,
    group_model,
    on_the_reference,
    session_engine,
)
from support.witness import partition_of

from epctx_core.errors import InvalidGraph, NotImplementedByProvider


@pytest.fixture(params=["onnxruntime", "onnx.reference"])
def single(request):
    """The engine of a session on onnxruntime and of one on the reference."""
    made = session_engine(
        on_the_reference() if request.param == "onnx.reference" else None
    )
    assert made.name.startswith(request.param)
    return made


def test_a_model_is_run_with_inputs_and_results_in_its_order(single):
    made = model(
        [node("Sub", ["b", "a"], ["d"]), node("Neg", ["d"], ["n"])],
        ["a", "b"],
        ["n", "d"],
    )
    a, b = np.array([1, 2], np.float32), np.array([10, 20], np.float32)

    negated, difference = single.prepare(made).run([a, b])

    assert difference.tolist() == [9, 18]
    assert negated.tolist() == [-9, -18]


def test_given_outputs_are_written_in_place(single):
    target = np.empty(SIZE, np.float32)
    weight = np.arange(SIZE, dtype=np.float32)

    (result,) = single.prepare(group_model(), {"w": weight}).run(
        [np.ones(SIZE, np.float32)], [target]
    )

    assert result is target
    assert target.tolist() == (weight + 1).tolist()


def test_results_never_share_memory_with_inputs(single):
    made = model(
        [node("Identity", ["x"], ["y"]), node("Reshape", ["x", "s"], ["z"])],
        ["x"],
        ["y", value("z", shape=[1, 2])],
        [tensor("s", [1, 2], np.int64)],
    )
    x = np.array([1, 2], np.float32)

    results = single.prepare(made).run([x])

    assert not any(np.may_share_memory(result, x) for result in results)
    assert all(result.flags.c_contiguous for result in results)


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn], ids=["bfloat16", "float8"]
)
def test_types_that_numpy_does_not_have_cross_the_boundary(single, dtype):
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = model(
        [
            node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
            node("Neg", ["f"], ["n"]),
            node("Cast", ["n"], ["y"], to=elem_type),
        ],
        [value("x", elem_type, [2, 2])],
        [value("y", elem_type, [2, 2]), value("f", shape=[2, 2])],
    )
    x = np.array([[1, -2], [0.5, 4]], dtype)

    handle = single.prepare(made)
    narrow, wide = handle.run([x])

    assert (narrow.dtype, narrow.shape) == (np.dtype(dtype), (2, 2))
    assert narrow.astype(np.float32).tolist() == [[-1, 2], [-0.5, -4]]
    assert wide.tolist() == [[1, -2], [0.5, 4]]
    narrow[0, 0] = 0  # the caller's own


def test_an_empty_result_of_such_a_type_has_its_shape(engine):
    made = model(
        [node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)],
        [value("x", shape=["n", 3])],
        [value("y", TensorProto.BFLOAT16, ["n", 3])],
    )

    (result,) = engine.prepare(made).run([np.empty((0, 3), np.float32)])

    assert (result.shape, result.dtype) == ((0, 3), np.dtype(ml_dtypes.bfloat16))


def test_nibbles_on_the_boundary_are_left_to_the_reference(engine, caplog):
    made = model(
        [node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
        [value("x", TensorProto.INT4, [3])],
        [value("y", shape=[3])],
    )

    handle = engine.prepare(made)

    assert handle.run([np.array([-8, 7, 1], ml_dtypes.int4)])[0].tolist() == [-8, 7, 1]
    assert "runs on onnx.reference" in caplog.text
    assert "onnxruntime cannot pass 'x'" in caplog.text


@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.float16, np.int8, np.int64, np.bool_, ml_dtypes.bfloat16],
    ids=lambda t: np.dtype(t).name,
)
def test_weights_of_each_type_are_used(single, dtype):
    weight = np.arange(SIZE).astype(dtype)
    made = group_model(elem_type=helper.np_dtype_to_tensor_dtype(weight.dtype))
    made.graph.node[0].CopyFrom(node("Cast", ["w"], ["y"], to=TensorProto.FLOAT))
    made.graph.output[0].CopyFrom(value("y", shape=[SIZE]))
    del made.graph.input[:]

    (result,) = single.prepare(made, {"w": weight}).run([])

    assert result.tolist() == weight.astype(np.float32).tolist()


def test_weights_of_half_bytes_are_used(single):
    weight = np.array([i % 16 - 8 for i in range(SIZE)], ml_dtypes.int4)
    made = group_model(elem_type=TensorProto.INT4)
    made.graph.node[0].CopyFrom(node("Cast", ["w"], ["y"], to=TensorProto.FLOAT))
    made.graph.output[0].CopyFrom(value("y", shape=[SIZE]))
    del made.graph.input[:]

    (result,) = single.prepare(made, {"w": weight}).run([])

    assert result.tolist() == weight.astype(np.float32).tolist()


def test_weights_may_lie_anywhere_in_memory(single):
    memory = np.zeros(SIZE * 4 + 1, np.uint8)
    odd = memory[1:].view(np.float32)
    odd[:] = np.arange(SIZE)
    spread = np.repeat(np.arange(SIZE, dtype=np.float32), 2)[::2]

    for weight in (odd, spread):
        (result,) = single.prepare(group_model(), {"w": weight}).run(
            [np.ones(SIZE, np.float32)]
        )
        assert result.tolist() == [i + 1 for i in range(SIZE)]


def test_the_model_given_is_left_as_it_is(single):
    # An EP may prepare one model over several sets of weights.
    made = group_model()
    before = made.SerializeToString(deterministic=True)
    x = np.zeros(SIZE, np.float32)

    results = [
        single.prepare(made, {"w": np.full(SIZE, number, np.float32)}).run([x])[0][0]
        for number in (1, 2)
    ]

    assert results == [1, 2]
    assert made.SerializeToString(deterministic=True) == before


def test_a_weight_without_data_is_named(single):
    with pytest.raises(InvalidGraph, match="there is no data for the weight 'w'"):
        single.prepare(group_model(), {"other": np.ones(SIZE, np.float32)})


def test_a_weight_of_another_type_is_refused(engine):
    with pytest.raises(
        InvalidGraph, match="'w' is given as float64, the model says FLOAT"
    ):
        engine.prepare(group_model(), {"w": np.ones(SIZE)})


def test_weights_outlive_what_the_caller_drops(engine):
    handle = engine.prepare(group_model(), {"w": np.full(SIZE, 7, np.float32)})
    gc.collect()
    rubbish = [np.full(SIZE, i, np.float32) for i in range(100)]

    (result,) = handle.run([np.zeros(SIZE, np.float32)])

    assert result.tolist() == [7] * SIZE
    assert len(rubbish) == 100


ZERO_COPY = """
import os, sys
from onnx import TensorProto, helper
import epctx_core as epctx

size = 256 << 20
folder = sys.argv[1]
with open(os.path.join(folder, "w.bin"), "wb") as file:
    file.truncate(size)
rows = size // 4 // 1024
weight = TensorProto(name="w", data_type=1, dims=[rows, 1024], data_location=TensorProto.EXTERNAL)
weight.external_data.add(key="location", value="w.bin")
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
    [helper.make_tensor_value_info("x", 1, [1, rows])], [helper.make_tensor_value_info("y", 1, [1, 1024])],
    [weight],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
path = os.path.join(folder, "m.onnx")
with open(path, "wb") as file:
    file.write(model.SerializeToString())

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

options = epctx.SessionOptions()
options.add_session_config_entry("ep.prefer_latency", "0")
warm = helper.make_graph(
    [helper.make_node("Neg", ["x"], ["y"])], "warm",
    [helper.make_tensor_value_info("x", 1, [1])], [helper.make_tensor_value_info("y", 1, [1])],
)
epctx.InferenceSession(
    helper.make_model(warm, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
)
before = resident()
session = epctx.InferenceSession(path, options)
print(resident() - before)
"""


def test_a_session_over_mapped_weights_holds_no_copy_of_them(tmp_path):
    output = subprocess.check_output(
        [sys.executable, "-c", ZERO_COPY, str(tmp_path)], text=True, timeout=120
    )

    assert int(output) < 64 << 20


def test_what_onnxruntime_lacks_runs_on_the_reference_and_says_so(engine, caplog):
    made = model(
        [node("Tan", ["x"], ["y"])],
        [value("x", TensorProto.DOUBLE)],
        [value("y", TensorProto.DOUBLE)],
    )

    with caplog.at_level(logging.WARNING, "epctx.engines"):
        handle = engine.prepare(made)

    assert np.allclose(handle.run([np.array([0.5, 1])])[0], np.tan([0.5, 1]))
    assert "runs on onnx.reference" in caplog.text
    assert "Tan" in caplog.text


def unknown_operator():
    return model(
        [
            node("Add", ["x", "x"], ["a"], name="plain"),
            helper.make_node("AddSpecial", ["a"], ["y"], domain="own", name="special"),
        ],
        ["x"],
        ["y"],
        opsets=[("", 21), ("own", 1)],
    )


def test_an_operator_that_nobody_has_is_named_with_its_node(engine):
    with pytest.raises(
        NotImplementedByProvider, match=r"'special' \(own::AddSpecial\)"
    ) as caught:
        engine.prepare(unknown_operator())

    assert caught.value.node == "special"
    assert "Add an EP" in str(caught.value)


def test_a_model_that_is_wrong_is_no_lack_of_the_engine(engine):
    wrong = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", shape=[1, 3])],
        [value("y", shape=[1, 2])],
    )
    wrong.graph.initializer.append(tensor("w", np.ones((4, 2))))

    with pytest.raises(
        InvalidGraph, match=r"a group of nodes is wrong: .*Incompatible dimensions"
    ):
        engine.prepare(wrong)


def test_what_follows_from_a_fault_of_a_model_is_not_said(engine):
    wrong = model(
        [
            node("MatMul", ["x", "w"], ["h0"]),
            *(node("Relu", [f"h{i}"], [f"h{i + 1}"]) for i in range(50)),
        ],
        [value("x", shape=[1, 3])],
        [value("h50", shape=[1, 2])],
    )
    wrong.graph.initializer.append(tensor("w", np.ones((4, 2))))

    with pytest.raises(
        InvalidGraph, match=r"MatMul.*Incompatible dimensions"
    ) as caught:
        engine.prepare(wrong)

    assert "Relu" not in str(caught.value)


def test_a_value_that_nothing_makes_is_said_where_there_is_no_other_fault(engine):
    wrong = model(
        [node("Relu", ["absent"], ["y"])],
        [value("x", shape=[2])],
        [value("y", shape=[2])],
    )

    with pytest.raises(InvalidGraph, match=r"absent|expected to have type"):
        engine.prepare(wrong)


def test_the_reference_runs_everything_where_the_host_names_it(caplog):
    engine = session_engine(on_the_reference())
    handle = engine.prepare(group_model(), {"w": np.ones(SIZE, np.float32)})

    assert engine.name == f"onnx.reference {onnx.__version__}"
    assert handle.run([np.zeros(SIZE, np.float32)])[0].tolist() == [1] * SIZE
    assert caplog.text == ""


WITHOUT = f"""{WITHOUT_ONNXRUNTIME}
import numpy as np
import epctx_core as epctx
session = epctx.InferenceSession(sys.argv[1])
print(session.run(None, {{"x": np.array([1, -2], np.float32)}})[0].tolist())
"""


def test_a_process_without_onnxruntime_runs_models(tmp_path):
    made = model([node("Neg", ["x"], ["y"])], ["x"], ["y"])
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    command = [sys.executable, "-c", WITHOUT, str(tmp_path / "m.onnx")]

    output = subprocess.check_output(command, text=True, timeout=60)

    assert output == "[-1.0, 2.0]\n"


def test_the_engine_is_named_with_its_version(engine):
    assert engine.name == f"onnxruntime {onnxruntime.__version__}"


def test_functions_of_the_model_are_run(engine):
    opset = [helper.make_opsetid("", 21)]
    function = helper.make_function(
        "own", "Twice", ["v"], ["r"], [node("Add", ["v", "v"], ["r"])], opset
    )
    made = model(
        [helper.make_node("Twice", ["x"], ["y"], domain="own")],
        ["x"],
        ["y"],
        opsets=[("", 21), ("own", 1)],
        functions=[function],
    )
    proto = partition_of(made, keeps_functions={("own", "Twice")}).model()

    (result,) = engine.prepare(proto).run([np.array([1, 2], np.float32)])

    assert result.tolist() == [2, 4]
