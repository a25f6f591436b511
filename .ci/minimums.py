"""Prints the lowest version that pyproject.toml allows of each library, as pip
constraints.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

root = Path(__file__).parent.parent
projects = [
    tomllib.loads(path.read_text())["project"]
    for path in [
        root / "pyproject.toml",
        *sorted(root.glob("plugins/*/pyproject.toml")),
    ]
]
own = {project["name"] for project in projects}
needed = {
    requirement
    for project in projects
    for extra, found in {
        "": project["dependencies"],
        **project.get("optional-dependencies", {}),
    }.items()
    for requirement in found
    if extra != "test"
}
for requirement in sorted(needed):
    if re.split(r"[^\w.-]", requirement)[0] in own:
        continue
    match = re.match(r"([\w.-]+)>=([\w.]+)", requirement)
    if match is None:
        message = f"{requirement!r} in a pyproject.toml has no lower bound"
        raise SystemExit(message)
    print(f"{match[1]}=={match[2]}")
