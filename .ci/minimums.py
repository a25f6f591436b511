"""Prints the lowest version that pyproject.toml allows of each library, as pip constraints."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path(__file__).parent.parent.joinpath("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
for requirement in [*project["dependencies"], *extras["ort"], *extras["cli"]]:
    match = re.match(r"([\w.-]+)>=([\w.]+)", requirement)
    if match is None:
        message = f"{requirement!r} in pyproject.toml has no lower bound"
        raise SystemExit(message)
    print(f"{match[1]}=={match[2]}")
