"""Asks for a model in a process of its own: `cached_asking.py MODEL CACHE TIMES`;
prints compiles and the answers.
"""

from __future__ import annotations

import json
import logging
import sys

import numpy as np
from cached_runtime import EP, in_place, registry, session_options
from epctx_onnxruntime.cached import load_or_compile

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


class Ear(logging.Handler):
    """Counts what was compiled into the cache."""

    compiles = 0

    def emit(self, record):
        self.compiles += record.getMessage().startswith("compiled ")


def asked(model, cache):
    """Return the model's answer."""
    session = load_or_compile(
        model, session_options(), provider=EP, cache_dir=cache, registry=registry()
    )
    return session.run(None, {"x": X})[0].tolist()


def main(model, cache, times):
    ear = Ear()
    logger = logging.getLogger("epctx.cache")
    logger.addHandler(ear)
    logger.setLevel(logging.INFO)
    in_place(setattr)
    answers = [asked(model, cache) for _ in range(int(times))]
    sys.stdout.write(json.dumps({"compiles": ear.compiles, "answers": answers}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
