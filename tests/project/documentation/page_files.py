"""The files that every page of the documentation may assume: see blocks.md.

`python tests/project/documentation/page_files.py FOLDER` writes them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.extend(map(str, Path(__file__).parents[1:3]))

from support.folders import MODELS
from support.pipelines import write_pipeline

_SMALL = """
<ir_version: 9, opset_import: ["" : 17]>
small (float[1, 3, 8, 8] x) => (float[1, 4, 1, 1] y) {
  [conv] a = Conv<kernel_shape = [3, 3]>(x, w)
  [relu] b = Relu(a)
  [mean] y = GlobalAveragePool(b)
}
"""
_TOKENS = """
<ir_version: 9, opset_import: ["" : 17]>
tokens (float[1, 4] x) => (float[1, 4] y) {
  [seven] s = Constant<value = float[1] {7.0}>()
  [wrap] a = Mod<fmod = 1>(x, s)
  [relu] y = Relu(a)
}
"""
_TOKENIZER = """
<ir_version: 9, opset_import: ["" : 17, "ai.onnx.contrib" : 1]>
tokenizer (string[2] text) => (float[2] y) <int64[1] shape = {2}> {
  [length] n = ai.onnx.contrib.StringLength(text)
  [static] m = Reshape(n, shape)
  [float] a = Cast<to = 1>(m)
  [relu] y = Relu(a)
}
"""


def write_page_files(folder: Path) -> None:
    """Write the files into a folder."""
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    small = onnx.parser.parse_model(_SMALL)
    small.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(small, folder / "model.onnx")
    onnx.save(onnx.parser.parse_model(_TOKENS), folder / "tokens.onnx")
    batched = onnx.ModelProto()
    batched.CopyFrom(small)
    for value in (*batched.graph.input, *batched.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(batched, folder / "batched.onnx")
    for name, length in (("prefill", 16), ("decode", 8)):
        small.graph.input[0].type.tensor_type.shape.dim[3].dim_value = length
        onnx.save(small, folder / f"{name}.onnx")
    tokenizer = onnx.parser.parse_model(_TOKENIZER)
    onnx.save(tokenizer, folder / "tokenizer_and_network.onnx")
    shutil.copyfile(MODELS / "bert/model.onnx", folder / "bert.onnx")
    write_pipeline(folder / "tiny")
    _write_other(folder)


def _write_other(folder: Path) -> None:
    """Write a context model as a tool without manifests would."""
    import epctx_core as epctx

    options = epctx.SessionOptions()
    options.add_provider("QNN")
    epctx.ModelCompiler(options, folder / "model.onnx").compile_to_file(
        folder / "other_ctx.onnx"
    )
    model = onnx.load(folder / "other_ctx.onnx")
    kept = [entry for entry in model.metadata_props if "epctx" not in entry.key]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, folder / "other_ctx.onnx")


if __name__ == "__main__":
    write_page_files(Path(sys.argv[1]))
