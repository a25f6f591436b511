"""The three simulated EPs that are installed: their names, what they write, and options
with some of them.
"""

from __future__ import annotations

import itertools
from typing import Final

import epctx_core as epctx

OPENVINO: Final = "OpenVINOExecutionProvider"
QNN: Final = "QNNExecutionProvider"
VITISAI: Final = "VitisAIExecutionProvider"
CPU: Final = "CPUExecutionProvider"

SUFFIXES: Final = {OPENVINO: OPENVINO, QNN: "qnn", VITISAI: "vitisai"}
"""By EP, what follows the model's name in that of the binary."""

PACKAGES: Final = {
    OPENVINO: "epctx-sim-openvino",
    QNN: "epctx-sim-qnn",
    VITISAI: "epctx-sim-vitisai",
}
EVERY_ORDER: Final = tuple(itertools.permutations((OPENVINO, QNN, VITISAI)))
ORDERS: Final = (
    (VITISAI, QNN, OPENVINO),
    (QNN, OPENVINO, VITISAI),
    (OPENVINO, VITISAI, QNN),
)
"""Three orders in which each EP is once the first, the second and the last."""

_OPTIONS: Final = {QNN: {"offload_graph_io_quantization": "1"}}
"""As with the real EP, QNN leaves what quantises a network's inputs and outputs: others
then have work.
"""


def with_eps(*eps: str) -> epctx.SessionOptions:
    """Return session options with EPs in order of priority."""
    options = epctx.SessionOptions()
    for ep in eps:
        options.add_provider(ep, _OPTIONS.get(ep))
    return options


def short(eps: tuple[str, ...]) -> str:
    """Return EPs as a test's id."""
    return "-".join(ep.removesuffix("ExecutionProvider") for ep in eps)
