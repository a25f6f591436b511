"""onnxruntime with a vendor's plugin EP: the peer that epctx is compared with.

Knows nothing of epctx.
"""

from __future__ import annotations

import functools
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    import numpy as np

QUIET = 4
QNN = "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"


def qnn_options() -> dict[str, str]:
    """Return the options with which Qualcomm's EP works on its simulator, in half
    precision.
    """
    import onnxruntime_qnn

    return {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": "60",
        "htp_arch": "73",
        "enable_htp_fp16_precision": "1",
    }


def openvino_options() -> dict[str, str]:
    """Return the options with which OpenVINO computes in float32, also on CPUs with
    bfloat16.
    """
    return {"load_config": json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": "f32"}})}


@functools.cache
def devices(ep: str, wheel: ModuleType) -> list[onnxruntime.OrtEpDevice]:
    """Return the devices that a wheel's EP lists, which is registered unless somebody
    did.
    """
    if not _listed(ep):
        # One that is registered and lists nothing is refused a second time.
        with suppress(native.Fail):
            onnxruntime.register_execution_provider_library(
                ep, wheel.get_library_path()
            )
    return _listed(ep)


def _listed(ep: str) -> list[onnxruntime.OrtEpDevice]:
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == ep]


@dataclass(frozen=True, kw_only=True)
class PluginEP:
    """Compiles, loads and runs with onnxruntime itself.

    Attributes:
        ep: its name.
        devices: those of the EP that sessions use.
        options: the vendor's.
    """

    ep: str
    devices: Sequence[onnxruntime.OrtEpDevice]
    options: Mapping[str, str]

    def session_options(self) -> onnxruntime.SessionOptions:
        """Return options with the EP alone; onnxruntime adds its CPU EP."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = QUIET
        options.add_provider_for_devices(self.devices, dict(self.options))
        return options

    def compile_to_file(self, model: bytes, output: Path, *, embedded: bool) -> Path:
        """Write a context model and return its path."""
        compiler = onnxruntime.ModelCompiler(self.session_options(), model, embedded)
        compiler.compile_to_file(str(output))
        return output

    def compile_to_bytes(self, model: bytes) -> bytes:
        """Return a context model with embedded payloads."""
        return onnxruntime.ModelCompiler(
            self.session_options(), model, True
        ).compile_to_bytes()

    def find_nodes(self, model: bytes) -> set[str]:
        """Return the names of the nodes that the EP's EPContext nodes replace, of those
        that compute no constants. Each node has a name of its own.
        """
        graph = onnx.ModelProto.FromString(model).graph
        written = onnx.ModelProto.FromString(self.compile_to_bytes(model)).graph
        # onnxruntime renames the nodes that it moves to another layout, or their values.
        left = {
            name
            for node in written.node
            if node.op_type != "EPContext"
            for name in (*node.output, node.name.partition("_token_")[0])
        }
        constants = {tensor.name for tensor in graph.initializer}
        found = set()
        for node in graph.node:
            if constants.issuperset(filter(None, node.input)):
                constants.update(node.output)
            elif left.isdisjoint([node.name, *node.output]):
                found.add(node.name)
        return found

    def find_nodes_of_session(self, model: bytes) -> set[str]:
        """Return the names of the nodes that the EP gets in a session, which folds
        constants and fuses nodes before; those that it made are among them.
        """
        options = self.session_options()
        options.graph_optimization_level = (
            onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        )
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        groups = onnxruntime.InferenceSession(
            model, options
        ).get_provider_graph_assignment_info()
        return {
            node.name.partition("_token_")[0]
            for group in groups
            if group.ep_name == self.ep
            for node in group.get_nodes()
        }

    def run(
        self, model: Path | bytes, inputs: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Load a model, source or compiled, and run it."""
        options = self.session_options()
        # As ModelCompiler does by default: what optimisations fuse would be computed in
        # another order.
        options.graph_optimization_level = (
            onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        )
        session = onnxruntime.InferenceSession(
            str(model) if isinstance(model, Path) else model, options
        )
        session.disable_fallback()
        return session.run(None, dict(inputs))
