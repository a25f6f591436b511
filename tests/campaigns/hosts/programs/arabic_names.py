# /// script
# dependencies = ["arabic-name-romanizer>=0.2"]
#
# [tool.hosts]
# package = "arabic-name-romanizer"
# does = "Arabic names in Latin letters: an encoder, and a decoder in a beam search"
# networks = ["arabic_name_romanizer/resources/**/*coder.onnx"]
# compiler = "OpenVINOExecutionProvider"
# ///
"""Names in Latin letters, as arabic-name-romanizer writes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from arabic_name_romanizer import transliterate_many

NAMES = ("محمد", "زكريان طمبوري", "فرقدان", "خشنودزاده", "عبد المستنير", "شمسقمر")


def main() -> None:
    """Write the three best spellings of each name for two countries."""
    answers = {
        country: [
            [vars(candidate) | {"sources": None} for candidate in of_name]
            for of_name in transliterate_many(NAMES, top_k=3, country=country)
        ]
        for country in ("EG", "IR")
    }
    Path(sys.argv[1]).write_text(
        json.dumps(answers, indent=1, default=str, ensure_ascii=False), "utf-8"
    )


if __name__ == "__main__":
    main()
