"""Loops of decoders with a cache of keys and values, as programs write them for
onnxruntime: the module is an argument.
"""

from __future__ import annotations

import numpy as np
import onnx.parser
from onnx import TensorProto, numpy_helper

VOCABULARY, WIDTH, HEADS, LENGTH = 32, 16, 2, 256
"""Of `make_fixed`: tokens, and the lengths of its tensors."""


def make_fixed(seed=0, length=LENGTH, width=WIDTH, layers=2):
    """Return a decoder whose cache has a fixed length, into which each step writes one
    row: `keys_<i>` and `values_<i>` to `new_keys_<i>` and `new_values_<i>`.
    """
    draw = np.random.default_rng(seed)
    head = width // HEADS
    cache = f"float[1,{HEADS},{length},{head}]"
    names = [f"{kind}_{i}" for i in range(layers) for kind in ("keys", "values")]
    lines = [
        "h0 = Gather (embedding, token)",
        "here = Equal (rows, position)",
        "seen = LessOrEqual (rows, position)",
        "mask = Where (seen, zero, low)",
    ]
    weights = {
        "embedding": draw.normal(size=(VOCABULARY, width)),
        "zero": np.zeros(1),
        "low": np.full(1, -1e9),
        "scale": np.full(1, head**-0.5),
        "unembedding": draw.normal(size=(width, VOCABULARY)),
    }
    for i in range(layers):
        for kind in "qkvo":
            weights[f"{kind}{i}"] = draw.normal(size=(width, width)) / width**0.5
        lines += _make_layer(i)
    lines.append(f"logits = MatMul (h{layers}, unembedding)")
    outputs = ", ".join(f"{cache} new_{name}" for name in names)
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> decoder '
        f"(int64[1,1] token, int64[1] position, "
        f"{', '.join(f'{cache} {name}' for name in names)}) => "
        f"(float[1,1,{VOCABULARY}] logits, {outputs}) {{ {' '.join(lines)} }}"
    )
    integers = {
        "rows": np.arange(length).reshape(1, 1, length, 1),
        "apart": np.array([1, HEADS, 1, head]),
        "together": np.array([1, 1, width]),
        "rows_axis": np.array([2]),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(value.astype(dtype), name)
        for values, dtype in ((weights, np.float32), (integers, np.int64))
        for name, value in values.items()
    )
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    return model


def _make_layer(i):
    """Return the nodes of an attention layer from `h<i>` to the next one."""
    heads = [
        line
        for kind in "qkv"
        for line in (
            f"{kind}{i}_flat = MatMul (h{i}, {kind}{i})",
            f"{kind}{i}_heads = Reshape ({kind}{i}_flat, apart)",
        )
    ]
    return [
        *heads,
        f"new_keys_{i} = Where (here, k{i}_heads, keys_{i})",
        f"new_values_{i} = Where (here, v{i}_heads, values_{i})",
        f"t{i} = Transpose <perm = [0, 1, 3, 2]> (new_keys_{i})",
        f"raw{i} = MatMul (q{i}_heads, t{i})",
        f"scaled{i} = Mul (raw{i}, scale)",
        f"turned{i} = Transpose <perm = [0, 1, 3, 2]> (scaled{i})",
        f"masked{i} = Add (turned{i}, mask)",
        f"chosen{i} = Softmax <axis = 2> (masked{i})",
        f"weighted{i} = Mul (chosen{i}, new_values_{i})",
        f"summed{i} = ReduceSum <keepdims = 0> (weighted{i}, rows_axis)",
        f"joined{i} = Reshape (summed{i}, together)",
        f"out{i} = MatMul (joined{i}, o{i})",
        f"h{i + 1} = Add (h{i}, out{i})",
    ]


def decode_fixed(ort, session, steps, note=lambda _binding: None):
    """Return the tokens of a decoder of `make_fixed`: two sets of memory for its cache
    take turns, so that nothing is allocated or copied.
    """
    names = [a.name for a in session.get_inputs() if "_" in a.name]
    shapes = {a.name: a.shape for a in session.get_inputs()}
    sets = [
        {
            name: ort.OrtValue.ortvalue_from_numpy(np.zeros(shapes[name], np.float32))
            for name in names
        }
        for _ in range(2)
    ]
    bindings = []
    token, position = np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
    logits = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, VOCABULARY), np.float32))
    for read, written in (sets, sets[::-1]):
        binding = session.io_binding()
        binding.bind_cpu_input("token", token)
        binding.bind_cpu_input("position", position)
        binding.bind_ortvalue_output("logits", logits)
        for name in names:
            binding.bind_ortvalue_input(name, read[name])
            binding.bind_ortvalue_output(f"new_{name}", written[name])
        bindings.append(binding)

    tokens = []
    for step in range(steps):
        position[0] = step
        session.run_with_iobinding(bindings[step % 2])
        note(bindings[step % 2])
        tokens.append(int(np.argmax(logits.numpy()[0, -1])))
        token[0, 0] = (tokens[-1] + step) % VOCABULARY
    return tokens


def decode_growing(session, steps, note=lambda _binding: None):
    """Return the tokens of a decoder whose cache grows by a row each step: what a run
    gives is bound as the next one's input.
    """
    inputs = session.get_inputs()
    outputs = [output.name for output in session.get_outputs()]
    past = [a.name for a in inputs if a.name.startswith("past")]
    shapes = {a.name: a.shape for a in inputs}
    binding = session.io_binding()
    for name in past:
        _, heads, _, head = shapes[name]
        binding.bind_cpu_input(name, np.zeros((1, heads, 0, head), np.float32))

    tokens = []
    token = 1
    for step in range(steps):
        binding.bind_cpu_input("input_ids", np.array([[token]]))
        binding.bind_cpu_input("attention_mask", np.ones((1, step + 1), np.int64))
        for name in outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        note(binding)
        logits, *present = binding.get_outputs()
        for name, value in zip(past, present, strict=True):
            binding.bind_ortvalue_input(name, value)
        tokens.append(int(np.argmax(logits.numpy()[0, -1])))
        # Networks of drawn numbers soon repeat one token.
        token = (tokens[-1] + step) % VOCABULARY
    return tokens
