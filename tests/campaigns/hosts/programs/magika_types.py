# /// script
# dependencies = ["magika>=1.0.3"]
#
# [tool.hosts]
# package = "magika"
# does = "file types"
# networks = ["magika/models/*/model.onnx"]
# compiler = "OpenVINOExecutionProvider"
# ///
"""Types of files whose content this script makes, as magika tells them."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from magika import Magika

PYTHON = "import os\n\n\ndef name_of(path):\n    return os.path.basename(path)\n"
DRAWN = random.Random(7)  # noqa: S311 - noise
CONTENTS = {
    "python": PYTHON * 20,
    "c": '#include <stdio.h>\nint main(void) { puts("ok"); return 0; }\n' * 20,
    "json": json.dumps([{"id": n, "of": ["a", None]} for n in range(99)], indent=1),
    "html": "<!doctype html><html><body>" + "<p>One <b>two</b>.</p>\n" * 50,
    "csv": "time,place,degrees\n" + "2026-01-01,Ulm,3.5\n" * 60,
    "text": "The quick brown fox jumps over the lazy dog. " * 40,
    "makefile": "all: a.o\n\tcc -o all a.o\n\n%.o: %.c\n\tcc -c $<\n" * 15,
    "sql": "SELECT a, COUNT(*) FROM t WHERE b > 3 GROUP BY a;\n" * 30,
    "noise": bytes(DRAWN.randrange(256) for _ in range(4000)),
    "short": "a\n",
}


def main() -> None:
    """Write a type and its score for each content."""
    contents = {
        name: text if isinstance(text, bytes) else text.encode()
        for name, text in CONTENTS.items()
    }
    magika = Magika()
    found = {name: magika.identify_bytes(data) for name, data in contents.items()}
    answers = {
        name: {
            "label": str(result.output.label),
            "network's": str(result.dl.label),
            "score": result.score,
        }
        for name, result in found.items()
    }
    Path(sys.argv[1]).write_text(json.dumps(answers, indent=1), "utf-8")


if __name__ == "__main__":
    main()
