"""The engine of one session."""

from __future__ import annotations

import pytest
from engines.pieces import session_engine


@pytest.fixture
def engine():
    return session_engine()
