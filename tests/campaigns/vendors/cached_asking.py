"""Asks `load_or_compile` with QNN three times: `cached_asking.py MODEL CACHE`; prints
compiles and answers as JSON.
"""

from __future__ import annotations

import json
import logging
import sys

import numpy as np
import onnxruntime
from epctx_onnxruntime.cached import load_or_compile
from support.vendors_onnxruntime import QNN, qnn_options

X = {"x": np.full([1, 4], 4, np.float32)}


class Ear(logging.Handler):
    """Counts what was compiled into the cache."""

    compiles = 0

    def emit(self, record):
        self.compiles += record.getMessage().startswith("compiled ")


def asked(model, cache):
    """Return the model's answer."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = load_or_compile(
        model, options, provider=QNN, provider_options=qnn_options(), cache_dir=cache
    )
    return session.run(None, X)[0].tolist()


if __name__ == "__main__":
    ear = Ear()
    logger = logging.getLogger("epctx.cache")
    logger.addHandler(ear)
    logger.setLevel(logging.INFO)
    answers = [asked(*sys.argv[1:]) for _ in range(3)]
    sys.stdout.write(
        "\n" + json.dumps({"compiles": ear.compiles, "answers": answers}) + "\n"
    )
