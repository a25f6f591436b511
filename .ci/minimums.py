"""Prints the lowest version that pyproject.toml allows of each library, as pip constraints."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

root = Path(__file__).parent.parent
project = tomllib.loads(root.joinpath("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
optional = [
    requirement
    for path in sorted(root.glob("plugins/*/pyproject.toml"))
    for extra in tomllib.loads(path.read_text())["project"].get("optional-dependencies", {}).values()
    for requirement in extra
]
for requirement in [*project["dependencies"], *extras["ort"], *extras["cli"], *optional]:
    match = re.match(r"([\w.-]+)>=([\w.]+)", requirement)
    if match is None:
        message = f"{requirement!r} in pyproject.toml has no lower bound"
        raise SystemExit(message)
    print(f"{match[1]}=={match[2]}")
