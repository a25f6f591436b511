"""Runs a model in a process of its own: `run_model.py MODEL INPUTS.npz OUTPUTS.npz`. Knows epctx only."""

from __future__ import annotations

import sys

import numpy as np

import epctx_core as epctx


def main(model: str, inputs: str, outputs: str) -> None:
    """Load a model, EPs found by its nodes' sources, run it once and store its outputs in order."""
    with np.load(inputs) as stored:
        feeds = dict(stored)
    with epctx.InferenceSession(model) as session:
        results = session.run(None, feeds)
    np.savez(outputs, *results)


if __name__ == "__main__":
    main(*sys.argv[1:])
