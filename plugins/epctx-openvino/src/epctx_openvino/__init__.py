"""OpenVINO Execution Provider over the `openvino` package, which is imported when it is
first needed.
"""

from __future__ import annotations

from epctx_openvino.provider import OpenVINOExecutionProvider

__version__ = "0.1.0"
__all__ = ["OpenVINOExecutionProvider", "__version__"]
