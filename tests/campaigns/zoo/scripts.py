"""The scripts that make the zoo, and what their first comments say."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE / "models"


def list_scripts(*, together: bool = False) -> list[Path]:
    """Return the scripts, those that read the models of others last.

    Args:
        together: leave out those whose exporters need an environment of their own.
    """
    scripts = sorted((HERE / "exporters").glob("*_models.py"))
    facts = {script: header(script)["tool"]["zoo"] for script in scripts}
    return [
        script
        for script in sorted(scripts, key=lambda s: facts[s].get("reads", False))
        if not (together and facts[script].get("apart", False))
    ]


def header(script: Path) -> dict[str, Any]:
    """Return the metadata in a script's first comment: what it needs, and what of that
    which it makes is committed.
    """
    block = re.match(r"# /// script\n((?:#.*\n)+?)# ///\n", script.read_text("utf-8"))
    assert block is not None, script
    return tomllib.loads(re.sub(r"(?m)^# ?", "", block[1]))


def models_of(script: Path) -> set[str]:
    """Return the committed models that a script makes."""
    patterns = header(script)["tool"]["zoo"]["models"]
    names = {path.stem for path in FOLDER.glob("*.onnx")}
    return {name for pattern in patterns for name in fnmatch.filter(names, pattern)}
