"""Adds the pages of the documentation to a wheel and to an sdist.

They are in `docs` of the repository, or of the sdist from which a wheel is built. An
editable install reads those of the repository.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PagesBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Build hook for the pages."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the pages."""
        if version == "editable":
            return
        root = Path(self.root)
        folder = root / "docs"
        if not folder.is_dir():
            folder = root.parents[1] / "docs"
        target = "docs" if self.target_name == "sdist" else "epctx_cli/docs"
        pages = runpy.run_path(str(root / "src/epctx_cli/pages.py"))
        # In an sdist the navigation is among the pages already.
        navigation = pages["find_navigation"](folder)
        for path, _ in pages["list_files"](folder):
            address = path.relative_to(folder).as_posix()
            build_data["force_include"][str(path)] = f"{target}/{address}"
        build_data["force_include"][str(navigation)] = f"{target}/{navigation.name}"
