"""A SIMULATED OpenVINO Execution Provider: everything an OpenVINO context model needs,
except the hardware.

Importing it is cheap: onnx and the simulated SDK are imported when they are first used.
"""

from __future__ import annotations

from epctx_sim_openvino.provider import OpenVinoProvider

__version__ = "0.1.0"
__all__ = ["OpenVinoProvider", "__version__"]
