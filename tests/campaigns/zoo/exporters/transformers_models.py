# /// script
# dependencies = [
#     "torch==2.14.1", "transformers==5.24.0", "onnxscript==0.7.2", "onnx==1.23.2", "onnxruntime==1.32.0",
# ]
# [tool.zoo]
# models = [
#     "transformers_bert", "transformers_bert_fixed", "transformers_convnext", "transformers_deberta_v2",
#     "transformers_distilbert", "transformers_gemma3_text", "transformers_gpt2_cached",
#     "transformers_llama", "transformers_llama_cached", "transformers_llama_fixed", "transformers_mamba_fixed",
#     "transformers_modernbert", "transformers_opt", "transformers_qwen3",
#     "transformers_regnet", "transformers_segformer", "transformers_t5", "transformers_vit_fixed",
#     "transformers_whisper",
# ]
# ///
"""Make small networks of transformers with drawn weights, exported by torch.

Nothing is downloaded: a configuration is that of a model's class, with few and narrow
layers.
"""

from __future__ import annotations

from typing import Any

import torch
from exporting import Tensors, export
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

torch.set_num_threads(1)

WORDS, WIDTH, HEADS, SHARED, SIZE = 32, 16, 4, 2, 32
SMALL = {
    "vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_size": WIDTH, "n_embd": WIDTH, "d_model": WIDTH, "dim": WIDTH, "word_embed_proj_dim": WIDTH,
    "embedding_size": WIDTH, "intermediate_size": 24, "ffn_dim": 24, "d_ff": 24, "hidden_dim": 24, "n_inner": 24,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "d_kv": 4, "head_dim": 4,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": HEADS, "n_head": HEADS, "n_heads": HEADS, "num_heads": HEADS,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "num_key_value_heads": SHARED,
    "max_position_embeddings": 64, "n_positions": 64, "max_source_positions": 16, "max_target_positions": 32,
    "sliding_window": 8, "state_size": 4, "n_groups": 1, "chunk_size": 4, "time_step_rank": 4, "expand": 2,
    "image_size": SIZE, "patch_size": 8, "num_mel_bins": 8, "multi_query": True,
}  # fmt: skip
"""Values of whichever of these a configuration has."""

DECODERS = (
    "bloom", "cohere", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "granite", "llama", "mistral",
    "olmo2", "opt", "phi", "phi3", "qwen2", "qwen3", "smollm3", "stablelm", "starcoder2",
)  # fmt: skip
CACHED = "gemma2", "gpt2", "llama", "opt", "phi3", "qwen3"
STATES = "mamba", "mamba2"
ENCODERS = (
    "albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta",
    "xlm-roberta",
)  # fmt: skip
IMAGES: dict[str, dict[str, Any]] = {
    "beit": {},
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "convnextv2": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "deit": {},
    "dinov2": {},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "segformer": {
        "num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 16], "num_attention_heads": [1, 2],
        "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2],
    },
    "swinv2": {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4, "patch_size": 4},
    "vit": {},
}  # fmt: skip


def small_config(kind: str, **more: Any) -> Any:
    """Return the configuration of a kind of model with few and narrow layers."""
    known = AutoConfig.for_model(kind).to_dict()
    return AutoConfig.for_model(
        kind, **{k: v for k, v in SMALL.items() if k in known} | more
    )


class Called(nn.Module):
    """A model that is called with named inputs, in their order, and gives one
    output.
    """

    def __init__(
        self, model: nn.Module, names: tuple[str, ...], output: str, **fixed: Any
    ) -> None:
        """Keep the model; `fixed` are arguments of each call."""
        super().__init__()
        self.model, self.names, self.output = model.eval(), names, output
        self.fixed = fixed

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the output."""
        given = dict(zip(self.names, inputs, strict=True))
        return getattr(self.model(**given, **self.fixed), self.output)


class Cached(nn.Module):
    """A decoder that takes and gives the keys and values of each layer."""

    def __init__(self, model: nn.Module, layers: int) -> None:
        """Keep the model."""
        super().__init__()
        self.model, self.layers = model.eval(), layers

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return scores, then each layer's keys and values."""
        tokens, mask, *past = inputs
        pairs = [(past[2 * i], past[2 * i + 1]) for i in range(self.layers)]
        result = self.model(
            input_ids=tokens,
            attention_mask=mask,
            past_key_values=DynamicCache(pairs),
            use_cache=True,
        )
        layers = result.past_key_values.layers
        return (
            result.logits,
            *(each for layer in layers for each in (layer.keys, layer.values)),
        )


def tokens(batch: int, sequence: int) -> Tensors:
    """Return words and a mask that hides the last word of the first row."""
    generator = torch.Generator().manual_seed(batch * 100 + sequence)
    words = torch.randint(3, WORDS, (batch, sequence), generator=generator)
    mask = torch.ones(batch, sequence, dtype=torch.int64)
    mask[0, -1] = 0
    return {"input_ids": words, "attention_mask": mask}


def images(batch: int, _sequence: int) -> Tensors:
    """Return drawn images."""
    generator = torch.Generator().manual_seed(batch)
    return {"pixel_values": torch.randn(batch, 3, SIZE, SIZE, generator=generator)}


OPEN = {0: "batch", 1: "sequence"}


def decoders() -> None:
    """Save decoders without a cache, some of them with fixed shapes or traced."""
    for kind in (*DECODERS, *STATES):
        torch.manual_seed(0)
        # Its heads are those of its inner width, not of attention.
        more = {"num_heads": 8} if kind == "mamba2" else {}
        model = AutoModelForCausalLM.from_config(
            small_config(kind, **more), attn_implementation="eager"
        )
        network = Called(
            model, ("input_ids", "attention_mask"), "logits", use_cache=False
        )
        if kind not in STATES:
            export(f"transformers_{kind}", network, tokens, OPEN)
        if kind in {"llama", "gpt2", *STATES}:
            export(f"transformers_{kind}_fixed", network, tokens, None)
        if kind in {"gpt2", "opt"}:
            export(f"transformers_{kind}_opset17", network, tokens, OPEN, trace=17)


def cached_decoders() -> None:
    """Save decoders that go on with the keys and values of earlier words."""
    for kind in CACHED:
        torch.manual_seed(0)
        config = small_config(kind)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        heads = getattr(config, "num_key_value_heads", HEADS)
        past = [f"past_{i}_{part}" for i in range(2) for part in ("keys", "values")]

        def make(batch: int, sequence: int, heads=heads, past=past) -> Tensors:
            given = tokens(batch, 1)
            given["attention_mask"] = torch.ones(batch, sequence + 1, dtype=torch.int64)
            generator = torch.Generator().manual_seed(sequence)
            for name in past:
                given[name] = torch.randn(
                    batch, heads, sequence, 4, generator=generator
                )
            return given

        lengths = {
            "input_ids": {0: "batch"},
            "attention_mask": {0: "batch", 1: "all"},
            **{name: {0: "batch", 2: "past"} for name in past},
        }
        export(f"transformers_{kind}_cached", Cached(model, 2), make, lengths)


def encoders() -> None:
    """Save encoders of text."""
    for kind in ENCODERS:
        torch.manual_seed(0)
        model = AutoModel.from_config(small_config(kind), attn_implementation="eager")
        network = Called(model, ("input_ids", "attention_mask"), "last_hidden_state")
        name = f"transformers_{kind.replace('-', '_')}"
        export(name, network, tokens, OPEN)
        if kind == "bert":
            export(f"{name}_fixed", network, tokens, None)
            export(f"{name}_opset17", network, tokens, OPEN, trace=17)


def of_images() -> None:
    """Save networks for images, most with an open batch."""
    for kind, more in IMAGES.items():
        torch.manual_seed(0)
        model = AutoModel.from_config(small_config(kind, **more))
        network = Called(model, ("pixel_values",), "last_hidden_state")
        export(f"transformers_{kind}", network, images, {0: "batch"})
        if kind in {"vit", "swinv2", "convnext"}:
            export(f"transformers_{kind}_fixed", network, images, None)


def pairs() -> None:
    """Save encoders with decoders, of words and of sound, and pairs for images and
    text.
    """
    for kind in ("t5", "bart", "marian"):
        torch.manual_seed(0)
        model = AutoModel.from_config(
            small_config(kind, decoder_start_token_id=1), attn_implementation="eager"
        )

        def make(batch: int, sequence: int) -> Tensors:
            return {
                "input_ids": tokens(batch, sequence)["input_ids"],
                "decoder_input_ids": tokens(batch, sequence + 1)["input_ids"],
            }

        lengths = {
            "input_ids": {0: "batch", 1: "sequence"},
            "decoder_input_ids": {0: "batch", 1: "written"},
        }
        network = Called(model, tuple(lengths), "last_hidden_state", use_cache=False)
        export(f"transformers_{kind}", network, make, lengths)

    torch.manual_seed(0)
    whisper = AutoModel.from_config(
        small_config("whisper"), attn_implementation="eager"
    )

    def sound(batch: int, sequence: int) -> Tensors:
        generator = torch.Generator().manual_seed(batch)
        return {
            "input_features": torch.randn(batch, 8, 32, generator=generator),
            "decoder_input_ids": tokens(batch, sequence)["input_ids"],
        }

    lengths = {
        "input_features": {0: "batch"},
        "decoder_input_ids": {0: "batch", 1: "sequence"},
    }
    network = Called(whisper, tuple(lengths), "last_hidden_state", use_cache=False)
    export("transformers_whisper", network, sound, lengths)

    for kind in ("clip", "siglip"):
        torch.manual_seed(0)
        text = {k: SMALL[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "eos_token_id", "bos_token_id")}  # fmt: skip
        image = {k: SMALL[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")}  # fmt: skip
        config = AutoConfig.for_model(kind, text_config=text, vision_config=image)
        model = AutoModel.from_config(config, attn_implementation="eager")

        def both(batch: int, sequence: int) -> Tensors:
            return {
                "input_ids": tokens(batch, sequence)["input_ids"],
                **images(batch, sequence),
            }

        lengths = {
            "input_ids": {0: "texts", 1: "sequence"},
            "pixel_values": {0: "images"},
        }
        network = Called(model, tuple(lengths), "logits_per_image")
        export(f"transformers_{kind}", network, both, lengths)


if __name__ == "__main__":
    decoders()
    cached_decoders()
    encoders()
    of_images()
    pairs()
