"""Fixture of the publication tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support import publication

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="session")
def harness() -> ModuleType:
    """The module that prepares folders, publishes into them and reads them."""
    return publication
