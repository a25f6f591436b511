"""What the registry's tests share: real distributions, installed into a folder that is put on sys.path."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

# Discovery imports this on first use, when the tests below have taken the real installation off sys.path.
import importlib_metadata  # noqa: F401
import pytest
from registry.packages import Packages

from epctx_core.options import CancellationFlag
from epctx_core.plugin import ModelIdentity, ProviderContext, Purpose
from epctx_core.registry import PluginRecord, PluginState, ProviderInstances


def holds_distributions(entry):
    return any(Path(entry).glob("*.dist-info")) or any(Path(entry).glob("*.egg-info"))


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """An environment in which only what the test installs is installed, and no EPCTX variable is set."""
    for variable in [name for name in os.environ if name.startswith("EPCTX_")]:
        monkeypatch.delenv(variable)
    packages = Packages(tmp_path / "site")
    bare = [entry for entry in sys.path if not holds_distributions(entry)]
    whole, finders, before = sys.path[:], sys.meta_path[:], set(sys.modules)
    sys.path[:] = [str(packages.folder), *bare]
    yield packages
    sys.path[:], sys.meta_path[:] = whole, finders
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def context():
    """What an EP instance is given; no EP of these tests uses engine or workspace."""

    @contextmanager
    def scratch():
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)

    return ProviderContext(
        options=MappingProxyType({}),
        session_config=MappingProxyType({}),
        purpose=Purpose.RUN,
        target=None,
        model=ModelIdentity(name="m", digest=None, opset_imports={"": 21}),
        logger=logging.getLogger("epctx.ep"),
        cancel=CancellationFlag(),
        progress=lambda stage, done, total: None,
        scratch=scratch,
        engine=None,
        workspace=None,
    )


@pytest.fixture
def record_of():
    """Make the record of a class as if a distribution `epctx-test` 1.2 had brought it."""

    def make(cls):
        return PluginRecord(
            name=cls.name,
            sources=(cls.name,),
            distribution="epctx-test",
            version="1.2",
            state=PluginState.LOADED,
            entry_point=f"{cls.__module__}:{cls.__qualname__}",
        )

    return make


@pytest.fixture
def session(record_of, context):
    """Make the instances of a session with the given classes."""

    def make(*classes):
        instances = ProviderInstances()
        for cls in classes:
            instances.add(record_of(cls), cls, context)
        return instances

    return make
