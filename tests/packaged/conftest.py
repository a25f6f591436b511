"""This repository's wheels and sdists, built once."""

from __future__ import annotations

import shutil

import pytest
from packaged.distributions import FOLDERS, build


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Distribution name to its wheel; all of them lie in one folder, as for `pip install --find-links`."""
    folder = tmp_path_factory.mktemp("wheels")
    found = {}
    for name, project in FOLDERS.items():
        built = build(project, "wheel", tmp_path_factory.mktemp(name))
        found[name] = folder / built.name
        shutil.copy(built, found[name])
    return found


@pytest.fixture(scope="session")
def sdists(tmp_path_factory):
    """Distribution name to its sdist."""
    return {name: build(project, "sdist", tmp_path_factory.mktemp(name)) for name, project in FOLDERS.items()}
