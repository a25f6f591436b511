"""What uses an EP keeps it; a temporary one is gone with its block."""

from __future__ import annotations

import os

import numpy as np
import pytest
from support.engine_eps import Alpha
from support.small_models import chain, saved

import epctx_core as epctx
from epctx_core.errors import InvalidArgument, NotFound

NAME = "AlphaExecutionProvider"


@pytest.fixture
def registry():
    registry = epctx.Registry(entry_points=False)
    registry.register(Alpha)
    return registry


@pytest.fixture
def source(tmp_path):
    return saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")


def test_a_session_and_a_share_group_keep_an_ep_that_is_unregistered(
    registry, source, tmp_path
):
    options = epctx.SessionOptions()
    options.add_provider("Alpha")
    session = epctx.InferenceSession(source, options, registry=registry)
    group = epctx.ShareGroup(tmp_path, registry=registry)
    group.compile(source, options)

    registry.unregister(NAME)

    assert registry.available() == ["CPUExecutionProvider"]
    assert session.get_providers() == [NAME, "CPUExecutionProvider"]
    assert np.isfinite(session.run(None, {"x": np.ones((2, 3), np.float32)})[0]).all()
    session.close()
    group.discard()


def test_a_refresh_takes_nothing_from_an_open_session(registry, source):
    with epctx.InferenceSession(
        source, providers=["Alpha"], registry=registry
    ) as session:
        registry.refresh()

        assert np.isfinite(
            session.run(None, {"x": np.ones((2, 3), np.float32)})[0]
        ).all()


def test_a_temporary_ep_is_there_in_its_block_and_gone_behind_it(source):
    registry = epctx.Registry(entry_points=False)

    with registry.temporary(Alpha, sources=["Alfa"]) as record:
        inside = registry.available()
        routed = registry.route("Alfa")
        with epctx.InferenceSession(
            source, providers=["Alpha"], registry=registry
        ) as session:
            providers = session.get_providers()

    assert inside == [NAME, "CPUExecutionProvider"]
    assert routed == record
    assert providers == inside
    assert registry.available() == ["CPUExecutionProvider"]


def test_a_temporary_ep_is_gone_also_behind_a_block_that_failed():
    registry = epctx.Registry(entry_points=False)

    with pytest.raises(ZeroDivisionError), registry.temporary(Alpha):
        _ = 1 / 0

    assert registry.records() == []


def test_a_session_that_outlives_the_block_of_its_temporary_ep_goes_on(source):
    registry = epctx.Registry(entry_points=False)

    with registry.temporary(Alpha):
        session = epctx.InferenceSession(source, providers=["Alpha"], registry=registry)

    assert registry.available() == ["CPUExecutionProvider"]
    assert session.get_providers() == [NAME, "CPUExecutionProvider"]
    assert np.isfinite(session.run(None, {"x": np.ones((2, 3), np.float32)})[0]).all()
    session.close()


def test_a_temporary_ep_may_be_unregistered_and_another_one_registered_within_the_block():
    registry = epctx.Registry(entry_points=False)

    with registry.temporary(Alpha):
        registry.unregister(NAME)
        registry.register(Alpha)

    assert registry.available() == [NAME, "CPUExecutionProvider"]


def test_a_temporary_ep_does_not_replace_one_that_is_there(registry):
    with (
        pytest.raises(InvalidArgument, match="taken: registered by the host"),
        registry.temporary(Alpha),
    ):
        pytest.fail("the block was entered")

    assert registry.available() == [NAME, "CPUExecutionProvider"]


def test_the_hosts_functions_do_the_same_with_the_registry_they_are_given():
    registry = epctx.Registry(entry_points=False)

    with epctx.temporary_execution_provider(Alpha, sources=["Alfa"], registry=registry):
        (record,) = epctx.plugins(registry=registry)
        before = epctx.get_available_providers(registry=registry)
    epctx.register_execution_provider(Alpha, sources=["A"], registry=registry)
    epctx.refresh_plugins(registry=registry)
    after = epctx.get_available_providers(registry=registry)
    epctx.unregister_execution_provider(NAME, registry=registry)

    assert record.sources == (NAME, "Alfa")
    assert before == after == [NAME, "CPUExecutionProvider"]
    assert NAME not in epctx.get_available_providers()
    with pytest.raises(NotFound):
        epctx.unregister_execution_provider(NAME)
    with pytest.raises(epctx.NoSuchFile):
        epctx.add_plugin_path(os.devnull + ".whl", registry=registry)
