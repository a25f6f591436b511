"""Folders of language models in the form of GenAI, from a seed: pipelines of four stages
with a window of tokens for the prompt, as those for QNN have.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TOKENS, WIDTH, HEADS, LAYERS = 32, 64, 2, 2
HEAD = WIDTH // HEADS
WINDOW, CONTEXT = 8, 256
SEED = 94
"""Seed of weights with which the most likely token is likelier by 1 % than any other, for
200 tokens after prompts of 1, 7, 8 and 9: half precision chooses the same.
"""
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


class Stage:
    """Builder of one stage; values are named after their operators."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self._nodes, self._weights = [], []

    def add(self, operator, *inputs, output=None, **attributes):
        name = output or f"{operator}_{len(self._nodes)}"
        self._nodes.append(
            helper.make_node(operator, inputs, [name], name=name, **attributes)
        )
        return name

    def weight(self, *shape, scale=1.0):
        array = scale * self.random.normal(size=shape) / np.sqrt(shape[0])
        return self.constant(array.astype(np.float32))

    def constant(self, array):
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def finish(self, inputs, outputs):
        graph = helper.make_graph(
            self._nodes,
            "stage",
            [helper.make_tensor_value_info(*each) for each in inputs],
            [helper.make_tensor_value_info(*each) for each in outputs],
            self._weights,
        )
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def make_embeddings(seed):
    stage = Stage(seed)
    table = stage.constant(stage.random.normal(size=(TOKENS, WIDTH)).astype(np.float32))
    stage.add("Gather", table, "input_ids", output="hidden")
    return stage.finish(
        [("input_ids", INT32, [1, "length"])], [("hidden", FLOAT, [1, "length", WIDTH])]
    )


def make_head(seed):
    stage = Stage(seed + 1)
    stage.add(
        "MatMul", "state", stage.weight(WIDTH, TOKENS, scale=4.0), output="logits"
    )
    return stage.finish(
        [("state", FLOAT, [1, "length", WIDTH])],
        [("logits", FLOAT, [1, "length", TOKENS])],
    )


def make_layers(length, seed):
    """Return the layers for a number of tokens, whose weights do not depend on it.

    Keys and values of all tokens are one buffer, into which each call writes its own.
    """
    stage = Stage(seed + 2)
    split = stage.constant(np.array([1, length, HEADS, HEAD], np.int64))
    joined = stage.constant(np.array([1, length, WIDTH], np.int64))
    one = stage.constant(np.float32(1))
    # `past_seq_len` is the index of the last token of this call.
    back = np.arange(length, dtype=np.float32)[:, None] - (length - 1)
    last = stage.add("Cast", "past_seq_len", to=FLOAT)
    positions = stage.add("Add", last, stage.constant(back))
    slots = stage.constant(np.arange(CONTEXT, dtype=np.float32)[None])
    distance = stage.add("Sub", slots, positions)
    later = stage.add("Relu", distance)
    mask = stage.add("Mul", later, stage.constant(np.float32(-100)))
    # One where a token has its slot.
    near = stage.add("Relu", stage.add("Sub", one, stage.add("Abs", distance)))
    place = stage.add("Transpose", near, perm=[1, 0])
    taken = stage.add("ReduceSum", place, stage.constant(np.array([1], np.int64)))
    keep = stage.add("Sub", one, taken)

    value = "hidden"
    for layer in range(LAYERS):
        caches = []
        for kind in ("key", "value"):
            made = stage.add("MatMul", value, stage.weight(WIDTH, WIDTH))
            made = stage.add("Reshape", made, split)
            made = stage.add("Transpose", made, perm=[0, 2, 1, 3])
            written = stage.add("MatMul", place, made)
            kept = stage.add("Mul", f"past_{kind}_{layer}", keep)
            caches.append(
                stage.add("Add", kept, written, output=f"present_{kind}_{layer}")
            )
        query = stage.add("MatMul", value, stage.weight(WIDTH, WIDTH))
        query = stage.add("Reshape", query, split)
        query = stage.add("Transpose", query, perm=[0, 2, 1, 3])
        keys = stage.add("Transpose", caches[0], perm=[0, 1, 3, 2])
        attention = stage.add("Add", stage.add("MatMul", query, keys), mask)
        attention = stage.add("Softmax", attention, axis=-1)
        mixed = stage.add("MatMul", attention, caches[1])
        mixed = stage.add("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = stage.add("Reshape", mixed, joined)
        mixed = stage.add("MatMul", mixed, stage.weight(WIDTH, WIDTH))
        value = stage.add("Add", value, mixed)
        wide = stage.add("Tanh", stage.add("MatMul", value, stage.weight(WIDTH, WIDTH)))
        output = "state" if layer == LAYERS - 1 else None
        value = stage.add("Add", value, wide, output=output)

    kinds = [f"{k}_{layer}" for layer in range(LAYERS) for k in ("key", "value")]
    cache = [1, HEADS, CONTEXT, HEAD]
    inputs = [
        ("hidden", FLOAT, [1, length, WIDTH]),
        ("past_seq_len", INT32, [1, 1]),
        ("total_seq_len", INT32, [1]),
    ]
    inputs += [(f"past_{kind}", FLOAT, cache) for kind in kinds]
    outputs = [("state", FLOAT, [1, length, WIDTH])]
    outputs += [(f"present_{kind}", FLOAT, cache) for kind in kinds]
    return stage.finish(inputs, outputs)


def write_pipeline(folder, seed=SEED):
    """Write a pipeline of embeddings, prefill, decode and head; return its folder."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    models = {
        "embeddings": make_embeddings(seed),
        "prefill": make_layers(WINDOW, seed),
        "decode": make_layers(1, seed),
        "head": make_head(seed),
    }
    for name, model in models.items():
        onnx.save(model, folder / f"{name}.onnx")
    write_config(folder, tokens=TOKENS, width=WIDTH, heads=HEADS, shared=HEADS)
    return folder


def write_config(folder, *, tokens, width, heads, shared):
    """Write GenAI's configuration of the four models in a folder.

    Args:
        folder: the folder.
        tokens: number of different tokens.
        width: length of a token's vector.
        heads: heads of the attention.
        shared: heads of keys and values.
    """
    stages = []
    for name in ("embeddings", "prefill", "decode", "head"):
        graph = onnx.load(folder / f"{name}.onnx").graph
        facts = {
            "filename": f"{name}.onnx",
            "inputs": [value.name for value in graph.input],
            "outputs": [value.name for value in graph.output],
            "run_on_prompt": name != "decode",
            "run_on_token_gen": name != "prefill",
            "is_lm_head": name == "head",
        }
        stages.append({name: facts})
    decoder = {
        "session_options": {"provider_options": []},
        "head_size": width // heads,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": shared,
        "sliding_window": {
            "window_size": WINDOW,
            "pad_value": 0,
            "alignment": "left",
            "slide_key_value_cache": False,
        },
        "inputs": {
            "input_ids": "input_ids",
            "past_sequence_length": "past_seq_len",
            "total_sequence_length": "total_seq_len",
            "past_key_names": "past_key_%d",
            "past_value_names": "past_value_%d",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present_key_%d",
            "present_value_names": "present_value_%d",
        },
        "pipeline": stages,
    }
    model = {
        "type": "decoder-pipeline",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "context_length": CONTEXT,
        "vocab_size": tokens,
        "decoder": decoder,
    }
    # All of these lengths: no token ends a text.
    search = {
        "max_length": CONTEXT,
        "min_length": CONTEXT,
        "past_present_share_buffer": True,
        "do_sample": False,
    }
    text = json.dumps({"model": model, "search": search}, indent=1)
    (folder / "genai_config.json").write_text(f"{text}\n")
