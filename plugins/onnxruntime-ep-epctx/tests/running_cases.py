"""Runs of small models and networks on EPs inside onnxruntime."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy_ep
import onnxruntime
from cases import Cases
from onnx import TensorProto, helper
from ort_sessions import (
    FLOAT,
    list_devices,
    list_taken,
    make_model,
    make_options,
    open_session,
    same,
)
from support.agreement import worst_relative_error
from support.networks.catalog import Catalog

import epctx_core as epctx
from epctx_core.plugin import Purpose

node = helper.make_node
QNN, OPENVINO, VITISAI = (
    f"{name}ExecutionProvider" for name in ("QNN", "OpenVINO", "VitisAI")
)
NUMPY, INNER = numpy_ep.NAME, numpy_ep.INNER
NETWORKS = ("resnet", "bert", "lstm", "resnet_int8")
SEEDED = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    """Return small integers as floats: every order of adding gives the same sums."""
    return SEEDED.integers(-8, 8, shape).astype(np.float32)


def compare(
    model: bytes,
    *feeds: dict[str, np.ndarray],
    ep: str = NUMPY,
    optimises: bool = True,
) -> dict[str, Any]:
    """Return the nodes that an EP takes, and whether onnxruntime gives the same with it
    as without it.
    """
    own = open_session(model, "", optimises=optimises)
    with_ep = open_session(model, ep, optimises=optimises)
    return {
        "taken": list_taken(with_ep, ep),
        "same": all(same(with_ep.run(None, f), own.run(None, f)) for f in feeds),
    }


# -- networks
# -----------------------------------------------------------------------------------

networks = Cases()


def run_network(catalog: Catalog, name: str, ep: str, device: int) -> dict[str, Any]:
    """Return how a network runs on a device: against onnxruntime, and against epctx on
    the graph that onnxruntime hands over.
    """
    network = catalog.get(name)
    graph = network.path.with_name("optimised.onnx")
    own = make_options("")
    own.optimized_model_filepath = str(graph)
    own.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    onnxruntime.InferenceSession(str(network.path), own)

    chosen = list_devices(ep)[device]
    options = make_options("")
    options.add_provider_for_devices([chosen], {})
    session = onnxruntime.InferenceSession(str(network.path), options)
    results = session.run(None, network.inputs)

    asked = epctx.SessionOptions()
    asked.graph_optimization_level = epctx.GraphOptimizationLevel.ORT_DISABLE_ALL
    asked.add_provider(ep, dict(chosen.ep_options))
    explained = epctx.explain_model(graph, asked, purpose=Purpose.RUN)
    with epctx.InferenceSession(graph, asked) as compared:
        of_epctx = compared.run(None, network.inputs)
    partitions: dict[int, list[str]] = {}
    for each in explained.nodes:
        if each.partition is not None:
            partitions.setdefault(each.partition, []).append(each.name)
    return {
        "taken": sorted(sorted(names) for names in list_taken(session, ep)),
        "explained": sorted(sorted(names) for names in partitions.values()),
        "error": worst_relative_error(results, network.reference),
        "same as onnxruntime": same(results, network.reference),
        "same as epctx": same(results, of_epctx),
    }


def report_networks() -> None:
    """Run each network on each device of the simulated EPs."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = Catalog(Path(folder))
        for name in NETWORKS:
            for ep in (QNN, OPENVINO, VITISAI):
                for index, device in enumerate(list_devices(ep)):
                    label = f"{name} {ep} {device.ep_options.get('device_type', '')}"
                    run = partial(run_network, catalog, name, ep, index)
                    networks.add_as(label.strip(), run)
        networks.report()


# -- control flow
# -----------------------------------------------------------------------------------

control = Cases()


def make_if() -> bytes:
    """Return a model of an If whose branches read `x` and a weight of the outer
    graph.
    """
    y = helper.make_tensor_value_info("b", FLOAT, [2, 3])
    branches = [
        helper.make_graph(
            [
                node(op, ["x", "w"], ["a"], name=f"inside_{op}"),
                node("Neg", ["a"], ["b"], name=f"inside_neg_{op}"),
            ],
            op,
            [],
            [y],
        )
        for op in ("Add", "Mul")
    ]
    return make_model(
        [
            node(
                "If",
                ["c"],
                ["i"],
                name="if",
                then_branch=branches[0],
                else_branch=branches[1],
            ),
            node("Abs", ["i"], ["y"], name="abs"),
        ],
        {"c": (TensorProto.BOOL, []), "x": (FLOAT, [2, 3])},
        {"y": (FLOAT, [2, 3])},
        {"w": floats(2, 3)},
    )


def make_loop() -> bytes:
    """Return a model of a Loop that adds `x` of the outer graph in each turn, and
    keeps each sum.
    """
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["go_on"], name="inside_go"),
            node("Add", ["sum", "x"], ["next"], name="inside_add"),
            node("Mul", ["next", "x"], ["kept"], name="inside_mul"),
        ],
        "body",
        [
            value("turn", TensorProto.INT64, []),
            value("go", TensorProto.BOOL, []),
            value("sum", FLOAT, [3]),
        ],
        [
            value("go_on", TensorProto.BOOL, []),
            value("next", FLOAT, [3]),
            value("kept", FLOAT, [3]),
        ],
    )
    return make_model(
        [node("Loop", ["n", "goes", "start"], ["last", "all"], name="loop", body=body)],
        {"n": (TensorProto.INT64, []), "x": (FLOAT, [3]), "start": (FLOAT, [3])},
        {"last": (FLOAT, [3]), "all": (FLOAT, ["n", 3])},
        {"goes": np.array(True)},
    )


def make_scan() -> bytes:
    """Return a model of a Scan that sums rows, times `x` of the outer graph."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("Mul", ["row", "x"], ["product"], name="inside_mul"),
            node("Add", ["sum", "product"], ["next"], name="inside_add"),
            node("Neg", ["next"], ["kept"], name="inside_neg"),
        ],
        "body",
        [value("sum", FLOAT, [3]), value("row", FLOAT, [3])],
        [value("next", FLOAT, [3]), value("kept", FLOAT, [3])],
    )
    return make_model(
        [
            node(
                "Scan",
                ["start", "rows"],
                ["last", "all"],
                name="scan",
                body=body,
                num_scan_inputs=1,
            )
        ],
        {"start": (FLOAT, [3]), "rows": (FLOAT, [5, 3]), "x": (FLOAT, [3])},
        {"last": (FLOAT, [3]), "all": (FLOAT, [5, 3])},
    )


def feed_if() -> list[dict[str, np.ndarray]]:
    """Return inputs for each branch."""
    return [{"c": np.array(c), "x": floats(2, 3)} for c in (True, False)]


def feed_loop() -> list[dict[str, np.ndarray]]:
    """Return inputs for no turn and for some."""
    return [
        {"n": np.array(n, np.int64), "x": floats(3), "start": floats(3)}
        for n in (0, 1, 4)
    ]


def feed_scan() -> list[dict[str, np.ndarray]]:
    """Return inputs."""
    return [{"start": floats(3), "rows": floats(5, 3), "x": floats(3)}]


def report_control() -> None:
    """Run If, Loop and Scan on each EP."""
    models = {
        "If": (make_if(), feed_if()),
        "Loop": (make_loop(), feed_loop()),
        "Scan": (make_scan(), feed_scan()),
    }
    for name, (model, feeds) in models.items():
        for ep in (NUMPY, INNER, QNN, OPENVINO):
            # onnx's evaluator fails at a Loop of no turns.
            given = feeds[1:] if (name, ep) == ("Loop", NUMPY) else feeds
            control.add_as(f"{name} {ep}", partial(compare, model, *given, ep=ep))
    control.report()


# -- values
# -----------------------------------------------------------------------------------

values = Cases()


@values.add
def open_batch() -> Any:
    model = make_model(
        [
            node("MatMul", ["x", "w"], ["v"], name="matmul"),
            node("Relu", ["v"], ["y"], name="relu"),
        ],
        {"x": (FLOAT, ["n", 4])},
        {"y": (FLOAT, ["n", 5])},
        {"w": floats(4, 5)},
    )
    return compare(model, *({"x": floats(n, 4)} for n in (1, 3, 8, 0, 3)))


@values.add
def shape_of_values() -> Any:
    model = make_model(
        [
            node("NonZero", ["x"], ["v"], name="nonzero"),
            node("Transpose", ["v"], ["y"], name="transpose"),
        ],
        {"x": (FLOAT, [3, 4])},
        {"y": (TensorProto.INT64, None)},
    )
    return compare(
        model,
        *({"x": floats(3, 4)} for _ in range(3)),
        {"x": np.zeros((3, 4), np.float32)},
    )


@values.add
def ranks() -> Any:
    found = []
    for rank in range(13):
        shape = [2 if axis in (0, 5, 11) else 1 for axis in range(rank)]
        for declared in (shape, [f"n{axis}" for axis in range(rank)]):
            model = make_model(
                [node("Neg", ["x"], ["y"], name="neg")],
                {"x": (FLOAT, declared)},
                {"y": (FLOAT, declared)},
            )
            found.append(compare(model, {"x": floats(*shape)}))
    return found


@values.add
def zero_sizes() -> Any:
    found = []
    for shape in ((0,), (0, 3), (2, 0, 4)):
        for declared in (shape, [f"n{axis}" for axis in range(len(shape))]):
            model = make_model(
                [
                    node("Neg", ["x"], ["v"], name="neg"),
                    node("Add", ["v", "x"], ["y"], name="add"),
                ],
                {"x": (FLOAT, declared)},
                {"y": (FLOAT, declared)},
            )
            found.append(compare(model, {"x": np.zeros(shape, np.float32)}))
    return found


@values.add
def many_inputs_and_outputs() -> Any:
    # Their numbers are no order of their texts: x10 is before x2.
    count = 40
    model = make_model(
        [
            node("Sub", [f"x{i}", f"x{(i + 1) % count}"], [f"y{i}"], name=f"sub{i}")
            for i in reversed(range(count))
        ],
        {f"x{i}": (FLOAT, [3]) for i in range(count)},
        {f"y{i}": (FLOAT, [3]) for i in range(count)},
    )
    return compare(model, {f"x{i}": floats(3) for i in range(count)})


@values.add
def inputs_left_out() -> Any:
    model = make_model(
        [
            node("Clip", ["x", "", "high"], ["v"], name="clip"),
            node("Neg", ["v"], ["y"], name="neg"),
        ],
        {"x": (FLOAT, [4]), "high": (FLOAT, [])},
        {"y": (FLOAT, [4])},
    )
    return compare(model, {"x": floats(4), "high": np.array(2, np.float32)})


TYPES = [
    "BOOL",
    "INT8",
    "UINT8",
    "INT16",
    "UINT16",
    "INT32",
    "UINT32",
    "INT64",
    "UINT64",
    "FLOAT16",
    "DOUBLE",
    "BFLOAT16",
    "FLOAT8E4M3FN",
    "FLOAT8E5M2",
    "INT4",
    "UINT4",
]


@values.add
def types_of_boundaries() -> Any:
    found = {}
    for name in TYPES:
        element = getattr(TensorProto, name)
        model = make_model(
            [
                node("Cast", ["x"], ["a"], name="cpu_in", to=element),
                node("Cast", ["a"], ["b"], name="cast", to=FLOAT),
                node("Abs", ["b"], ["c"], name="abs"),
                node("Cast", ["c"], ["d"], name="cast_back", to=element),
                node("Cast", ["d"], ["y"], name="cpu_out", to=FLOAT),
            ],
            {"x": (FLOAT, [6])},
            {"y": (FLOAT, [6])},
        )
        x = np.array([0, 1, 2, 3, 1, 0], np.float32)
        try:
            found[name] = compare(model, {"x": x}, optimises=False)
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
            found[name] = str(error)
    return found


@values.add
def default_inputs() -> Any:
    model = make_model(
        [node("Mul", ["x", "w"], ["y"], name="mul")],
        {"x": (FLOAT, [3]), "w": (FLOAT, [3])},
        {"y": (FLOAT, [3])},
        {"w": floats(3)},
    )
    return compare(model, {"x": floats(3)}, {"x": floats(3), "w": floats(3)})


@values.add
def output_read_inside() -> Any:
    model = make_model(
        [
            node("Neg", ["x"], ["y"], name="neg"),
            node("Mul", ["y", "x"], ["z"], name="mul"),
        ],
        {"x": (FLOAT, [3])},
        {"y": (FLOAT, [3]), "z": (FLOAT, [3])},
    )
    return compare(model, {"x": floats(3)})


@values.add
def one_tensor_twice() -> Any:
    model = make_model(
        [
            node("Sub", ["a", "b"], ["v"], name="sub"),
            node("Mul", ["v", "v"], ["w"], name="mul"),
            node("Add", ["w", "a"], ["y"], name="add"),
        ],
        {"a": (FLOAT, [3]), "b": (FLOAT, [3])},
        {"y": (FLOAT, [3])},
    )
    x = floats(3)
    return compare(model, {"a": x, "b": x})


@values.add
def folded_constants() -> Any:
    model = make_model(
        [
            node("Add", ["p", "q"], ["w"], name="folded"),
            node("Mul", ["x", "w"], ["y"], name="mul"),
        ],
        {"x": (FLOAT, [3])},
        {"y": (FLOAT, [3])},
        {"p": floats(3), "q": floats(3)},
    )
    return compare(model, {"x": floats(3)})


@values.add
def strings() -> Any:
    model = make_model(
        [
            node("Identity", ["s"], ["t"], name="text"),
            node("Neg", ["x"], ["y"], name="neg"),
        ],
        {"s": (TensorProto.STRING, [2]), "x": (FLOAT, [2])},
        {"t": (TensorProto.STRING, [2]), "y": (FLOAT, [2])},
    )
    return compare(model, {"s": np.array(["a", "ä"], object), "x": floats(2)})


# -- sessions
# -----------------------------------------------------------------------------------

sessions = Cases()


def make_branches() -> bytes:
    """Return a model with branches of partitions of several EPs, which may run at the
    same time.
    """
    return make_model(
        [
            node("Mul", ["x", "w"], ["a"], name="mul"),
            node("Floor", ["a"], ["b"], name="floor"),
            node("Add", ["b", "x"], ["y0"], name="add"),
            node("Relu", ["x"], ["c"], name="cpu_relu"),
            node("Sqrt", ["c"], ["y1"], name="sqrt"),
            node("IsNaN", ["x"], ["d"], name="isnan"),
            node("Cast", ["d"], ["y2"], name="cpu_cast", to=FLOAT),
        ],
        {"x": (FLOAT, [2, 3])},
        {f"y{i}": (FLOAT, [2, 3]) for i in range(3)},
        {"w": floats(3)},
    )


@sessions.add
def parallel() -> Any:
    model = make_branches()
    eps = (NUMPY, OPENVINO, QNN)
    options = make_options(eps)
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 3
    session = onnxruntime.InferenceSession(model, options)
    own = open_session(model, "")
    feeds = [{"x": floats(2, 3)} for _ in range(100)]
    return {
        "partitions": {ep: list_taken(session, ep) for ep in eps},
        "wrong": sum(not same(session.run(None, f), own.run(None, f)) for f in feeds),
    }


@sessions.add
def two_eps() -> Any:
    model = make_model(
        [
            node("Gemm", ["x", "w"], ["a"], name="gemm"),
            node("Erf", ["a"], ["b"], name="erf"),
            node("IsNaN", ["b"], ["c"], name="isnan"),
            node("Where", ["c", "x", "b"], ["d"], name="where"),
            node("Neg", ["d"], ["y"], name="neg"),
        ],
        {"x": (FLOAT, [3, 3])},
        {"y": (FLOAT, [3, 3])},
        {"w": floats(3, 3)},
    )
    x = {"x": floats(3, 3)}
    own = open_session(model, "").run(None, x)
    found = {}
    for eps in ((QNN, NUMPY), (NUMPY, QNN), (QNN, OPENVINO)):
        session = open_session(model, eps)
        found[" ".join(eps)] = {
            "taken": [list_taken(session, ep) for ep in eps],
            "error": worst_relative_error(session.run(None, x), own),
        }
    return found


@sessions.add
def bindings() -> Any:
    found = []
    for length in (4, "n"):
        model = make_model(
            [
                node("Neg", ["x"], ["y"], name="neg"),
                node("Add", ["y", "x2"], ["z"], name="add"),
            ],
            {"x": (FLOAT, [length]), "x2": (FLOAT, [length])},
            {"y": (FLOAT, [length]), "z": (FLOAT, [length])},
        )
        session = open_session(model, NUMPY)
        for _ in range(3):
            x, x2, y = floats(4), floats(4), np.zeros(4, np.float32)
            target = onnxruntime.OrtValue.ortvalue_from_numpy(y)
            binding = session.io_binding()
            binding.bind_cpu_input("x", x)
            binding.bind_cpu_input("x2", x2)
            binding.bind_ortvalue_output("y", target)
            binding.bind_output("z")
            session.run_with_iobinding(binding)
            results = [target.numpy(), binding.copy_outputs_to_cpu()[1]]
            found.append(same(results, [-x, x2 - x]))
    return found
