"""Seeds of the fuzzer: small folders with a model and its files, written by this
project.

Each is one way for foreign bytes into a host: context models of the simulated EPs,
payloads in files and in the model, a body that holds an EP's work, functions, weights
in a file, weights that a compile left over in a file with a seal, custom operators that
a compile left over with what it says of their types, weights that a payload left in the
source model, text, vendors' own files, and inputs as `.npz`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from support.acme import Acme, kernel_ep, model_of, scaling
from support.folders import REAL
from support.sim_eps import OPENVINO, QNN, VITISAI
from support.small_models import chain, finished, saved, tensor

import epctx_core as epctx

INDEX = "seeds.json"
NPZ = "in.npz"
EPS = {"vitisai": VITISAI, "qnn": QNN, "openvino": OPENVINO}
"""In the order in which they share a network, so that each finds work."""
KERNEL_EP = kernel_ep(scaling(), described=())
"""The EP that a load finds for custom operators; it says nothing of their types, so
what the model says counts.
"""


def write_seeds(folder: Path) -> None:
    """Write every seed into a folder of its own, and which of its files is the
    model.
    """
    models: dict[str, str] = {}
    for name in (*EPS, "mixed"):
        for embed in (False, True):
            models[f"{name}_embedded" if embed else f"{name}_file"] = "m_ctx.onnx"
            _compiled(
                folder / (f"{name}_embedded" if embed else f"{name}_file"),
                name,
                embed=embed,
            )
    for name, model in (
        ("body", _if()),
        ("functions", _functions()),
        ("kinds", _kinds()),
    ):
        models[name] = "m.onnx"
        (folder / name).mkdir()
        saved(model, folder / name / "m.onnx")
    models["weights"] = _with_weights_outside(folder / "weights")
    models["kernels"] = _with_custom_operators(folder / "kernels")
    models["initializers"] = _with_initializers_outside(folder / "initializers")
    models["weightless"] = _weightless(folder / "weightless")
    embedded = (folder / "qnn_embedded" / "m_ctx.onnx").read_bytes()
    models["body_qnn"] = _in_a_body(embedded, folder / "body_qnn")
    for name, files in (
        ("real_qnn", ("qnn_ctx0.onnx", "qnn_ctx0_qnn.bin")),
        ("real_qnn_embedded", ("qnn_ctx1.onnx",)),
        ("real_openvino", ("ov_ctx0.onnx", "ov_ctx0_OpenVINOExecutionProvider.bin")),
        ("real_share", ("share2_ctx.onnx", "share1_qnn.bin")),
    ):
        (folder / name).mkdir()
        for file in files:
            shutil.copy(REAL / file, folder / name / file)
        models[name] = files[0]
    (folder / "npz").mkdir()
    np.savez_compressed(
        folder / "npz" / NPZ, x=np.ones((2, 3), np.float32), y=np.array(["a", "bc"])
    )
    models["npz"] = NPZ
    (folder / INDEX).write_text(json.dumps(models), encoding="utf-8")


def _compiled(folder: Path, name: str, *, embed: bool) -> None:
    folder.mkdir()
    source = saved(_quantised(), folder / "m.onnx")
    options = epctx.SessionOptions()
    for ep in EPS.values() if name == "mixed" else (EPS[name],):
        options.add_provider(ep)
    epctx.ModelCompiler(options, source, embed).compile_to_file(folder / "m_ctx.onnx")
    source.unlink()


def _quantised() -> onnx.ModelProto:
    """Return quantised convolutions, which VitisAI takes, around what the other EPs
    take or leave.
    """
    generator = np.random.default_rng(7)
    weights = {
        "s": np.float32(2.0**-4), "z": np.int8(0), "sw": np.float32(2.0**-7),
        "sb": np.float32(2.0**-11), "zb": np.int32(0),
        "a": np.ones((1, 4, 1, 1), np.float32),
    }  # fmt: skip
    nodes, value = [], "x"

    def node(kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind}_{len(nodes)}"
        nodes.append(
            helper.make_node(kind, list(inputs), [name], name=name, **attributes)
        )
        return name

    def quantised(value: str) -> str:
        return node(
            "DequantizeLinear", node("QuantizeLinear", value, "s", "z"), "s", "z"
        )

    for step in range(2):
        weights[f"w{step}"] = generator.integers(-100, 100, (4, 4, 3, 3), dtype=np.int8)
        weights[f"b{step}"] = generator.integers(-100, 100, 4, dtype=np.int32)
        weight = node("DequantizeLinear", f"w{step}", "sw", "z")
        bias = node("DequantizeLinear", f"b{step}", "sb", "zb")
        value = quantised(
            node(
                "Relu", node("Conv", quantised(value), weight, bias, pads=[1, 1, 1, 1])
            )
        )
        value = node("Add", node("Erf", value), "a")
    outputs = [helper.make_tensor_value_info(value, TensorProto.FLOAT, (1, 4, 8, 8))]
    arrays = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in weights.items()
    ]
    return finished(nodes, [tensor("x", shape=(1, 4, 8, 8))], outputs, arrays)


def _if() -> onnx.ModelProto:
    """Return a model of an If in a Loop."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(kind, ["v"], [name])], f"{name}_graph", [], [tensor(name)]
        )
        for name, kind in (("then", "Relu"), ("else", "Sigmoid"))
    }
    body = helper.make_graph(
        [
            helper.make_node("If", ["k"], ["chosen"], **branches),
            helper.make_node("Identity", ["k"], ["again"]),
        ],
        "body",
        [
            tensor("i", TensorProto.INT64, []),
            tensor("k", TensorProto.BOOL, []),
            tensor("v"),
        ],
        [tensor("again", TensorProto.BOOL, []), tensor("chosen")],
    )
    count = numpy_helper.from_array(np.array(3), "count")
    return finished(
        [helper.make_node("Loop", ["count", "c", "x"], ["y"], body=body)],
        [tensor("x"), tensor("c", TensorProto.BOOL, [])],
        [tensor("y")],
        [count],
    )


def _in_a_body(model: bytes, folder: Path) -> str:
    """Put a context model's nodes, with their payload, into both branches of an If."""
    proto = onnx.load_from_string(model)
    graph = proto.graph
    branch = helper.make_graph(
        graph.node,
        "b",
        [],
        graph.output,
        graph.initializer,
        value_info=graph.value_info,
    )
    result = graph.output[0].name
    choice = helper.make_node(
        "If", ["c"], [f"{result}_chosen"], then_branch=branch, else_branch=branch
    )
    for field in ("node", "initializer", "value_info"):
        graph.ClearField(field)
    graph.node.append(choice)
    graph.input.append(tensor("c", TensorProto.BOOL, []))
    graph.output[0].name = choice.output[0]
    folder.mkdir()
    saved(proto, folder / "m_ctx.onnx")
    return "m_ctx.onnx"


def _functions() -> onnx.ModelProto:
    """Return a model whose functions call each other."""
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    inner = helper.make_function(
        "own", "Inner", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], imports
    )
    twice = [
        helper.make_node("Inner", ["a"], ["t"], domain="own"),
        helper.make_node("Inner", ["t"], ["b"], domain="own"),
    ]
    outer = helper.make_function("own", "Outer", ["a"], ["b"], twice, imports)
    model = finished(
        [helper.make_node("Outer", ["x"], ["y"], domain="own")],
        [tensor("x")],
        [tensor("y")],
    )
    model.opset_import.add(domain="own", version=1)
    model.functions.extend([inner, outer])
    return model


def _kinds() -> onnx.ModelProto:
    """Return a model with shapes as values, constants, text, sub-byte types and an open
    dimension.
    """
    nodes = [
        helper.make_node(
            "Constant", [], ["c"], value=numpy_helper.from_array(np.ones(3, np.float32))
        ),
        helper.make_node("Add", ["x", "c"], ["s"]),
        helper.make_node("Shape", ["s"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Reshape", ["zeros", "flat"], ["r"], allowzero=0),
        helper.make_node("Expand", ["one", "wide"], ["e"]),
        helper.make_node("Range", ["start", "limit", "delta"], ["range"]),
        helper.make_node("Identity", ["text"], ["t"]),
        helper.make_node("Tile", ["s", "repeats"], ["y"]),
    ]
    integers = {
        "flat": [-1], "wide": [2, 3], "start": 0, "limit": 5, "delta": 1,
        "repeats": [1, 2],
    }  # fmt: skip
    weights = [
        numpy_helper.from_array(np.array(v, np.int64), k) for k, v in integers.items()
    ]
    weights += [
        numpy_helper.from_array(np.ones((1, 1), np.float32), "one"),
        helper.make_tensor("text", TensorProto.STRING, [2], [b"a", b"\xffb"]),
        helper.make_tensor("four", TensorProto.INT4, [3], [1, 2, 3]),
    ]
    return finished(
        nodes, [tensor("x", shape=("n", 3))], [tensor("y", shape=("n", 6))], weights
    )


def _with_weights_outside(folder: Path) -> str:
    folder.mkdir()
    model = chain(["Add", "Relu", "Mul"])
    content = b""
    for weight in model.graph.initializer:
        weight.raw_data *= 100
        weight.dims[:] = (100, *weight.dims)
        content += _moved_outside(weight, len(content))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (folder / "w.bin").write_bytes(content)
    saved(model, folder / "m.onnx")
    return "m.onnx"


def _moved_outside(weight: TensorProto, offset: int) -> bytes:
    """Let a weight say that its bytes are in a file; return them."""
    data = weight.raw_data
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", "w.bin"),
        ("offset", str(offset)),
        ("length", str(len(data))),
    ):
        weight.external_data.add(key=key, value=value)
    return data


def _weightless(folder: Path) -> str:
    """Write a context model whose payload left weights in the source model, and in a
    file of that.
    """
    folder.mkdir()
    model = chain(["Add", "Relu", "Mul"])
    (folder / "w.bin").write_bytes(_moved_outside(model.graph.initializer[0], 0))
    source = saved(model, folder / "source.onnx")
    options = epctx.SessionOptions()
    options.add_provider(OPENVINO)
    options.add_session_config_entry("ep.enable_weightless_mode", "2")
    epctx.ModelCompiler(options, source).compile_to_file(folder / "m_ctx.onnx")
    return "m_ctx.onnx"


def _with_custom_operators(folder: Path) -> str:
    """Write a compiled model around operators that only an EP's kernels know."""
    folder.mkdir()
    body = (
        "a = Relu(x) b = acme.Scale(a) c = Sigmoid(b) d = acme.Scale(c, a) y = Neg(d)"
    )
    source = saved(model_of(body, inner="float[2] b, float[2] d"), folder / "m.onnx")
    registry, options = epctx.Registry(), epctx.SessionOptions()
    registry.register(Acme)
    for name in (QNN, Acme.name):
        options.add_provider(name)
    compiler = epctx.ModelCompiler(
        options, source, embed_compiled_data_into_model=True, registry=registry
    )
    compiler.compile_to_file(folder / "m_ctx.onnx")
    source.unlink()
    return "m_ctx.onnx"


def _with_initializers_outside(folder: Path) -> str:
    """Write a compiled model whose left-over operators have their weights in a file
    that ends in a seal.
    """
    folder.mkdir()
    weights = {"taken": np.float32, "left": np.float64, "other": np.float64}
    nodes = [
        helper.make_node("Mul", ["x", "taken"], ["m"]),
        helper.make_node("Cast", ["m"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["wide", "left"], ["wider"]),
        helper.make_node("Add", ["wider", "other"], ["widest"]),
        helper.make_node("Cast", ["widest"], ["y"], to=TensorProto.FLOAT),
    ]
    arrays = [
        numpy_helper.from_array(
            np.arange(6, dtype=kind).reshape(2, 3) + len(name), name
        )
        for name, kind in weights.items()
    ]
    source = saved(
        finished(nodes, [tensor("x")], [tensor("y")], arrays), folder / "m.onnx"
    )
    options = epctx.SessionOptions()
    options.add_provider(QNN)
    compiler = epctx.ModelCompiler(
        options,
        source,
        external_initializers_file_path="m.data",
        external_initializers_size_threshold=0,
    )
    compiler.compile_to_file(folder / "m_ctx.onnx")
    source.unlink()
    return "m_ctx.onnx"
