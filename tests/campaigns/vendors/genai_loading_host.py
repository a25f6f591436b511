"""Host that has epctx load folders for onnxruntime-genai:
`python genai_loading_host.py load|load_or_compile FOLDER CACHE PROMPTS TOKENS KEY=VALUE ...`
prints as JSON the tokens, the compiles so far, and what `epctx.genai` logged.
"""

from __future__ import annotations

import json
import logging
import os
import sys

from epctx_cache import cache_statistics
from epctx_genai import load_folder, load_or_compile
from genai_folder_host import generate

import epctx_core as epctx


def main(way, folder, cache, prompts, tokens, *pairs):
    """Load, and generate greedily."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("epctx.genai").addHandler(handler)
    logging.getLogger("epctx.genai").setLevel(logging.INFO)
    if way == "load":
        model = load_folder(folder)
    else:
        options = epctx.SessionOptions()
        options.add_provider("QNN", dict(pair.split("=") for pair in pairs))
        model = load_or_compile(folder, options, cache_dir=f"{cache}/folders")

    found = {
        "tokens": {
            each: generate(model, int(each), int(tokens)) for each in prompts.split(",")
        },
        "compiles": cache_statistics().misses,
        "said": said,
    }
    with answer:
        json.dump(found, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
