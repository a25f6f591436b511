# /// script
# dependencies = ["openwakeword==0.4.0"] # the last one with its networks in the wheel
#
# [tool.hosts]
# package = "openwakeword"
# does = "wake words in sound"
# networks = ["openwakeword/resources/models/*.onnx"]
# compiler = "QNNExecutionProvider"
# ///
"""Scores of wake words in a sound that this script makes, 80 ms by 80 ms."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from openwakeword.model import Model

RATE = 16000
FRAME = 1280


def make_sound() -> np.ndarray:
    """Return three seconds of rising tones and noise as samples of 16 bits."""
    drawn = np.random.default_rng(7)
    time = np.arange(3 * RATE) / RATE
    tones = sum(
        np.sin(2 * np.pi * (120 * n * time + 40 * n * time**2)) / n
        for n in range(1, 12)
    )
    loud = np.abs(np.sin(2 * np.pi * 1.5 * time))
    sound = 0.3 * loud * tones + 0.02 * drawn.standard_normal(3 * RATE)
    return (np.clip(sound, -1, 1) * 32767).astype(np.int16)


def main() -> None:
    """Write the scores of all wake words for each frame."""
    model = Model(vad_threshold=0.01)
    sound = make_sound()
    answers = []
    for begin in range(0, len(sound), FRAME):
        scores = model.predict(sound[begin : begin + FRAME])
        answers.append({name: float(score) for name, score in scores.items()})
    Path(sys.argv[1]).write_text(json.dumps(answers, indent=1), "utf-8")


if __name__ == "__main__":
    main()
