"""Asks a cache in a process of its own: `asking.py MODEL CACHE TIMES`; prints compiles
and the digest of all answers.

With `hang` for TIMES the process stops for ever in the middle of its compile, and says
so before.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time

import numpy as np

import epctx_core as epctx


class Ear(logging.Handler):
    """Counts what was compiled into the cache."""

    compiles = 0

    def emit(self, record):
        self.compiles += record.getMessage().startswith("compiled ")


def hang(self, path):
    """Leave half of a compile and go no further."""
    (path.parent / "half").write_bytes(b"half")
    say("compiling")
    time.sleep(600)


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(model, cache, times):
    ear = Ear()
    logger = logging.getLogger("epctx.cache")
    logger.addHandler(ear)
    logger.setLevel(logging.INFO)
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    if times == "hang":
        epctx.ModelCompiler.compile_to_file = hang
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    answers = set()
    for _ in range(1 if times == "hang" else int(times)):
        with epctx.load_or_compile(model, options, cache) as session:
            answers.add(
                hashlib.sha256(session.run(None, {"x": x})[0].tobytes()).hexdigest()
            )
    say(json.dumps({"compiles": ear.compiles, "answers": sorted(answers)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
