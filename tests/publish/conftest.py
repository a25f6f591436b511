"""Fixture of the publication tests: the module `harness.py`, loaded by path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="session")
def harness() -> ModuleType:
    """The module that prepares folders, publishes into them and reads them."""
    path = Path(__file__).with_name("harness.py")
    spec = importlib.util.spec_from_file_location("publish_harness", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
