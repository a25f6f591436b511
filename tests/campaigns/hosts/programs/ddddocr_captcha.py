# /// script
# dependencies = ["ddddocr>=1.6.1"]
#
# [tool.hosts]
# package = "ddddocr"
# does = "short texts in images, and where they are"
# networks = ["ddddocr/common_old.onnx", "ddddocr/common.onnx", "ddddocr/common_det.onnx"]
# compiler = "OpenVINOExecutionProvider"
# ///
"""Short texts that ddddocr reads and finds in images that this script draws."""

from __future__ import annotations

import io
import json
import random
import sys
from pathlib import Path

from ddddocr import DdddOcr
from PIL import Image, ImageDraw, ImageFont

WORDS = ("7k3m", "harbor", "Q29X", "lamp")


def draw(word: str, size: tuple[int, int], place: tuple[int, int]) -> bytes:
    """Return a picture of a word with drawn dots, as PNG."""
    drawn = random.Random(word)  # noqa: S311 - dots
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    for _ in range(60):
        dot = (drawn.randrange(size[0]), drawn.randrange(size[1]))
        pen.point(dot, fill=(90, 140, 90))
    pen.text(place, word, fill=(20, 40, 120), font=ImageFont.load_default(size=36))
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


def main() -> None:
    """Write what both readers read, and the boxes of the finder."""
    answers = {}
    for name, reader in {
        "newer": DdddOcr(beta=True, show_ad=False),
        "older": DdddOcr(show_ad=False),
    }.items():
        answers[name] = [
            reader.classification(draw(word, (160, 60), (15, 8))) for word in WORDS
        ]
    finder = DdddOcr(det=True, ocr=False, show_ad=False)
    answers["boxes"] = [
        finder.detection(draw(word, (300, 200), (40 + 30 * n, 30 + 30 * n)))
        for n, word in enumerate(WORDS)
    ]
    Path(sys.argv[1]).write_text(json.dumps(answers, indent=1), "utf-8")


if __name__ == "__main__":
    main()
