"""Producers and consumers of context models: onnxruntime with a vendor's EP, and epctx
with one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
from support.vendors_onnxruntime import (
    OPENVINO,
    QNN,
    PluginEP,
    devices,
    openvino_options,
    qnn_options,
)

import epctx_core as epctx

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import onnxruntime


@dataclass(frozen=True, kw_only=True)
class Epctx:
    """Compiles, loads and runs with epctx.

    Attributes:
        ep: distribution and EP, such as `epctx-openvino:OpenVINO`.
        options: of the EP.
    """

    ep: str
    options: Mapping[str, str] = field(default_factory=dict)

    def session_options(self) -> epctx.SessionOptions:
        """Return options with the EP alone."""
        options = epctx.SessionOptions()
        options.add_provider(self.ep, dict(self.options))
        # As onnxruntime, with whose nodes ours are compared.
        options.add_session_config_entry("ep.partition_without_computation", "keep")
        return options

    def compile_to_file(self, model: bytes, output: Path, *, embedded: bool) -> Path:
        """Write a context model and return its path."""
        report = epctx.ModelCompiler(
            self.session_options(), model, embedded
        ).compile_to_file(output)
        assert report.partitions
        return output

    def compile_to_bytes(self, model: bytes) -> bytes:
        """Return a context model with embedded payloads."""
        return epctx.ModelCompiler(
            self.session_options(), model, True
        ).compile_to_bytes()

    def run(
        self, model: Path | bytes, inputs: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Load a model, source or compiled, and run it."""
        with epctx.InferenceSession(model, self.session_options()) as session:
            return session.run(None, dict(inputs))


def make_qnn_session_options(
    given: Mapping[str, str] | None = None, **entries: str
) -> epctx.SessionOptions:
    """Return options of epctx with Qualcomm's EP, by default on its simulator, and
    entries `ep.<key>`.
    """
    options = epctx.SessionOptions()
    options.add_provider(
        "epctx-onnxruntime:QNN", dict(qnn_options() if given is None else given)
    )
    for key, value in entries.items():
        options.add_session_config_entry(f"ep.{key}", value)
    return options


OTHERS = {
    "epctx-openvino": "epctx-openvino:OpenVINO",
    "epctx-sim-openvino": "epctx-sim-openvino:OpenVINO",
    "epctx-sim-qnn": "epctx-sim-qnn:QNN",
}
"""Packages with an EP of epctx's own, and how it is named."""
NEEDS_INTEL = "needs an Intel CPU: onnxruntime-ep-openvino lists no other device"


@functools.cache
def route(name: str) -> PluginEP | Epctx:
    """Return a producer and consumer; skip the test if this machine lacks its
    device.
    """
    if name == "onnxruntime with QNN":
        import onnxruntime_qnn

        listed = devices(QNN, onnxruntime_qnn)
        assert listed, "onnxruntime-qnn lists no device"
        return PluginEP(ep=QNN, devices=listed[:1], options=qnn_options())
    if name == "epctx with QNN":
        return Epctx(ep="epctx-onnxruntime:QNN", options=qnn_options())
    if name in OTHERS:
        return Epctx(ep=OTHERS[name])
    if not openvino_devices():
        assert "GenuineIntel" not in Path("/proc/cpuinfo").read_text(), (
            "no device on an Intel CPU"
        )
        pytest.skip(NEEDS_INTEL)
    if name == "onnxruntime with OpenVINO":
        return PluginEP(
            ep=OPENVINO, devices=openvino_devices(), options=openvino_options()
        )
    return Epctx(ep="epctx-onnxruntime:OpenVINO", options=openvino_options())


def openvino_devices() -> list[onnxruntime.OrtEpDevice]:
    """Return the CPU as Intel's EP lists it; nothing on a processor that is not
    Intel's.
    """
    import onnxruntime_ep_openvino

    listed = devices(OPENVINO, onnxruntime_ep_openvino)
    return [device for device in listed if device.ep_metadata["ov_device"] == "CPU"]


def with_named_nodes(model: bytes) -> bytes:
    """Return a model whose nodes are called by their numbers and operators."""
    named = onnx.ModelProto.FromString(model)
    for number, node in enumerate(named.graph.node):
        node.name = f"{number} {node.op_type}"
    return named.SerializeToString()
