"""Small models whose files are put together and taken apart."""

from __future__ import annotations

import numpy as np
import onnx.parser
from onnx.external_data_helper import set_external_data

import epctx_core as epctx

WIDTH = 64
X = np.linspace(-1, 1, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)


def product(path, *, x="x", y="y", seed=0, external=True, opset=17, own=""):
    """Write `y = Relu(x @ weight) + bias`, the weight in a file beside it; `own` begins
    the names of the values between.
    """
    name = path.stem
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> {name} '
        f"(float[2, {WIDTH}] {x}) => (float[2, {WIDTH}] {y}) "
        f"{{ {own}p = MatMul({x}, weight) {own}q = Relu({own}p) {y} = Add({own}q, bias) }}"
    )
    generator = np.random.default_rng(seed)
    for each, shape in (("weight", (WIDTH, WIDTH)), ("bias", (WIDTH,))):
        values = generator.standard_normal(shape, np.float32) / 8
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, each))
    path.parent.mkdir(parents=True, exist_ok=True)
    if external:
        (weight, _) = model.graph.initializer
        file = path.with_name(f"{name}.weights")
        file.write_bytes(weight.raw_data)
        set_external_data(weight, file.name, 0, len(weight.raw_data))
        weight.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return path


def compiled(path, *eps, **config):
    """Compile a model for simulated EPs; return the path of the context model."""
    options = epctx.SessionOptions()
    for ep in eps or ("QNN",):
        options.add_provider(ep)
    for key, value in config.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    output = path.with_name(f"{path.stem}_ctx.onnx")
    epctx.ModelCompiler(options, path).compile_to_file(output)
    return output


def run(path, **feeds):
    """Return the outputs of a model by name."""
    with epctx.InferenceSession(path) as session:
        names = [value.name for value in session.get_outputs()]
        return dict(zip(names, session.run(None, feeds), strict=True))


def verified(path):
    """Verify a model; return the path."""
    report = epctx.verify_model(path)
    codes = {finding.code for finding in report.findings}
    assert codes <= {"no-context-nodes"}, report
    return path
