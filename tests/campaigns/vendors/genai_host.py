"""GenAI as the host of an EP in Python: it generates tokens with a decoder that grows a
cache of keys and values. `python genai_host.py FOLDER` prints what it found as JSON.

epctx is imported by nothing here but what registers the EP.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_ep_epctx
import onnxruntime_genai
from onnx import TensorProto, helper, numpy_helper

from epctx_core import default_registry
from epctx_core.plugin import (
    CompiledPartition,
    ExecutionProvider,
    hookimpl,
    supported_partitions,
)

EP = "TokenExecutionProvider"
TOKENS, WIDTH, HEADS = 64, 16, 2
HEAD = WIDTH // HEADS
PROMPT = [1, 5, 9]
END = 2
LENGTH = 48
RUNS: list[int] = []


class TokenProvider(ExecutionProvider):
    """EP that multiplies matrices by numpy."""

    name = EP
    vendor = "tests"

    @hookimpl
    def get_capability(self, graph):
        """Take the products of matrices."""
        return supported_partitions(graph, lambda node: node.op_type == "MatMul")

    @hookimpl
    def compile(self, partitions):
        """Return what runs each."""
        return [CompiledPartition(make_run(each)) for each in partitions]


def make_run(partition):
    """Return a partition of one product as a function of its inputs."""
    (node,) = partition.nodes
    names = [value.name for value in partition.inputs]
    weights = {name: np.array(view.array()) for name, view in partition.weights.items()}

    def run(inputs, outputs=None):
        RUNS.append(1)
        values = {**weights, **dict(zip(names, inputs, strict=True))}
        result = np.matmul(*(values[name] for name in node.inputs))
        if outputs is None:
            return [result]
        outputs[0][...] = result
        return outputs

    return run


def make_decoder():
    """Return a decoder of one layer: each token looks at the mean of all so far."""
    generator = np.random.default_rng(3)
    node = helper.make_node

    def constant(name, value, dtype):
        return numpy_helper.from_array(np.array(value, dtype), name)

    constants = [
        constant("embedding", generator.normal(size=(TOKENS, WIDTH)), np.float32),
        constant("mix", generator.normal(size=(WIDTH, WIDTH)), np.float32),
        constant("head", generator.normal(size=(WIDTH, TOKENS)), np.float32),
        constant("split", [0, 0, HEADS, HEAD], np.int64),
        constant("joined", [0, 1, WIDTH], np.int64),
        constant("rows", [2], np.int64),
    ]
    nodes = [
        node("Gather", ["embedding", "input_ids"], ["token"]),
        node("Reshape", ["token", "split"], ["heads"]),
        node("Transpose", ["heads"], ["key"], perm=[0, 2, 1, 3]),
        node("Concat", ["past_key_values.0.key", "key"], ["present.0.key"], axis=2),
        node("Concat", ["past_key_values.0.value", "key"], ["present.0.value"], axis=2),
        node("ReduceMean", ["present.0.value", "rows"], ["mean"], keepdims=0),
        node("Reshape", ["mean", "joined"], ["context"]),
        node("MatMul", ["context", "mix"], ["mixed"]),
        node("Tanh", ["mixed"], ["bent"]),
        node("Add", ["token", "bent"], ["state"]),
        node("MatMul", ["state", "head"], ["logits"]),
    ]
    ids, floats = TensorProto.INT64, TensorProto.FLOAT
    past, present = [1, HEADS, "past", HEAD], [1, HEADS, "total", HEAD]
    inputs = {
        "input_ids": (ids, [1, "new"]),
        "attention_mask": (ids, [1, "total"]),
        "past_key_values.0.key": (floats, past),
        "past_key_values.0.value": (floats, past),
    }
    outputs = {
        "logits": (floats, [1, "new", TOKENS]),
        "present.0.key": (floats, present),
        "present.0.value": (floats, present),
    }
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info(name, *type_) for name, type_ in inputs.items()],
        [helper.make_tensor_value_info(n, *type_) for n, type_ in outputs.items()],
        constants,
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def make_config(ep):
    """Return GenAI's configuration of the decoder, with an EP or the CPU EP alone."""
    decoder = {
        "session_options": {"provider_options": [{ep: {}}] if ep else []},
        "filename": "model.onnx",
        "head_size": HEAD,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": HEADS,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    model = {
        "type": "llama",
        "bos_token_id": 1,
        "eos_token_id": END,
        "pad_token_id": 0,
        "context_length": 128,
        "vocab_size": TOKENS,
        "decoder": decoder,
    }
    search = {"max_length": LENGTH, "past_present_share_buffer": False}
    return {"model": model, "search": search}


def generate(folder, ep=""):
    """Return the tokens that GenAI generates greedily."""
    folder.mkdir()
    onnx.save(make_decoder(), folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(make_config(ep)))
    model = onnxruntime_genai.Model(str(folder))
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=LENGTH, do_sample=False)
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(np.array(PROMPT, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)]


def main(folder):
    """Generate on the CPU EP and on the EP in Python."""
    expected = generate(folder / "cpu")
    default_registry.register(TokenProvider)
    onnxruntime_genai.register_execution_provider_library(
        EP, onnxruntime_ep_epctx.get_library_path()
    )
    tokens = generate(folder / "ep", EP)
    print(json.dumps({"expected": expected, "tokens": tokens, "runs": len(RUNS)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
