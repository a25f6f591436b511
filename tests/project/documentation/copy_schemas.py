"""Copies the schemas of today into tests/data/frozen_json_1; see README.md there."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[3]
FROZEN = ROOT / "tests/data/frozen_json_1"


def find_schemas() -> dict[str, Path]:
    """Return the shipped schemas by their file names."""
    return {path.name: path for path in ROOT.glob("plugins/*/src/*/schemas/*.json")}


if __name__ == "__main__":
    for path in find_schemas().values():
        shutil.copy(path, FROZEN)
