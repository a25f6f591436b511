"""What Qualcomm's EP does only in particular states of a process, each tried in a
process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.vendors_onnxruntime import qnn_options
from vendors.vendor_networks import network

BEGIN = """
import sys
import numpy as np
import epctx_core as epctx
options = epctx.SessionOptions()
options.add_provider("epctx-onnxruntime:QNN", eval(sys.argv[1]))
compile = lambda: epctx.ModelCompiler(options, "m.onnx").compile_to_file("m_ctx.onnx")
load = lambda: epctx.InferenceSession("m_ctx.onnx", options)
"""


def in_a_process(folder, body, model=None):
    """Run code where `compile()` and `load()` work on a model, by default a network of
    two partitions; return the finished process.
    """
    content = model.SerializeToString() if model else network("two_parts").model
    (folder / "m.onnx").write_bytes(content)
    code = BEGIN + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", code, repr(qnn_options())],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_context_model_loads_in_a_process_that_compiled_nothing(tmp_path):
    assert in_a_process(tmp_path, "compile()").returncode == 0

    loading = in_a_process(tmp_path, "load().close()")

    assert (loading.returncode, loading.stderr) == (0, loading.stderr)


@pytest.mark.parametrize("attempt", range(4))
def test_a_verdict_after_sessions_have_ended_does_not_end_the_process(
    attempt, tmp_path
):
    # onnxruntime's own call reads freed memory then: one process in four died.
    done = in_a_process(tmp_path, "compile()\nfor _ in range(5): load().close()")

    assert done.returncode == 0, done.stderr


def test_tensors_without_elements_are_left_to_the_cpu_ep_and_do_not_end_the_process(
    tmp_path,
):
    # Qualcomm's compiler divides by their length.
    done = in_a_process(
        tmp_path,
        """
        import onnx
        model = onnx.load("m.onnx")
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 0
        onnx.save(model, "m.onnx")
        explanation = epctx.explain_model("m.onnx", options)
        print(explanation.nodes[0])
        assert len(explanation.left) == len(model.graph.node)
        """,
    )

    assert done.returncode == 0, done.stderr
    assert "'x' has no elements" in done.stdout


@pytest.mark.parametrize("roi", ["initializer", "Constant"])
def test_an_empty_roi_that_a_resize_ignores_does_not_keep_it_from_qnn(roi, tmp_path):
    # torch names one up to opset 12, where the operator has no way to omit it.
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Resize", ["a", "roi", "scales"], ["b"], mode="nearest"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    empty = numpy_helper.from_array(np.empty(0, np.float32), "roi")
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    if roi == "Constant":
        nodes.insert(0, helper.make_node("Constant", [], ["roi"], value=empty))
    graph = helper.make_graph(
        nodes,
        "resized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 8, 8])],
        [scales, empty][: 1 + (roi == "initializer")],
    )
    opsets = [helper.make_opsetid("", 11)]
    done = in_a_process(
        tmp_path,
        """
        explanation = epctx.explain_model("m.onnx", options)
        assert not explanation.left, explanation.left
        compile()
        (y,) = load().run(None, {"x": np.ones((1, 2, 4, 4), np.float32)})
        np.testing.assert_allclose(y, np.ones((1, 2, 8, 8)), atol=1e-3)
        """,
        helper.make_model(graph, opset_imports=opsets, ir_version=8),
    )

    assert done.returncode == 0, done.stderr
