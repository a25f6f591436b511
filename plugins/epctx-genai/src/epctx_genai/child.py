"""Measuring process: `python -m epctx_genai.child FOLDER PROMPT TOKENS` prints times as
JSON, and what libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from epctx_genai.configuration import read_folder
from epctx_genai.libraries import import_genai
from epctx_genai.loading import load_folder


def main() -> int:
    """Measure, and return the exit code."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    folder, prompt, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    try:
        times = measure(folder, prompt, tokens)
    except Exception as error:  # noqa: BLE001 - GenAI's have no base of their own
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    with answer:
        json.dump(times, answer)
    return 0


def measure(folder: str, prompt: int, tokens: int) -> dict[str, float]:
    """Return the seconds of loading, of the first token, and of each one after it."""
    genai = import_genai()
    config = read_folder(folder).config
    begin = time.perf_counter()
    model = load_folder(folder)
    loaded = time.perf_counter()

    generator = make_generator(genai, model, config)
    random = np.random.default_rng(0)
    chosen = random.integers(0, config["model"]["vocab_size"], prompt, dtype=np.int32)
    asked = time.perf_counter()
    generator.append_tokens(chosen)
    generator.generate_next_token()
    first = time.perf_counter()
    for _ in range(tokens):
        generator.generate_next_token()
    end = time.perf_counter()
    return {
        "load": loaded - begin,
        "first_token": first - asked,
        "each_token": (end - first) / tokens,
    }


def make_generator(genai: Any, model: Any, config: dict[str, Any]) -> Any:
    """Return a generator of GenAI that chooses greedily, of any length that fits."""
    parameters = genai.GeneratorParams(model)
    length = config.get("search", {}).get("max_length")
    parameters.set_search_options(
        do_sample=False, max_length=length or config["model"]["context_length"]
    )
    return genai.Generator(model, parameters)


if __name__ == "__main__":
    sys.exit(main())
