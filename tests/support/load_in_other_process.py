"""Loads and runs a context model in a process of its own:
`load_in_other_process JOB.json`.

The job names the EP's module and class, its options, the model, and the files of inputs
and outputs.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np

import epctx_core as epctx


def main(job: dict[str, str]) -> None:
    """Run one job."""
    provider = getattr(importlib.import_module(job["module"]), job["class"])
    registry = epctx.Registry(entry_points=False)
    registry.register(provider)
    with np.load(job["inputs"]) as inputs:
        feeds = dict(inputs)
    providers = [(provider.name, json.loads(job["options"]))]
    with epctx.InferenceSession(
        job["model"], providers=providers, registry=registry
    ) as session:
        names = [output.name for output in session.get_outputs()]
        np.savez(
            job["outputs"], **dict(zip(names, session.run(None, feeds), strict=True))
        )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
