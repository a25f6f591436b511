"""Export of a small llama with its cache of keys and values, cut into the stages of a
pipeline for onnxruntime-genai: `python export.py FOLDER`.

Made with PyTorch 2.14.1 and transformers 5.24.0, whose newer exporter writes one model
for the window of a prompt and one for a single token.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import onnx
import torch
from onnx import utils
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache

sys.path.insert(0, str(Path(__file__).parents[3]))

from support.pipelines import CONTEXT, LAYERS, TOKENS, WINDOW, write_config

WIDTH, HEADS, SHARED = 32, 4, 2
HEAD = WIDTH // HEADS
SEED = 2
CACHES = [f"{kind}_{layer}" for layer in range(LAYERS) for kind in ("key", "value")]


class Slots(Cache):
    """Cache of all tokens as one buffer for each layer, into whose slots a call writes
    its keys and values.
    """

    def __init__(self, keys, values, positions):
        super().__init__(layers=[])
        self.keys, self.values = list(keys), list(values)
        slots = torch.arange(CONTEXT, dtype=torch.float32)[None]
        self._near = torch.relu(1 - torch.abs(slots - positions[:, None]))

    def update(self, key_states, value_states, layer_idx, *_, **__):
        """Write the keys and values of a layer; return all."""
        keep = 1 - self._near.sum(0)[:, None]
        place = self._near.T
        self.keys[layer_idx] = self.keys[layer_idx] * keep + place @ key_states
        self.values[layer_idx] = self.values[layer_idx] * keep + place @ value_states
        return self.keys[layer_idx], self.values[layer_idx]

    def get_seq_length(self, layer_idx=0):
        """Return the tokens before this call, as the model would count them."""
        return 0


class Step(torch.nn.Module):
    """One call of a llama, for a fixed number of tokens."""

    def __init__(self, model, length):
        super().__init__()
        self.model, self.length = model, length

    def forward(self, input_ids, past_seq_len, total_seq_len, *caches):
        # `past_seq_len` is the index of the last token of this call.
        back = torch.arange(self.length, dtype=torch.int32) - (self.length - 1)
        positions = past_seq_len[0] + back
        cache = Slots(caches[::2], caches[1::2], positions.float())
        slots = torch.arange(CONTEXT, dtype=torch.int32)[None]
        mask = torch.relu((slots - positions[:, None]).float()) * -100.0
        result = self.model.model(
            input_ids=input_ids,
            attention_mask=mask[None, None],
            position_ids=positions[None].long(),
            past_key_values=cache,
            use_cache=True,
        )
        pairs = zip(cache.keys, cache.values, strict=True)
        logits = self.model.lm_head(result.last_hidden_state)
        return logits, *(value for pair in pairs for value in pair)


def make_model(seed):
    """Return the network, with weights from a seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        attn_implementation="eager",
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


def export(model, length, path):
    """Export one call with a number of tokens."""
    cache = torch.zeros(1, SHARED, CONTEXT, HEAD)
    arguments = (
        torch.ones(1, length, dtype=torch.int32),
        torch.full((1, 1), length - 1, dtype=torch.int32),
        torch.full((1,), CONTEXT, dtype=torch.int32),
        *(cache.clone() for _ in CACHES),
    )
    torch.onnx.export(
        Step(model, length),
        arguments,
        str(path),
        dynamo=True,
        opset_version=18,
        input_names=[
            "input_ids",
            "past_seq_len",
            "total_seq_len",
            *(f"past_{name}" for name in CACHES),
        ],
        output_names=["logits", *(f"present_{name}" for name in CACHES)],
        external_data=False,
    )


def cut(path, folder, layers):
    """Cut a model at the table of tokens and at the head, and write its layers; the
    table and the head are written, too, for any number of tokens.
    """
    graph = onnx.load(path).graph
    (table,) = (node for node in graph.node if "input_ids" in node.input)
    (head,) = (node for node in graph.node if "logits" in node.output)
    hidden, state = table.output[0], head.input[0]
    others = ["past_seq_len", "total_seq_len", *(f"past_{name}" for name in CACHES)]
    present = [f"present_{name}" for name in CACHES]
    for name, inputs, outputs in (
        ("embeddings", ["input_ids"], [hidden]),
        (layers, [hidden, *others], [state, *present]),
        ("head", [state], ["logits"]),
    ):
        target = folder / f"{name}.onnx"
        utils.extract_model(path, target, inputs, outputs)
        tidy(target, {hidden: "hidden", state: "state"}, is_open=name != layers)


def tidy(path, names, *, is_open):
    """Give values other names, leave the notes of the exporter out, and have the number
    of tokens open.
    """
    model = onnx.load(path)
    graph = model.graph
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            value.name = names.get(value.name, value.name)
            del value.metadata_props[:]
            if is_open and values is not graph.value_info:
                value.type.tensor_type.shape.dim[1].dim_param = "length"
    weights = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        # Qualcomm's compiler fails where the weight of a norm is the first factor.
        if node.op_type == "Mul":
            node.input.sort(key=lambda name: name in weights)
        node.output[:] = [names.get(name, name) for name in node.output]
        # They name folders of the machine.
        del node.metadata_props[:]
    del model.metadata_props[:], graph.metadata_props[:]
    for tensor in graph.initializer:
        del tensor.metadata_props[:]
    onnx.save(model, path)


def main(folder):
    """Export, cut, and write the configuration."""
    model = make_model(SEED)
    with tempfile.TemporaryDirectory() as whole:
        for name, length in (("prefill", WINDOW), ("decode", 1)):
            path = Path(whole, f"{name}.onnx")
            export(model, length, path)
            cut(path, folder, name)
    write_config(folder, tokens=TOKENS, width=WIDTH, heads=HEADS, shared=SHARED)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
