"""The engine of one session."""

from __future__ import annotations

import pytest
from support.models_for_engines import session_engine


@pytest.fixture
def engine():
    return session_engine()
