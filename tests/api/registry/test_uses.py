"""An EP in use is not taken away; a temporary one is gone with its block."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
from end_to_end.engine_eps import Alpha, scripted
from end_to_end.small_models import chain, saved

import epctx_core as epctx
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph, NotFound

NAME = "AlphaExecutionProvider"


@pytest.fixture
def registry():
    registry = epctx.Registry(entry_points=False)
    registry.register(Alpha)
    return registry


@pytest.fixture
def source(tmp_path):
    return saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")


def refused(registry, name=NAME):
    with pytest.raises(Fail) as caught:
        registry.unregister(name)
    return caught.value


def test_an_ep_of_an_open_session_is_not_unregistered_and_the_error_names_the_session(
    registry, source
):
    session = epctx.InferenceSession(source, providers=["Alpha"], registry=registry)

    error = refused(registry)

    assert (
        error.message
        == f"{NAME} cannot be unregistered while it is used by a session of 'm'."
    )
    assert error.ep == NAME
    assert "close the sessions" in error.hint
    session.close()
    registry.unregister(NAME)
    assert registry.available() == ["CPUExecutionProvider"]


def test_several_sessions_are_counted(registry, source):
    with (
        epctx.InferenceSession(source, providers=["Alpha"], registry=registry),
        epctx.InferenceSession(source, providers=["Alpha"], registry=registry),
    ):
        assert "a session of 'm' (2 times)" in refused(registry).message

    registry.unregister(NAME)


def test_a_session_that_nobody_holds_any_more_keeps_no_ep(registry, source):
    session = epctx.InferenceSession(source, providers=["Alpha"], registry=registry)

    del session
    gc.collect()

    registry.unregister(NAME)


def test_a_session_that_could_not_be_made_keeps_no_ep(registry, source, tmp_path):
    options = epctx.SessionOptions()
    options.add_provider("Alpha")
    output = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(options, source, registry=registry).compile_to_file(output)
    (tmp_path / "m_alpha.bin").write_bytes(b"not what it was")

    with pytest.raises(InvalidGraph):
        epctx.InferenceSession(output, options, registry=registry)

    registry.unregister(NAME)


def test_an_ep_that_compiles_at_this_moment_is_not_unregistered(source, tmp_path):
    registry, errors = epctx.Registry(entry_points=False), []

    def compile_slowly(honest):
        errors.append(refused(registry, "ScriptedExecutionProvider"))
        return honest()

    registry.register(scripted(compile=compile_slowly))
    options = epctx.SessionOptions()
    options.add_provider("Scripted")

    epctx.ModelCompiler(options, source, registry=registry).compile_to_file(
        tmp_path / "out.onnx"
    )

    assert "used by a compile of 'm'" in errors[0].message
    registry.unregister("ScriptedExecutionProvider")


def test_an_ep_of_an_open_share_group_is_not_unregistered(registry, source, tmp_path):
    options = epctx.SessionOptions()
    options.add_provider("Alpha")
    group = epctx.ShareGroup(tmp_path, registry=registry)

    group.compile(source, options)
    error = refused(registry)
    group.discard()

    assert "used by a compile of 'm'" in error.message
    registry.unregister(NAME)


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


def test_a_session_that_outlives_the_block_of_its_temporary_ep_goes_on_and_is_logged(
    source, caplog
):
    registry = epctx.Registry(entry_points=False)

    with registry.temporary(Alpha):
        session = epctx.InferenceSession(source, providers=["Alpha"], registry=registry)

    assert registry.available() == ["CPUExecutionProvider"]
    assert f"{NAME} was removed while it is used by a session of 'm'." in caplog.text
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
