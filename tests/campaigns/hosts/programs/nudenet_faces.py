# /// script
# dependencies = ["nudenet>=3.4.2"]
#
# [tool.hosts]
# package = "nudenet"
# does = "faces and parts of bodies in images"
# networks = ["nudenet/320n.onnx"]
# compiler = "OpenVINOExecutionProvider"
# ///
"""Faces that nudenet finds in what this script draws."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cv2
import numpy as np
from nudenet import NudeDetector

SIZE = 320
SKIN = np.array([140.0, 170.0, 220.0])  # blue, green, red
HAIR, WHITE, IRIS, BROW, LIPS = (
    np.array(colour, float)
    for colour in (
        (25, 30, 45),
        (235, 235, 235),
        (40, 40, 50),
        (30, 35, 50),
        (90, 80, 170),
    )
)


def draw_face(seed: int) -> np.ndarray:
    """Return a face of ellipses on a plain ground, (320, 320, 3)."""
    drawn = np.random.default_rng(seed)
    image = np.full((SIZE, SIZE, 3), drawn.integers(60, 250, 3), np.float64)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    skin = SKIN * drawn.uniform(0.6, 1.1)

    def fill(x: float, y: float, width: float, height: float, colour: object) -> None:
        far = ((columns - x) / width) ** 2 + ((rows - y) / height) ** 2 - 1
        inside = 1 / (1 + np.exp(np.clip(15 * far, -50, 50)))[..., None]
        image[:] = image * (1 - inside) + np.asarray(colour) * inside

    fill(160, 105, 68, 85, HAIR)
    fill(160, 290, 120, 80, 0.95 * skin)
    fill(160, 210, 25, 50, 0.85 * skin)
    fill(160, 120, 52, 70, skin)
    for side in (-1, 1):
        fill(160 + side * 21, 110, 11, 5.5, WHITE)
        fill(160 + side * 21, 110, 5, 5, IRIS)
        fill(160 + side * 21, 95, 14, 3, BROW)
        fill(160 + side * 60, 300, 10, 9, 0.6 * skin)
    fill(160, 135, 8, 12, 0.8 * skin)
    fill(160, 158, 18, 5, LIPS)
    image += ((columns - 160) * 0.15)[..., None]
    return cv2.GaussianBlur(np.clip(image, 0, 255).astype(np.uint8), (5, 5), 1)


def main() -> None:
    """Write what is found in each of eight images."""
    detector = NudeDetector()
    answers = [detector.detect(draw_face(seed)) for seed in range(8)]
    answers.append(detector.detect_batch([draw_face(n) for n in range(8)], 4))
    Path(sys.argv[1]).write_text(json.dumps(answers, indent=1, default=float), "utf-8")


if __name__ == "__main__":
    main()
