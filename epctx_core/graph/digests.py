"""Digests of many weights at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx_core.graph.weights import Weight

PARALLEL_FROM = 1 << 20
"""Bytes from which a weight's digest is worth a thread."""


def digest_in_parallel(weights: Iterable[Weight]) -> None:
    """Make the digests of large weights, several at once: hashing gives up the interpreter's lock.

    They are asked for one by one later, when the layout of a payload is planned.
    """
    large = list({id(w): w for w in weights if w.nbytes >= PARALLEL_FROM}.values())
    if len(large) > 1:
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            list(pool.map(lambda weight: weight.digest, large))
