"""Runs a model in a process of its own: `run_model.py MODEL INPUTS.npz OUTPUTS.npz`.

Knows epctx only.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

import epctx_core as epctx

if TYPE_CHECKING:
    from pathlib import Path


def run(model: str | Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Load a model, EPs found by its nodes' sources, and run it once."""
    with epctx.InferenceSession(model) as session:
        return session.run(None, inputs)


def main(model: str, inputs: str, outputs: str) -> None:
    """Run a model and store its outputs in order."""
    with np.load(inputs) as stored:
        feeds = dict(stored)
    np.savez(outputs, *run(model, feeds))


if __name__ == "__main__":
    main(*sys.argv[1:])
