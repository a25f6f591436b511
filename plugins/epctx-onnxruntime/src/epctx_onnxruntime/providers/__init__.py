"""Plugin EPs of onnxruntime behind the hooks of epctx.

Importing this package imports neither onnxruntime nor a vendor's package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from epctx_onnxruntime.providers.base import (
        OnnxRuntimeProvider as OnnxRuntimeProvider,
    )
    from epctx_onnxruntime.providers.registration import (
        register_plugin_ep as register_plugin_ep,
    )

_HOME = {"OnnxRuntimeProvider": "base", "register_plugin_ep": "registration"}
__all__ = ["OnnxRuntimeProvider", "register_plugin_ep"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
