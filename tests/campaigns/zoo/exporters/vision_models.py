# /// script
# dependencies = [
#     "torch==2.14.1", "torchvision==0.29.1", "timm==1.0.31", "onnxscript==0.7.2", "onnx==1.23.2", "onnxruntime==1.32.0",
# ]
# [tool.zoo]
# models = []
# ///
"""Make networks for images of torchvision and timm with drawn weights, exported by torch.

Most are some MB large, so none is committed: `make zoo` makes them.
"""

from __future__ import annotations

import timm
import torch
import torchvision
from exporting import Tensors, export
from torch import nn

torch.set_num_threads(1)

TORCHVISION = {
    "densenet121": {},
    "efficientnet_b0": {},
    "lraspp_mobilenet_v3_large": {"weights_backbone": None},
    "mnasnet0_5": {},
    "mobilenet_v2": {"width_mult": 0.1},
    "mobilenet_v3_small": {"width_mult": 0.25},
    "regnet_y_400mf": {},
    "resnet18": {},
    "shufflenet_v2_x0_5": {},
    "squeezenet1_1": {},
    "ssdlite320_mobilenet_v3_large": {"weights_backbone": None},
    "fasterrcnn_mobilenet_v3_large_320_fpn": {"weights_backbone": None},
}
DETECTORS = "ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn"
TIMM = (
    "convnext_atto", "edgenext_xx_small", "efficientvit_b0", "ghostnet_050", "lcnet_035", "mobilenetv3_small_050",
    "mobilenetv4_conv_small_035", "mobileone_s0", "pvt_v2_b0", "repvgg_a0", "resmlp_12_224", "test_convnext", "test_efficientnet",
    "test_mambaout", "test_nfnet", "test_resnet", "test_vit", "tinynet_e", "vit_tiny_patch16_224",
)  # fmt: skip
SIZE_OF = {"resmlp_12_224": 224, "vit_tiny_patch16_224": 224, "test_vit": 160}


class Called(nn.Module):
    """A network that is called with one image after the other or a batch, and gives
    tensors only.
    """

    def __init__(self, network: nn.Module, *, detects: bool) -> None:
        """Keep the network."""
        super().__init__()
        self.network, self.detects = network.eval(), detects

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return its outputs."""
        if self.detects:
            (found,) = self.network([inputs[0][0]])
            return found["boxes"], found["scores"], found["labels"]
        result = self.network(inputs[0])
        return tuple(result.values()) if isinstance(result, dict) else (result,)


def of(size: int, *, batch: int = 0):
    """Return a maker of images of a size."""

    def make(rows: int, _sequence: int) -> Tensors:
        generator = torch.Generator().manual_seed(rows)
        return {"image": torch.rand(batch or rows, 3, size, size, generator=generator)}

    return make


if __name__ == "__main__":
    for name, more in TORCHVISION.items():
        torch.manual_seed(0)
        detects = name in DETECTORS
        network = torchvision.models.get_model(name, weights=None, **more)
        export(
            f"vision_{name}",
            Called(network, detects=detects),
            of(320, batch=1) if detects else of(64),
            None if detects else {0: "batch"},
            # How many boxes there are depends on the data: the newer exporter refuses.
            trace=17 if detects else 0,
        )
    for name in TIMM:
        torch.manual_seed(0)
        network = timm.create_model(name, pretrained=False, num_classes=10)
        export(
            f"vision_timm_{name}",
            Called(network, detects=False),
            of(SIZE_OF.get(name, 64)),
            {0: "batch"},
        )
