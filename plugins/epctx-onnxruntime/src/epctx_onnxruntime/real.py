"""The package onnxruntime itself, for all modules here.

After `epctx_onnxruntime.install()` an `import onnxruntime` gives the drop-in, which
this package must not run on.
"""

from __future__ import annotations

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

__all__ = ["native", "onnxruntime"]
