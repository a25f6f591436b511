"""Results and errors of onnxruntime without any optimisation of its own.

Knows nothing of epctx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnxruntime
import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np


def onnxruntime_says(path: Path) -> str:
    """Return why onnxruntime does not load a context model."""
    with pytest.raises(Exception, match="EPContext") as caught:
        _session(path)
    return str(caught.value)


def onnxruntime_reads(model: bytes) -> bool:
    """Whether onnxruntime takes a model as it is."""
    try:
        _session(model)
    except Exception:  # noqa: BLE001 - each of its codes is a class of its own
        return False
    return True


def onnxruntime_result(path: Path, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return what onnxruntime's CPU provider computes."""
    return list(_session(path).run(None, feeds))


def _session(model: Path | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(
        given, options, providers=["CPUExecutionProvider"]
    )
