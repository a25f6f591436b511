"""Inputs like those that programs give their networks: pictures of digits, sound like
speech, files, features. All seeded.
"""

from __future__ import annotations

import json

import numpy as np

DIGITS = {
    "0": (0x0E, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0E),
    "1": (0x04, 0x0C, 0x04, 0x04, 0x04, 0x04, 0x0E),
    "2": (0x0E, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1F),
    "3": (0x1F, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0E),
    "4": (0x02, 0x06, 0x0A, 0x12, 0x1F, 0x02, 0x02),
    "5": (0x1F, 0x10, 0x1E, 0x01, 0x01, 0x11, 0x0E),
    "6": (0x06, 0x08, 0x10, 0x1E, 0x11, 0x11, 0x0E),
    "7": (0x1F, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08),
    "8": (0x0E, 0x11, 0x11, 0x0E, 0x11, 0x11, 0x0E),
    "9": (0x0E, 0x11, 0x11, 0x0F, 0x01, 0x02, 0x0C),
}
"""Seven rows of five pixels for each digit."""


def draw_digits(text: str, height: int, width: int, scale: int = 5) -> np.ndarray:
    """Return a grey picture, (height, width) uint8, with dark digits on light, noisy
    paper.
    """
    random = np.random.default_rng([height, width, scale])
    picture = random.normal(232, 6, (height, width)).clip(0, 255)
    rows = [
        np.hstack([[row >> bit & 1 for bit in (4, 3, 2, 1, 0, 9)] for row in column])
        for column in zip(*(DIGITS[digit] for digit in text), strict=True)
    ]
    ink = np.kron(np.array(rows), np.ones((scale, scale)))[:height, :width]
    top, left = (height - ink.shape[0]) // 2, (width - ink.shape[1]) // 2
    picture[top : top + ink.shape[0], left : left + ink.shape[1]] -= 190 * ink
    return picture.clip(0, 255).astype(np.uint8)


def make_sound(seconds: float, rate: int, seed: int = 0) -> np.ndarray:
    """Return sound, (samples,) float32 in -1 to 1: a voice of harmonics that comes and
    goes, and noise.
    """
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    pitch = 130 + 25 * np.sin(2 * np.pi * 1.3 * time + seed)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = sum(np.sin(n * phase) / (1 + abs(n - 5)) for n in range(1, 14))
    syllables = np.clip(np.sin(2 * np.pi * 3.1 * time), 0, 1) * (
        np.sin(2 * np.pi * 0.4 * time + 0.5) > 0
    )
    return (
        (0.3 * voice * syllables + random.normal(0, 0.004, time.size))
        .clip(-1, 1)
        .astype(np.float32)
    )


def make_spectrum(sound: np.ndarray, bands: int, frames: int) -> np.ndarray:
    """Return the logarithms of a sound's energy, (bands, frames) float32, about -1 to
    1.5.
    """
    hop, window = sound.size // frames, 400
    padded = np.pad(sound, (0, window))
    power = np.array(
        [
            np.abs(np.fft.rfft(padded[start : start + window] * np.hanning(window)))
            ** 2
            for start in range(0, hop * frames, hop)
        ]
    )
    centres = np.geomspace(2, power.shape[1] - 2, bands)
    distances = np.abs(np.arange(power.shape[1])[:, None] - centres)
    energy = np.maximum(0, 1 - distances / (1 + centres / 8)).T @ power.T
    log = np.log10(np.maximum(energy, 1e-10))
    return ((np.maximum(log, log.max() - 8) + 4) / 4).astype(np.float32)


def make_files() -> list[bytes]:
    """Return the content of files of six types."""
    random = np.random.default_rng(6)
    table = [
        {"name": f"n{number}", "value": float(random.normal())} for number in range(40)
    ]
    return [
        (
            (
                "import os\n\n\ndef main(path):\n    for name in "
                "os.listdir(path):\n        print(name)\n"
            )
            * 9
        ).encode(),
        json.dumps(table, indent=1).encode(),
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + random.integers(0, 256, 3000, dtype=np.uint8).tobytes(),
        (
            b"<!DOCTYPE "
            b"html>\n<html><head><title>t</title></head><body><p>text</p></body></html>\n"
        )
        * 4,
        "".join(
            f"{row['name']},{row['value']:.3f},{at}\n" for at, row in enumerate(table)
        ).encode(),
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
        + random.integers(0, 256, 900, dtype=np.uint8).tobytes(),
    ]
