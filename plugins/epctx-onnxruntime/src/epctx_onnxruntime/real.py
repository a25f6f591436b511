"""The package onnxruntime itself, for all modules here, imported without its telemetry.

After `epctx_onnxruntime.install()` an `import onnxruntime` gives the drop-in, which
this package must not run on.

From 1.29 on, the import of onnxruntime's wheels for Linux writes a device's id and a
queued event into the user's cache folder, before any session, and so before
`disable_telemetry_events()` can be called. Measured with 1.32: `ORT_DISABLE_TELEMETRY`
is read in this import alone. Set for the import and deleted before the first session,
it keeps both files away, also after `enable_telemetry_events()`; set between import
and session, it does nothing.
"""

from __future__ import annotations

import logging
import os
import sys

from epctx_core.errors import PackageMissing

_SWITCH = "ORT_DISABLE_TELEMETRY"
_IS_DECIDED = _SWITCH in os.environ or "onnxruntime" in sys.modules
"""True if the user or the host has decided on telemetry."""

if not _IS_DECIDED:
    os.environ[_SWITCH] = "1"
try:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as native
except ImportError as error:
    # pip leaves folders in which there are files that it did not install: packages
    # without content.
    if error.name not in {"onnxruntime", "onnxruntime.capi"}:
        raise
    raise PackageMissing(
        "epctx-onnxruntime needs onnxruntime, and none is installed.",
        hint="pip install onnxruntime, or one with the EPs of a device: "
        "onnxruntime-gpu, onnxruntime-openvino, onnxruntime-directml, ...; `epctx docs "
        "install` has a table.",
    ) from error
finally:
    if not _IS_DECIDED:
        os.environ.pop(_SWITCH, None)

__all__ = ["IS_OLD", "native", "onnxruntime"]

OLDEST = (1, 31)
"""Oldest onnxruntime that epctx is made for, as some EPs are in older ones only."""
IS_OLD = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < OLDEST
if IS_OLD and not os.environ.get("EPCTX_CHILD"):
    # A process that epctx started says nothing that the one that started it says.
    logging.getLogger("epctx.engines").warning(
        "onnxruntime %s is older than %s: it runs models and its EPs, and optimises "
        "none for other EPs. Upgrade it; where there is no newer one, the vendor's "
        "plugin wheel runs beside a newer onnxruntime: `epctx docs install` has a "
        "table.",
        onnxruntime.__version__,
        ".".join(map(str, OLDEST)),
    )
