"""A SIMULATED QNN Execution Provider: everything a QNN context model needs, except the
hardware.

Importing it is cheap: onnx and the simulated SDK are imported when they are first used.
"""

from __future__ import annotations

from epctx_sim_qnn.provider import QnnProvider

__version__ = "0.1.0"
__all__ = ["QnnProvider", "__version__"]
