"""A SIMULATED vendor SDK: compiler, container format and device, for Execution
Providers without hardware.

Importing the package imports nothing else: take what you need from its modules
(`compiler`, `container`, `device`, `versions`). It knows the plugin contract and
nothing about any one vendor.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
