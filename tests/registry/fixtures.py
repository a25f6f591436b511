"""Fixtures of the registry's tests: real distributions, installed into a folder that is
put on sys.path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Discovery imports this on first use, when the tests below have taken the real
# installation off sys.path.
import importlib_metadata  # noqa: F401
import pytest
from support.packages import Packages
from support.small_models import chain

import epctx_core as epctx


def holds_distributions(entry):
    return any(Path(entry).glob("*.dist-info")) or any(Path(entry).glob("*.egg-info"))


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """An environment in which only what the test installs is installed, and no EPCTX
    variable is set.
    """
    for variable in [name for name in os.environ if name.startswith("EPCTX_")]:
        monkeypatch.delenv(variable)
    # A process settles on its engine once, and must not do so where none is installed.
    epctx.InferenceSession(chain(["Relu"]).SerializeToString()).close()
    packages = Packages(tmp_path / "site")
    bare = [entry for entry in sys.path if not holds_distributions(entry)]
    whole, finders, before = sys.path[:], sys.meta_path[:], set(sys.modules)
    sys.path[:] = [str(packages.folder), *bare]
    yield packages
    sys.path[:], sys.meta_path[:] = whole, finders
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
