"""Processes that take all models of a folder on a route."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.folders import IMPORTED


def take(route: str, models: Path, work: Path) -> list[dict[str, Any]]:
    """Return what processes say of all models on a route; see `routes`.

    A process that ends early counts as a failure of the model that it was taking, and
    another one goes on with the next; one that fails in the end, as a failure of the
    last.

    Args:
        route: its name.
        models: folder of the models.
        work: folder for what is written; `compile` and `load` need the same.
    """
    work.mkdir(parents=True, exist_ok=True)
    written = work / f"{route.partition(':')[0]}.jsonl"
    names = sorted(path.stem for path in models.glob("*.onnx"))
    outcomes: list[dict[str, Any]] = []
    while len(outcomes) < len(names):
        written.unlink(missing_ok=True)
        left = names[len(outcomes) :]
        ended = subprocess.run(
            [sys.executable, "-m", "zoo.routes", route, models, work, *left],
            cwd=work,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, IMPORTED))},
            # QNN's simulator writes there.
            stdout=subprocess.DEVNULL,
            check=False,
        )
        lines = written.read_text("utf-8").splitlines() if written.exists() else []
        outcomes += map(json.loads, lines)
        if len(outcomes) < len(names):
            problem = f"the process ended with {ended.returncode}"
            outcomes.append({"name": names[len(outcomes)], "problems": [problem]})
        elif ended.returncode:
            outcomes[-1]["problems"].append(
                f"its process ended with {ended.returncode}"
            )
    return outcomes


def problems_of(outcomes: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return what is wrong, by model."""
    return {o["name"]: o["problems"] for o in outcomes if o["problems"]}
