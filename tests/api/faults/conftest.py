"""Fixture of the tests of all verbs."""

from __future__ import annotations

import pytest
from faults.verbs import write_sources


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with all that the verbs are given."""
    folder = tmp_path_factory.mktemp("sources")
    write_sources(folder)
    return folder
