"""Fixtures of a command and of an EP for the processes of batches."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from batches import Cluster
from support.cli_fixtures import epctx  # noqa: F401 - a fixture
from support.installed import install_distribution


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder of installed packages with `made_ep.py` as an EP called Made."""
    folder = tmp_path_factory.mktemp("site")
    entries = {
        "epctx.execution_providers": {"MadeExecutionProvider": "made_ep:Provider"}
    }
    install_distribution(folder, "epctx-made", entries)
    shutil.copy(Path(__file__).with_name("made_ep.py"), folder)
    return folder


@pytest.fixture(scope="module")
def installed(site):
    """Install the EP in this process and in those that it begins; return what sets the
    environment until the module ends.
    """
    with pytest.MonkeyPatch.context() as patch:
        before = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), before])))
        # The pool's processes have this one's path, those of isolated EPs the variable.
        patch.syspath_prepend(site)
        yield patch


@pytest.fixture(scope="module")
def counted(installed, tmp_path_factory):
    """The file that gets a line for each compile of the EP."""
    path = tmp_path_factory.mktemp("counted") / "compiles"
    installed.setenv("COUNTED", str(path))
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, counted):
    with ExitStack() as held:
        yield Cluster(tmp_path_factory.mktemp("cluster"), held)
