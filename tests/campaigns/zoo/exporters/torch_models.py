# /// script
# dependencies = ["torch==2.13.0", "onnxscript==0.7.2", "onnx==1.23.2", "onnxruntime==1.32.0"]
# [tool.zoo]
# apart = true
# models = ["torch_*"]
# ///
"""Make small networks of PyTorch: exported by its old exporter to opsets 7 to 17 and by
its new one to 18.
"""

from __future__ import annotations

import io

import torch
from saving import ROWS, drawn, save
from torch import nn

torch.set_num_threads(1)


class Convolutions(nn.Module):
    """Images: convolutions, of which one is depthwise, normalisation, pooling, a
    flattened end.
    """

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8), nn.BatchNorm2d(8),
            nn.Hardtanh(0, 6), nn.MaxPool2d(2), nn.Dropout(),
        )  # fmt: skip
        self.end = nn.Linear(8 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        x = self.body(x)
        return torch.softmax(self.end(x.view(x.size(0), -1)), dim=1)


class Recurrent(nn.Module):
    """Sequences: an embedding, a GRU in both directions, a slice of its end."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.gru = nn.GRU(6, 5, batch_first=True, bidirectional=True)
        self.end = nn.Linear(10, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        return self.end(self.gru(self.embedding(tokens))[0][:, -1])


class Attention(nn.Module):
    """Tokens: one transformer layer."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            8, 2, 16, batch_first=True, activation="gelu"
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        return self.layer(x)


class Decoder(nn.Module):
    """Tokens: two layers as in llama: rotary embeddings, shared keys, gated units."""

    def __init__(self, width: int = 16, heads: int = 4, shared: int = 2) -> None:
        """Draw the weights."""
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, shared) for _ in range(2)
        )
        self.norm = nn.RMSNorm(width)
        self.end = nn.Linear(width, 20, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score for each token of the vocabulary."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.end(self.norm(x))


class DecoderLayer(nn.Module):
    """One layer of `Decoder`."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        """Draw the weights."""
        super().__init__()
        self.size = width // heads
        self.groups = heads // shared
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = (
            nn.Linear(width, shared * self.size, bias=False) for _ in range(2)
        )
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 24, bias=False) for _ in range(2))
        self.down = nn.Linear(24, width, bias=False)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """Return queries or keys turned by their positions."""
        steps = torch.arange(x.shape[2], dtype=torch.float32)
        rates = 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.cat([torch.outer(steps, rates)] * 2, dim=-1)
        half = self.size // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * angles.cos() + turned * angles.sin()

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Return heads of their own."""
        return x.view(x.shape[0], x.shape[1], -1, self.size).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        given = self.before(x)
        query = self.rotate(self.split(self.query(given)))
        key = self.rotate(self.split(self.key(given)))
        value = self.split(self.value(given))
        seen = nn.functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(self.groups, dim=1),
            value.repeat_interleave(self.groups, dim=1),
            is_causal=True,
        )
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        given = self.between(x)
        return x + self.down(nn.functional.silu(self.gate(given)) * self.up(given))


class Shifted(nn.Module):
    """Images: windows that are shifted, as in Swin, by `torch.roll`."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.body = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the windows in their places again."""
        moved = torch.roll(self.body(x), shifts=(-2, -2), dims=(2, 3))
        return torch.roll(torch.relu(moved), shifts=(2, 2), dims=(2, 3))


def by_trace(name: str, network: nn.Module, given: torch.Tensor, opset: int) -> None:
    """Save a network as the exporter writes it that traces."""
    written = io.BytesIO()
    torch.onnx.export(
        network.eval(), (given,), written, dynamo=False, opset_version=opset,
        input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}},
    )  # fmt: skip
    save(f"torch_{name}_opset{opset}", written.getvalue(), {"x": given.numpy()})


def by_graph(
    name: str, network: nn.Module, given: torch.Tensor, *, fixed: bool = False
) -> None:
    """Save a network as the exporter writes it that captures a graph, with an open or a
    fixed first dimension.
    """
    lengths = None if fixed else ({0: torch.export.Dim("batch")},)
    program = torch.onnx.export(
        network.eval(), (given,), dynamo=True, opset_version=18,
        input_names=["x"], output_names=["y"], dynamic_shapes=lengths,
    )  # fmt: skip
    model = program.model_proto
    for node in [
        *model.graph.node,
        *(node for function in model.functions for node in function.node),
    ]:
        del node.metadata_props[:]  # stack traces, which name folders of the machine
    save(f"torch_{name}", model, {"x": given.numpy()})


torch.manual_seed(0)
images = torch.from_numpy(drawn(ROWS, 3, 8, 8))
tokens = torch.from_numpy((drawn(ROWS, 7) * 5).astype("int64") % 20)
convolutions, recurrent, attention = Convolutions(), Recurrent(), Attention()
for opset in (7, 8, 9, 10, 11):
    by_trace("convolutions", convolutions, images, opset)
by_trace("recurrent", recurrent, tokens, 9)
by_trace("attention", attention, torch.from_numpy(drawn(ROWS, 5, 8)), 17)
by_graph("convolutions", convolutions, images)
by_graph("attention", attention, torch.from_numpy(drawn(ROWS, 5, 8)))
by_graph("convolutions_fixed", convolutions, images, fixed=True)
by_graph("attention_fixed", attention, torch.from_numpy(drawn(ROWS, 5, 8)), fixed=True)
decoder, shifted = Decoder(), Shifted()
by_graph("decoder", decoder, tokens)
by_graph("decoder_fixed", decoder, tokens, fixed=True)
by_graph("shifted", shifted, images)
by_graph("shifted_fixed", shifted, images, fixed=True)
