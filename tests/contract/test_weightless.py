"""Entries 128 to 132: where a load finds the source's weights, who can leave them
there, and what is asked for.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from support.engine_eps import Alpha
from support.weightless import (
    ALL,
    EXTERNAL_ONLY,
    FOLDER_OPTION,
    PATH_OPTION,
    Harness,
    attributes,
    metadata,
    with_openvino,
)

import epctx_core as epctx
from epctx_core import Fail, InvalidArgument, InvalidGraph, NotImplementedByProvider
from epctx_core.plugin import WeightlessMode


@pytest.fixture
def harness(tmp_path):
    return Harness(tmp_path)


# Where the source is found


@pytest.mark.entry(128)
@pytest.mark.parametrize("embed", [False, True], ids=["file", "embedded"])
def test_nodes_name_the_sources_file_and_a_load_finds_it_beside_the_context_model(
    harness, embed
):
    context = harness.compile(embed_compiled_data_into_model=embed)

    assert [a["onnx_model_filename"] for a in attributes(context)] == [b"net.onnx"]
    harness.check(harness.moved("net.onnx"))


@pytest.mark.entry(128)
def test_a_source_elsewhere_and_of_another_name_is_named_by_the_option(harness):
    harness.compile()
    context = harness.moved()
    source = harness.source.rename(harness.folder / "renamed.onnx")

    harness.check(context, **{PATH_OPTION: source})


@pytest.mark.entry(128)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_source_given_as_a_buffer_goes_before_all_others(harness, kind):
    harness.compile()
    context = harness.moved("net.onnx")
    content = (context.parent / "net.onnx").read_bytes()
    (context.parent / "net.onnx").write_bytes(b"another")
    options = with_openvino(**{PATH_OPTION: harness.folder / "nowhere.onnx"})
    options.set_weightless_source_model_buffer(kind(content))

    with epctx.InferenceSession(context, options) as session:
        np.testing.assert_allclose(
            session.run(None, {"x": harness.x})[0], harness.expected, atol=1e-4
        )


def test_a_context_model_from_bytes_needs_the_option_or_the_buffer(harness):
    content = harness.compile(embed_compiled_data_into_model=True).read_bytes()

    with pytest.raises(
        InvalidGraph, match=r"given as bytes, which have no folder"
    ) as caught:
        epctx.InferenceSession(content, with_openvino())

    assert PATH_OPTION in caught.value.hint
    harness.check(content, **{PATH_OPTION: harness.source})
    harness.check(content, **{"ep.context_file_path": harness.folder / "any_ctx.onnx"})


def test_a_source_compiled_from_bytes_is_named_by_no_node(harness):
    context = harness.compile(source=harness.source.read_bytes())

    with pytest.raises(InvalidGraph, match=r"no EPContext node names its file"):
        epctx.InferenceSession(context, with_openvino())

    assert "onnx_model_filename" not in attributes(context)[0]
    harness.check(context, **{PATH_OPTION: harness.source})


@pytest.mark.entry(129)
@pytest.mark.parametrize("mode", [EXTERNAL_ONLY, ALL])
def test_external_data_is_found_in_the_folder_that_the_option_names(harness, mode):
    weights = harness.externalise()
    harness.compile(mode)
    context = harness.moved("net.onnx")
    (harness.folder / "weights").mkdir()
    shutil.move(weights, harness.folder / "weights")

    harness.check(context, **{FOLDER_OPTION: harness.folder / "weights"})


@pytest.mark.parametrize("mode", [EXTERNAL_ONLY, ALL])
def test_external_data_is_found_beside_the_context_model(harness, mode):
    harness.externalise()
    harness.compile(mode)

    harness.check(harness.moved("net.onnx", "net.weights"))


def test_external_data_is_found_beside_a_source_that_the_option_names(harness):
    harness.externalise()
    harness.compile()

    harness.check(harness.moved(), **{PATH_OPTION: harness.source})


def test_external_data_of_a_buffer_is_found_in_the_folder_that_the_option_names(
    harness,
):
    harness.externalise()
    context = harness.compile()
    options = with_openvino(**{FOLDER_OPTION: harness.folder})
    options.set_weightless_source_model_buffer(harness.source.read_bytes())
    lost = with_openvino()
    lost.set_weightless_source_model_buffer(harness.source.read_bytes())

    with pytest.raises(InvalidArgument, match=r"bytes have no folder") as caught:
        epctx.InferenceSession(context, lost)

    assert FOLDER_OPTION in caught.value.hint
    with epctx.InferenceSession(context, options) as session:
        np.testing.assert_allclose(
            session.run(None, {"x": harness.x})[0], harness.expected, atol=1e-4
        )


# Who can, and what is asked for


@pytest.mark.entry(130)
def test_the_cpu_device_advertises_all():
    found = epctx.get_ep_metadata("OpenVINO")

    assert found["weightless_support"] == "all"
    assert found["weightless_supported_modes"] == "all_or_external_only"


def test_eps_that_do_not_know_it_advertise_none():
    for ep in ("QNN", "CPU"):
        found = epctx.get_ep_metadata(ep)
        assert {found["weightless_support"], found["weightless_supported_modes"]} == {
            "none"
        }


@pytest.mark.entry(131)
@pytest.mark.parametrize("value", ["3", "0x2", ""])
def test_any_other_mode_is_an_invalid_argument(value):
    with pytest.raises(InvalidArgument, match=r"ep\.enable_weightless_mode"):
        with_openvino(**{"ep.enable_weightless_mode": value})


@pytest.mark.entry(131)
@pytest.mark.parametrize("mode", [EXTERNAL_ONLY, ALL])
def test_the_mode_is_recorded_and_not_needed_again_at_a_load(harness, mode):
    harness.externalise()
    context = harness.compile(mode)

    assert metadata(context)["weightless_mode"] == str(mode)
    harness.check(context)
    harness.check(context, **{"ep.enable_weightless_mode": "0"})


@pytest.mark.entry(131)
def test_the_older_key_alone_means_all(harness):
    epctx.ModelCompiler(
        with_openvino(**{"ep.enable_weightless": 1}), harness.source
    ).compile_to_file()

    assert metadata(harness.folder / "net_ctx.onnx")["weightless_mode"] == "2"
    assert harness.w.tobytes() not in harness.binary


def test_a_session_that_compiles_writes_the_same(harness):
    by_compiler = harness.compile()
    options = with_openvino(
        **{
            "ep.enable_weightless_mode": ALL,
            "ep.context_enable": 1,
            "ep.context_file_path": harness.folder / "again" / "net_ctx.onnx",
        }
    )
    (harness.folder / "again").mkdir()

    with epctx.InferenceSession(harness.source, options) as session:
        np.testing.assert_allclose(
            session.run(None, {"x": harness.x})[0], harness.expected, atol=1e-4
        )

    assert (
        harness.folder / "again" / "net_ctx.onnx"
    ).read_bytes() == by_compiler.read_bytes()


class Timid(Alpha):
    """Alpha that knows weightless mode, for external weights alone."""

    name = "TimidExecutionProvider"
    weightless_modes = (WeightlessMode.EXTERNAL_ONLY,)

    def __init__(self, _context):
        raise AssertionError("no instance may be made")


@pytest.mark.entry(131)
@pytest.mark.parametrize("route", ["compiler", "session"])
def test_a_mode_that_an_ep_lacks_is_refused_before_there_is_an_instance(harness, route):
    registry = epctx.Registry(entry_points=False)
    registry.register(Timid)
    options = epctx.SessionOptions()
    options.add_provider(Timid.name)
    options.add_session_config_entry("ep.enable_weightless_mode", "2")

    with pytest.raises(
        InvalidArgument, match=r"does not support weightless mode 2 \(ALL\)"
    ) as caught:
        if route == "compiler":
            epctx.ModelCompiler(
                options, harness.source, registry=registry
            ).compile_to_file()
        else:
            epctx.InferenceSession(harness.source, options, registry=registry)

    assert caught.value.ep == Timid.name
    assert "external_only" in caught.value.message
    assert not isinstance(caught.value, Fail)
    assert [path.name for path in harness.folder.iterdir()] == ["net.onnx"]


@pytest.mark.entry(131, 132)
@pytest.mark.parametrize("key", ["ep.enable_weightless", "ep.enable_weightless_mode"])
@pytest.mark.parametrize(
    "others", [[], ["OpenVINO"]], ids=["alone", "beside one that can"]
)
def test_an_ep_that_does_not_know_the_mode_is_not_implemented_and_named(
    harness, key, others
):
    options = epctx.SessionOptions()
    for ep in [*others, "QNN"]:
        options.add_provider(ep)
    options.add_session_config_entry(key, "1")

    with pytest.raises(
        NotImplementedByProvider, match=r"QNNExecutionProvider does not know weightless"
    ) as caught:
        epctx.ModelCompiler(options, harness.source).compile_to_file()

    assert caught.value.ep == "QNNExecutionProvider"
    assert [path.name for path in harness.folder.iterdir()] == ["net.onnx"]
