# /// script
# dependencies = ["rapidocr>=3.10", "pillow"]
#
# [tool.hosts]
# package = "rapidocr"
# does = "text in images: finds, turns and reads it"
# networks = ["rapidocr/models/*.onnx"]
# compiler = "OpenVINOExecutionProvider"
# ///
"""Text that rapidocr reads in an image that this script draws."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import rapidocr
from PIL import Image, ImageDraw, ImageFont

NETWORKS = Path(rapidocr.__file__).parent / "models"
LINES = ("Invoice 2026-11", "Total: 1,284.50 EUR", "Thank you very much")


def draw_page() -> np.ndarray:
    """Return the image as 8-bit values, (height, width, 3)."""
    image = Image.new("RGB", (640, 320), "white")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(LINES):
        font = ImageFont.load_default(size=30 + 6 * number)
        draw.text((30, 30 + 90 * number), line, fill=(20, 20, 60), font=font)
    return np.asarray(image)


def main() -> None:
    """Write each line with its place and score, upright and upside down."""
    # By path: it compares the digests of those that it finds itself.
    paths = {
        f"{part}.model_path": str(next(NETWORKS.glob(pattern)))
        for part, pattern in (
            ("Det", "*_det_*.onnx"),
            ("Cls", "*_cls_*.onnx"),
            ("Rec", "*_rec_*.onnx"),
        )
    }
    engine = rapidocr.RapidOCR(params=paths | {"Global.log_level": "error"})
    page = draw_page()
    answers = []
    for image in (page, np.ascontiguousarray(page[::-1, ::-1])):
        found = engine(image)
        answers.append(
            {
                "texts": list(found.txts),
                "scores": [float(score) for score in found.scores],
                "boxes": np.asarray(found.boxes).tolist(),
            }
        )
    Path(sys.argv[1]).write_text(json.dumps(answers, indent=1), "utf-8")


if __name__ == "__main__":
    main()
