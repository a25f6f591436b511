"""Host that has epctx load folders for onnxruntime-genai:
`python genai_loading_host.py load|load_or_compile FOLDER CACHE PROMPT TOKENS KEY=VALUE ...`
prints as JSON the tokens, the compiles so far, and what `epctx.genai` logged.
"""

from __future__ import annotations

import json
import logging
import os
import sys

import numpy as np
import onnxruntime_genai
from epctx_cache import cache_statistics
from epctx_genai import load_folder, load_or_compile
from genai_folder_host import CONTEXT

import epctx_core as epctx


def main(way, folder, cache, prompt, tokens, *pairs):
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

    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=CONTEXT, do_sample=False)
    generator = onnxruntime_genai.Generator(model, parameters)
    random = np.random.default_rng(int(prompt))
    generator.append_tokens(random.integers(3, 32, int(prompt)).astype(np.int32))
    for _ in range(int(tokens)):
        generator.generate_next_token()
    found = {
        "tokens": [int(token) for token in generator.get_sequence(0)],
        "compiles": cache_statistics().misses,
        "said": said,
    }
    with answer:
        json.dump(found, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
