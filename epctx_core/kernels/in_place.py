"""Results that go into memory which the caller gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epctx_core.errors import RuntimeException

if TYPE_CHECKING:
    from collections.abc import Sequence


def write_in_place(results: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Copy results into given memory and return that; numpy alone would broadcast and cast to make them fit.

    Raises:
        RuntimeException: a result has another type or shape than the memory for it.
    """
    for place, (result, target) in enumerate(zip(results, outputs, strict=True)):
        if result.shape != target.shape or result.dtype != target.dtype:
            raise RuntimeException(
                f"output {place} is {result.dtype}{list(result.shape)}; the memory given for it is "
                f"{target.dtype}{list(target.shape)}.",
                hint="The model declares a type or a shape that is not what its operators compute; correct it.",
            )
        np.copyto(target, result)
    return outputs
