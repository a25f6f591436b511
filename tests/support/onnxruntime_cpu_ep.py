"""onnxruntime's CPU EP behind the hooks of epctx, as an EP of its own name."""

from __future__ import annotations

from typing import ClassVar

from epctx_onnxruntime.providers import OnnxRuntimeProvider
from epctx_onnxruntime.providers.library import PluginLibrary


class OrtCpuExecutionProvider(OnnxRuntimeProvider):
    """The EP that runs where no vendor's wheel fits; it writes no EPContext nodes."""

    name: ClassVar[str] = "OrtCpuExecutionProvider"
    vendor: ClassVar[str] = "Microsoft"
    library: ClassVar[PluginLibrary] = PluginLibrary(ep="CPUExecutionProvider")
