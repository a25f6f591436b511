"""A SIMULATED VitisAI Execution Provider: everything a VitisAI context model needs,
except the hardware.

Importing it is cheap: onnx, the simulated SDK and cryptography are imported when they
are first used.
"""

from __future__ import annotations

from epctx_sim_vitisai.provider import VitisAIProvider

__version__ = "0.1.0"
__all__ = ["VitisAIProvider", "__version__"]
