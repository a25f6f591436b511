"""The package onnxruntime itself, for all modules here.

After `epctx_onnxruntime.install()` an `import onnxruntime` gives the drop-in, which
this package must not run on.
"""

from __future__ import annotations

import logging

from epctx_core.errors import PackageMissing

try:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as native
except ModuleNotFoundError as error:
    if error.name != "onnxruntime":
        raise
    raise PackageMissing(
        "epctx-onnxruntime needs onnxruntime, and none is installed.",
        hint="pip install onnxruntime, or one with the EPs of a device: "
        "onnxruntime-gpu, onnxruntime-openvino, onnxruntime-directml, ...; `epctx docs "
        "install` has a table.",
    ) from error

__all__ = ["IS_OLD", "native", "onnxruntime"]

OLDEST = (1, 31)
"""Oldest onnxruntime that epctx is made for, as some EPs are in older ones only."""
IS_OLD = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < OLDEST
if IS_OLD:
    logging.getLogger("epctx.engine").warning(
        "onnxruntime %s is older than %s: it runs models and its EPs, and optimises "
        "none for other EPs.",
        onnxruntime.__version__,
        ".".join(map(str, OLDEST)),
    )
