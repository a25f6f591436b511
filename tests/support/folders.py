"""Folders of the repository that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PLUGINS = ROOT / "plugins"
CAMPAIGNS = TESTS / "campaigns"
MODELS = TESTS / "data" / "models"
"""Networks exported from frameworks; its README.md says how."""
REAL = TESTS / "data" / "real"
"""Output of vendors' own compilers; its README.md says of which."""
IMPORTED = (TESTS, CAMPAIGNS, TESTS / "project")
"""Folders from which tests import each other, as in `pythonpath` of pyproject.toml."""
