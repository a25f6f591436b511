"""This repository's wheels and sdists, built once, and the libraries that they need."""

from __future__ import annotations

import pytest
from packaged.distributions import FOLDERS, build, download


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Distribution name to its wheel; all of them lie in one folder, as for
    `pip install --find-links`.
    """
    folder = tmp_path_factory.mktemp("wheels")
    return {name: build(project, "wheel", folder) for name, project in FOLDERS.items()}


@pytest.fixture(scope="session")
def sdists(tmp_path_factory):
    """Distribution name to its sdist."""
    folder = tmp_path_factory.mktemp("sdists")
    return {name: build(project, "sdist", folder) for name, project in FOLDERS.items()}


@pytest.fixture(scope="session")
def sources(wheels, tmp_path_factory):
    """Folders from which environments are filled: the wheels, and the libraries."""
    folder = tmp_path_factory.mktemp("libraries")
    download(folder)
    return [next(iter(wheels.values())).parent, folder]
