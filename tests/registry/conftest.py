"""Instances of EPs as a session makes them, for the tests that look inside."""

from __future__ import annotations

import logging
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from registry.fixtures import packages  # noqa: F401 - a fixture

from epctx_core.options import CancellationFlag
from epctx_core.plugin import ModelIdentity, ProviderContext, Purpose
from epctx_core.registry import PluginRecord, PluginState, ProviderInstances
from epctx_core.registry.entries import list_host_plugins


@pytest.fixture
def context():
    """Arguments of an EP instance; no EP of these tests uses engine or workspace."""

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
    """Make the record of a class as if a distribution `epctx-test` 1.2 had brought
    it.
    """

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
        instances = ProviderInstances(list_host_plugins((), ()))
        for cls in classes:
            instances.add(record_of(cls), cls, context)
        return instances

    return make
