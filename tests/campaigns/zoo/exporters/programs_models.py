# /// script
# dependencies = [
#     "torch==2.14.1", "torchvision==0.29.1", "onnxscript==0.7.2", "onnx==1.23.2", "onnxruntime==1.32.0",
# ]
# [tool.zoo]
# models = ["programs_*"]
# ///
"""Make small programs of PyTorch: control flow, indexing, recurrence, resizing, detection,
halves; exported by torch's newer exporter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchvision
from exporting import Tensors, export
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)

BATCH = {0: "batch"}


class Program(nn.Module):
    """A function of some inputs, with layers of its own."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        """Keep the layers."""
        super().__init__()
        self.function = function
        self.layers = nn.ModuleDict(layers)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return what the function gives."""
        return self.function(*inputs, **self.layers)


def drawn(*shape: int) -> torch.Tensor:
    """Return drawn numbers of a shape, the same each time."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


def rows(width: int) -> Callable[[int, int], Tensors]:
    """Return a maker of rows of a width."""
    return lambda batch, _: {"x": drawn(batch, width)}


def sequences(width: int) -> Callable[[int, int], Tensors]:
    """Return a maker of sequences of a width."""
    return lambda batch, sequence: {"x": drawn(batch, sequence, width)}


def pictures(channels: int = 3, size: int = 16) -> Callable[[int, int], Tensors]:
    """Return a maker of square pictures."""
    return lambda batch, _: {"x": drawn(batch, channels, size, size)}


def words(batch: int, sequence: int) -> Tensors:
    """Return numbers of words."""
    generator = torch.Generator().manual_seed(batch)
    return {"x": torch.randint(0, 20, (batch, sequence), generator=generator)}


def boxes(batch: int, sequence: int) -> Tensors:
    """Return boxes with scores; how many depends on the sizes."""
    corners = drawn(batch * sequence, 2).abs() * 10
    return {
        "boxes": torch.cat([corners, corners + 5], dim=1),
        "scores": drawn(batch * sequence).sigmoid(),
    }


def save(
    name: str,
    function: Callable[..., Any],
    make: Callable[[int, int], Tensors],
    dimensions: Any = BATCH,
    **layers: nn.Module,
) -> None:
    """Save a program."""
    export(f"programs_{name}", Program(function, **layers), make, dimensions)


def control_flow() -> None:
    """Save branches and loops."""
    torch.manual_seed(0)
    save(
        "cond",
        lambda x: torch.cond(x.sum() > 0, lambda y: y.sin() + 1, lambda y: y * 2, (x,)),
        rows(4),
    )
    save(
        "cond_layers",
        lambda x, one, other: torch.cond(x.mean() > 0, one, other, (x,)),
        rows(4),
        one=nn.Linear(4, 4),
        other=nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
    )

    def loop(x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.while_loop import while_loop

        steps = torch.zeros((), dtype=torch.int64)
        return while_loop(
            lambda i, _: i < 5, lambda i, y: (i + 1, y.sin() + 0.5), (steps, x)
        )[1]

    save("while_loop", loop, rows(4))

    def scanned(x: torch.Tensor) -> Any:
        from torch._higher_order_ops.scan import scan

        def step(
            carry: torch.Tensor, row: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            after = carry * 0.5 + row
            return after, after.relu()

        return scan(step, torch.zeros(4), x)

    save("scan", scanned, rows(4), None)


def indexing() -> None:
    """Save scattering, gathering, rolling, sorting."""
    torch.manual_seed(0)
    index = torch.tensor([[0, 2, 1]])
    save("scatter", lambda x: x.scatter(1, index.expand(x.shape[0], 3), 7.0), rows(4))
    save(
        "scatter_add",
        lambda x: x.scatter_add(1, index.expand(x.shape[0], 3), x[:, :3]),
        rows(4),
    )
    save(
        "index_put",
        lambda x: x.index_put(
            (torch.tensor([0]), torch.tensor([1])), torch.tensor(5.0)
        ),
        rows(4),
        None,
    )
    save("index_add", lambda x: x.index_add(1, torch.tensor([0, 0]), x[:, :2]), rows(4))
    save("roll", lambda x: torch.roll(x, (1, -2), (2, 3)), pictures())
    save("gather", lambda x: x.gather(1, x.argsort(dim=1)), rows(5))
    save("top_k", lambda x: torch.topk(x, 3, dim=-1), rows(8))
    save("sort", lambda x: torch.sort(x, dim=1, descending=True), rows(8))
    save("nonzero", lambda x: torch.nonzero(x > 0), rows(4))
    save(
        "one_hot",
        lambda x: functional.one_hot(x, 20).float(),
        words,
        {0: "batch", 1: "sequence"},
    )
    save("cumsum", lambda x: torch.cumsum(x, 1), rows(4))
    save("masked", lambda x: x.masked_fill(x < 0, float("-inf")).softmax(-1), rows(4))
    save("where", lambda x: torch.where(x > 0, x, x.exp() - 1), rows(4))
    save(
        "einsum",
        lambda x: torch.einsum("bij,bkj->bik", x, x.tanh()),
        sequences(4),
        {0: "batch", 1: "sequence"},
    )
    save(
        "slices",
        lambda x: torch.cat([x[:, ::2], x[:, 1:3].flip(1), x[:, -1:]], 1),
        rows(6),
    )
    save(
        "triangle",
        lambda x: torch.tril(x @ x.transpose(1, 2)),
        sequences(4),
        {0: "batch", 1: "sequence"},
    )
    save(
        "embedding",
        lambda x, table: table(x).sum(1),
        words,
        {0: "batch", 1: "sequence"},
        table=nn.Embedding(20, 8),
    )


def recurrence() -> None:
    """Save recurrent layers."""
    torch.manual_seed(0)
    save(
        "lstm",
        lambda x, cells: cells(x),
        sequences(6),
        {0: "batch"},
        cells=nn.LSTM(6, 5, batch_first=True),
    )
    save(
        "lstm_stacked", lambda x, cells: cells(x)[0], sequences(6), {0: "batch"},
        cells=nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True),
    )  # fmt: skip
    save(
        "gru",
        lambda x, cells: cells(x),
        sequences(6),
        {0: "batch"},
        cells=nn.GRU(6, 5, batch_first=True),
    )
    save(
        "rnn",
        lambda x, cells: cells(x)[0],
        sequences(6),
        {0: "batch"},
        cells=nn.RNN(6, 5, batch_first=True),
    )


def networks() -> None:
    """Save convolutional networks."""
    torch.manual_seed(0)

    def unet(
        x: torch.Tensor,
        down: nn.Module,
        middle: nn.Module,
        up: nn.Module,
        end: nn.Module,
    ) -> torch.Tensor:
        early = down(x).relu()
        inner = middle(functional.max_pool2d(early, 2)).relu()
        return end(torch.cat([early, up(inner)], 1))

    save(
        "unet", unet, pictures(), down=nn.Conv2d(3, 8, 3, padding=1), middle=nn.Conv2d(8, 16, 3, padding=1),
        up=nn.ConvTranspose2d(16, 8, 2, stride=2), end=nn.Conv2d(16, 2, 1),
    )  # fmt: skip
    save("convolution_1d", lambda x, net: net(x.transpose(1, 2)), sequences(6), {0: "batch"}, net=nn.Sequential(
        nn.Conv1d(6, 8, 3, padding=2, dilation=2), nn.GELU(), nn.Conv1d(8, 4, 3, groups=4),
    ))  # fmt: skip
    save("convolution_3d", lambda x, net: net(x), lambda b, _: {"x": drawn(b, 2, 4, 8, 8)}, net=nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.AdaptiveAvgPool3d(1),
    ))  # fmt: skip
    save("norms", lambda x, net: net(x), pictures(), net=nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.InstanceNorm2d(8, affine=True), nn.Hardswish(),
        nn.Conv2d(8, 8, 1), nn.Mish(), nn.PReLU(), nn.Softplus(),
    ))  # fmt: skip
    save(
        "pixel_shuffle",
        lambda x, net: functional.pixel_shuffle(net(x), 2),
        pictures(size=8),
        net=nn.Conv2d(3, 12, 3),
    )
    save(
        "attention", lambda x, layer: layer(x), sequences(8), {0: "batch", 1: "sequence"},
        layer=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0).eval(),
    )  # fmt: skip


def resizing() -> None:
    """Save resizing, sampling, pooling, padding."""
    for mode in ("nearest", "bilinear", "bicubic"):
        corners = {} if mode == "nearest" else {"align_corners": False}
        save(
            f"resize_{mode}",
            lambda x, mode=mode, corners=corners: functional.interpolate(
                x, scale_factor=2.0, mode=mode, **corners
            ),
            pictures(size=8),
        )
    save(
        "grid_sample",
        lambda x: functional.grid_sample(
            x,
            functional.affine_grid(
                torch.eye(2, 3).expand(x.shape[0], 2, 3) * 0.7,
                [x.shape[0], 3, 8, 8],
                align_corners=False,
            ),
            align_corners=False,
        ),
        pictures(),
    )
    save(
        "pools",
        lambda x: (
            functional.avg_pool2d(x, 3, 2, 1),
            functional.adaptive_max_pool2d(x, 4),
            functional.lp_pool2d(x.abs(), 2, 2),
        ),
        pictures(),
    )
    save(
        "padding",
        lambda x: functional.pad(
            functional.pad(x, (1, 2, 0, 1), "reflect"), (1, 1, 2, 0), "replicate"
        ),
        pictures(),
    )


def detection() -> None:
    """Save what detectors end with."""
    save("nms", lambda b, s: b[torchvision.ops.nms(b, s, 0.5)], boxes, {0: "count"})
    save(
        "roi_align",
        lambda x, net: torchvision.ops.roi_align(net(x), [torch.tensor([[0.0, 0.0, 8.0, 8.0], [2.0, 2.0, 12.0, 14.0]])], 3, sampling_ratio=2),
        lambda _b, _s: {"x": drawn(1, 3, 16, 16)}, None, net=nn.Conv2d(3, 4, 3, padding=1),
    )  # fmt: skip


def types() -> None:
    """Save programs of other element types."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    ).half()
    save(
        "half_convolutions",
        lambda x, net: net(x),
        lambda b, _: {"x": drawn(b, 3, 16, 16).half()},
        net=net,
    )
    layer = (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0).half().eval()
    )
    save(
        "half_attention",
        lambda x, layer: layer(x),
        lambda b, s: {"x": drawn(b, s, 8).half()},
        {0: "batch", 1: "sequence"},
        layer=layer,
    )
    save(
        "double",
        lambda x, net: net(x).log_softmax(-1),
        lambda b, _: {"x": drawn(b, 6).double()},
        net=nn.Linear(6, 4).double(),
    )
    save(
        "integers",
        lambda x: (x // 3 + x % 3 * 2).clamp(0, 9) ^ 1,
        words,
        {0: "batch", 1: "sequence"},
    )
    save("booleans", lambda x: (x > 0) & (x < 1) | x.isnan(), rows(4))


if __name__ == "__main__":
    control_flow()
    indexing()
    recurrence()
    networks()
    resizing()
    detection()
    types()
