"""Host of folders in unmodified onnxruntime-genai: `python genai_folder_host.py FOLDER
PROMPTS TOKENS [LIBRARY]` prints as JSON the tokens that it generates greedily after
prompts of these lengths, `1,8` for two.

It imports nothing of epctx.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import onnxruntime_genai

CONTEXT = 256


def generate(model, length, tokens):
    """Return a prompt of a length, from a seed, and the tokens after it."""
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=CONTEXT, do_sample=False)
    generator = onnxruntime_genai.Generator(model, parameters)
    prompt = np.random.default_rng(length).integers(3, 32, length)
    generator.append_tokens(prompt.astype(np.int32))
    for _ in range(tokens):
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)]


def main(folder: str, prompts: str, tokens: str, library: str = "") -> None:
    """Generate, on the EP of a library if one is named."""
    answer = os.fdopen(os.dup(1), "w")
    # A simulator prints there.
    os.dup2(2, 1)
    if library:
        onnxruntime_genai.register_execution_provider_library(
            "QNNExecutionProvider", library
        )
    model = onnxruntime_genai.Model(folder)
    found = {
        each: generate(model, int(each), int(tokens)) for each in prompts.split(",")
    }
    with answer:
        json.dump(found, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
