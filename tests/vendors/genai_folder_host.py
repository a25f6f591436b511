"""Host of folders in unmodified onnxruntime-genai: `python genai_folder_host.py FOLDER
PROMPT TOKENS [LIBRARY]` prints the tokens that it generates greedily, as JSON.

It imports nothing of epctx.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import onnxruntime_genai

CONTEXT = 256


def main(folder: str, prompt: str, tokens: str, library: str = "") -> None:
    """Generate, on the EP of a library if one is named."""
    answer = os.fdopen(os.dup(1), "w")
    # A simulator prints there.
    os.dup2(2, 1)
    if library:
        onnxruntime_genai.register_execution_provider_library(
            "QNNExecutionProvider", library
        )
    model = onnxruntime_genai.Model(folder)
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=CONTEXT, do_sample=False)
    generator = onnxruntime_genai.Generator(model, parameters)
    random = np.random.default_rng(int(prompt))
    generator.append_tokens(random.integers(3, 32, int(prompt)).astype(np.int32))
    for _ in range(int(tokens)):
        generator.generate_next_token()
    with answer:
        json.dump([int(token) for token in generator.get_sequence(0)], answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
