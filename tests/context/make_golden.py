"""Makes the golden context models of the version at hand:
`python tests/context/make_golden.py`, from the root of the repository.

What is kept once a version was released is never made again; see README.md. Everything
follows from seeds. Needs nothing of the tests, so that it can be run against an older
release.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx

GOLDEN: Final = Path(__file__).parents[1] / "data/golden"
FOLDER: Final = GOLDEN / ".".join(epctx.__version__.split(".")[:2])
WIDTH: Final = 20
ROWS: Final = 4
QNN, OPENVINO, VITISAI = "QNN", "OpenVINO", "VitisAI"
Array = np.ndarray


def weight(name: str, seed: int) -> TensorProto:
    """Return a square float weight."""
    array = np.random.default_rng(seed).standard_normal(
        (WIDTH, WIDTH), dtype=np.float32
    )
    return numpy_helper.from_array(array, name)


def finished(
    nodes: Sequence[onnx.NodeProto], weights: Sequence[TensorProto], rows: int = ROWS
) -> onnx.ModelProto:
    """Return the model `x -> y` of these parts."""
    shape = [rows, WIDTH]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"
    )
    graph = helper.make_graph(nodes, "golden", [x], [y], weights)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )


def floats(seed: int = 0, rows: int = ROWS) -> onnx.ModelProto:
    """Return two products with an activation between them."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="clip"),
        helper.make_node("MatMul", ["b", "w1"], ["y"], name="second"),
    ]
    return finished(nodes, [weight("w0", seed), weight("w1", seed + 1)], rows)


def integers(
    after: Sequence[onnx.NodeProto] = (), weights: Sequence[TensorProto] = ()
) -> onnx.ModelProto:
    """Return an INT8 product with what quantizes around it, and more nodes behind
    it.
    """
    values = np.random.default_rng(5).integers(-8, 8, (WIDTH, WIDTH), dtype=np.int8)
    constants = [
        numpy_helper.from_array(np.float32(2**-5), "scale"),
        numpy_helper.from_array(np.int8(0), "zero"),
        numpy_helper.from_array(values, "w"),
    ]
    nodes = [
        helper.make_node(
            "QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantize"
        ),
        helper.make_node(
            "DequantizeLinear", ["q", "scale", "zero"], ["d"], name="dequantize"
        ),
        helper.make_node(
            "DequantizeLinear", ["w", "scale", "zero"], ["dw"], name="weight"
        ),
        helper.make_node("MatMul", ["d", "dw"], ["m"], name="product"),
        helper.make_node(
            "QuantizeLinear", ["m", "scale", "zero"], ["r"], name="requantize"
        ),
        helper.make_node(
            "DequantizeLinear",
            ["r", "scale", "zero"],
            ["z" if after else "y"],
            name="back",
        ),
    ]
    return finished([*nodes, *after], [*constants, *weights])


def mixed() -> onnx.ModelProto:
    """Return a model of which VitisAI, QNN and OpenVINO each take a part, and the CPU
    EP two nodes.
    """
    after = [
        helper.make_node("MatMul", ["z", "f"], ["g"], name="float product"),
        helper.make_node("Softsign", ["g"], ["h"], name="soft sign"),
        helper.make_node("Mish", ["h"], ["y"], name="mish"),
    ]
    return integers(after, [weight("f", 7)])


def options(*eps: str, **entries: object) -> epctx.SessionOptions:
    """Return session options; `ep__context_embed_mode=1` sets
    `ep.context_embed_mode`.
    """
    result = epctx.SessionOptions()
    for ep in eps:
        result.add_provider(ep)
    for key, value in entries.items():
        result.add_session_config_entry(key.replace("__", "."), str(value))
    return result


def compiled(
    model: onnx.ModelProto, *eps: str, **entries: object
) -> Callable[[Path], None]:
    """Return what writes a model and its context model into a folder."""

    def write(folder: Path) -> None:
        onnx.save(model, folder / "model.onnx")
        epctx.ModelCompiler(
            options(*eps, **entries), folder / "model.onnx"
        ).compile_to_file()

    return write


def shared(folder: Path) -> None:
    """Write a share group of two models with equal weights, by session options."""
    for name, rows, stop in (("prefill", ROWS, "0"), ("decode", 1, "1")):
        onnx.save(floats(rows=rows), folder / f"{name}.onnx")
        group = options(QNN, ep__share_ep_contexts=1, ep__stop_share_ep_contexts=stop)
        epctx.ModelCompiler(group, folder / f"{name}.onnx").compile_to_file()


def sealed(folder: Path) -> None:
    """Write two context models without a manifest, as other tools do, and seal them:
    one itself, one by a file beside it.
    """
    for name in ("inside", "beside"):
        onnx.save(floats(), folder / f"{name}.onnx")
        path = folder / f"{name}_ctx.onnx"
        epctx.ModelCompiler(options(QNN), folder / f"{name}.onnx").compile_to_file(path)
        model = onnx.load(path)
        kept = [
            entry for entry in model.metadata_props if entry.key != "epctx.manifest"
        ]
        del model.metadata_props[:]
        model.metadata_props.extend(kept)
        onnx.save(model, path)
        epctx.seal_model(path, beside=name == "beside")


CASES: Final[dict[str, Callable[[Path], None]]] = {
    "qnn_file": compiled(floats(), QNN),
    "qnn_embedded": compiled(floats(), QNN, ep__context_embed_mode=1),
    "openvino_file": compiled(floats(), OPENVINO),
    "openvino_embedded": compiled(floats(), OPENVINO, ep__context_embed_mode=1),
    "openvino_weightless": compiled(floats(), OPENVINO, ep__enable_weightless_mode=2),
    "vitisai_file": compiled(integers(), VITISAI),
    "vitisai_embedded": compiled(integers(), VITISAI, ep__context_embed_mode=1),
    "mixed": compiled(mixed(), VITISAI, QNN, OPENVINO),
    "qnn_shared": shared,
    "sealed": sealed,
}
"""Case to what writes its folder: sources, context models and binaries."""


def example(path: Path) -> Array:
    """Return the input of a source model."""
    (x,) = onnx.load(path).graph.input
    shape = [dim.dim_value for dim in x.type.tensor_type.shape.dim]
    return np.random.default_rng(11).standard_normal(shape, dtype=np.float32)


def reference(path: Path) -> Array:
    """Return what a source model computes on the CPU EP."""
    with epctx.InferenceSession(path) as session:
        result: Array = session.run(None, {"x": example(path)})[0]
        return result


def main() -> None:
    """Write every case of this version anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for name, write in CASES.items():
        folder = FOLDER / name
        folder.mkdir()
        write(folder)
        for source in sorted(folder.glob("*.onnx")):
            if not source.stem.endswith("_ctx"):
                np.save(source.with_suffix(".npy"), reference(source))


if __name__ == "__main__":
    main()
