"""Fixture for tests of the documentation site: the site, built strictly once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.folders import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, ROOT / ".ci/site.py", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(done.stdout + done.stderr)
    return folder
