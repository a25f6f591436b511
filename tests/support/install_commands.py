"""Command for pip that hints have where epctx-core is installed from this clone."""

from __future__ import annotations

import shlex

from support.folders import PLUGINS


def pip_install(*packages: str) -> str:
    return f"pip install {shlex.join(str(PLUGINS / package) for package in packages)}"
