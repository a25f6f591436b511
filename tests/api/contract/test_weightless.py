"""Entries 128 to 132: where a load finds the source's weights, who can leave them there, and what is asked for."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from contract.weightless_scene import (
    ALL,
    EXTERNAL_ONLY,
    FOLDER_OPTION,
    PATH_OPTION,
    Scene,
    attributes,
    metadata,
    with_openvino,
)
from end_to_end.engine_eps import Alpha

import epctx_core as epctx
from epctx_core import Fail, InvalidArgument, InvalidGraph, NotImplementedByProvider
from epctx_core.plugin import WeightlessMode


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


# Where the source is found


@pytest.mark.entry(128)
@pytest.mark.parametrize("embed", [False, True], ids=["file", "embedded"])
def test_nodes_name_the_sources_file_and_a_load_finds_it_beside_the_context_model(scene, embed):
    context = scene.compile(embed_compiled_data_into_model=embed)

    assert [a["onnx_model_filename"] for a in attributes(context)] == [b"net.onnx"]
    scene.check(scene.moved("net.onnx"))


@pytest.mark.entry(128)
def test_a_source_elsewhere_and_of_another_name_is_named_by_the_option(scene):
    scene.compile()
    context = scene.moved()
    source = scene.source.rename(scene.folder / "renamed.onnx")

    scene.check(context, **{PATH_OPTION: source})


@pytest.mark.entry(128)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_source_given_as_a_buffer_goes_before_all_others(scene, kind):
    scene.compile()
    context = scene.moved("net.onnx")
    content = (context.parent / "net.onnx").read_bytes()
    (context.parent / "net.onnx").write_bytes(b"another")
    options = with_openvino(**{PATH_OPTION: scene.folder / "nowhere.onnx"})
    options.set_weightless_source_model_buffer(kind(content))

    with epctx.InferenceSession(context, options) as session:
        np.testing.assert_allclose(session.run(None, {"x": scene.x})[0], scene.expected, atol=1e-4)


def test_a_context_model_from_bytes_needs_the_option_or_the_buffer(scene):
    content = scene.compile(embed_compiled_data_into_model=True).read_bytes()

    with pytest.raises(InvalidGraph, match=r"given as bytes, which have no folder") as caught:
        epctx.InferenceSession(content, with_openvino())

    assert PATH_OPTION in caught.value.hint
    scene.check(content, **{PATH_OPTION: scene.source})
    scene.check(content, **{"ep.context_file_path": scene.folder / "any_ctx.onnx"})


def test_a_source_compiled_from_bytes_is_named_by_no_node(scene):
    context = scene.compile(source=scene.source.read_bytes())

    with pytest.raises(InvalidGraph, match=r"no EPContext node names its file"):
        epctx.InferenceSession(context, with_openvino())

    assert "onnx_model_filename" not in attributes(context)[0]
    scene.check(context, **{PATH_OPTION: scene.source})


@pytest.mark.entry(129)
@pytest.mark.parametrize("mode", [EXTERNAL_ONLY, ALL])
def test_external_data_is_found_in_the_folder_that_the_option_names(scene, mode):
    weights = scene.externalise()
    scene.compile(mode)
    context = scene.moved("net.onnx")
    (scene.folder / "weights").mkdir()
    shutil.move(weights, scene.folder / "weights")

    scene.check(context, **{FOLDER_OPTION: scene.folder / "weights"})


@pytest.mark.parametrize("mode", [EXTERNAL_ONLY, ALL])
def test_external_data_is_found_beside_the_context_model(scene, mode):
    scene.externalise()
    scene.compile(mode)

    scene.check(scene.moved("net.onnx", "net.weights"))


def test_external_data_is_found_beside_a_source_that_the_option_names(scene):
    scene.externalise()
    scene.compile()

    scene.check(scene.moved(), **{PATH_OPTION: scene.source})


def test_external_data_of_a_buffer_is_found_in_the_folder_that_the_option_names(scene):
    scene.externalise()
    context = scene.compile()
    options = with_openvino(**{FOLDER_OPTION: scene.folder})
    options.set_weightless_source_model_buffer(scene.source.read_bytes())
    lost = with_openvino()
    lost.set_weightless_source_model_buffer(scene.source.read_bytes())

    with pytest.raises(InvalidArgument, match=r"bytes have no folder") as caught:
        epctx.InferenceSession(context, lost)

    assert FOLDER_OPTION in caught.value.hint
    with epctx.InferenceSession(context, options) as session:
        np.testing.assert_allclose(session.run(None, {"x": scene.x})[0], scene.expected, atol=1e-4)


# Who can, and what is asked for


@pytest.mark.entry(130)
def test_the_cpu_device_advertises_all():
    found = epctx.get_ep_metadata("OpenVINO")

    assert found["weightless_support"] == "all"
    assert found["weightless_supported_modes"] == "all_or_external_only"


def test_eps_that_do_not_know_it_advertise_none():
    for ep in ("QNN", "CPU"):
        found = epctx.get_ep_metadata(ep)
        assert {found["weightless_support"], found["weightless_supported_modes"]} == {"none"}


@pytest.mark.entry(131)
@pytest.mark.parametrize("value", ["3", "0x2", ""])
def test_any_other_mode_is_an_invalid_argument(value):
    with pytest.raises(InvalidArgument, match=r"ep\.enable_weightless_mode"):
        with_openvino(**{"ep.enable_weightless_mode": value})


@pytest.mark.entry(131)
@pytest.mark.parametrize("mode", [EXTERNAL_ONLY, ALL])
def test_the_mode_is_recorded_and_not_needed_again_at_a_load(scene, mode):
    scene.externalise()
    context = scene.compile(mode)

    assert metadata(context)["weightless_mode"] == str(mode)
    scene.check(context)
    scene.check(context, **{"ep.enable_weightless_mode": "0"})


@pytest.mark.entry(131)
def test_the_older_key_alone_means_all(scene):
    epctx.ModelCompiler(with_openvino(**{"ep.enable_weightless": 1}), scene.source).compile_to_file()

    assert metadata(scene.folder / "net_ctx.onnx")["weightless_mode"] == "2"
    assert scene.w.tobytes() not in scene.binary


def test_a_session_that_compiles_writes_the_same(scene):
    by_compiler = scene.compile()
    options = with_openvino(
        **{
            "ep.enable_weightless_mode": ALL,
            "ep.context_enable": 1,
            "ep.context_file_path": scene.folder / "again" / "net_ctx.onnx",
        }
    )
    (scene.folder / "again").mkdir()

    with epctx.InferenceSession(scene.source, options) as session:
        np.testing.assert_allclose(session.run(None, {"x": scene.x})[0], scene.expected, atol=1e-4)

    assert (scene.folder / "again" / "net_ctx.onnx").read_bytes() == by_compiler.read_bytes()


class Timid(Alpha):
    """Alpha that knows weightless mode, for external weights alone."""

    name = "TimidExecutionProvider"
    weightless_modes = (WeightlessMode.EXTERNAL_ONLY,)

    def __init__(self, _context):
        raise AssertionError("no instance may be made")


@pytest.mark.entry(131)
@pytest.mark.parametrize("route", ["compiler", "session"])
def test_a_mode_that_an_ep_lacks_is_refused_before_there_is_an_instance(scene, route):
    registry = epctx.Registry(entry_points=False)
    registry.register(Timid)
    options = epctx.SessionOptions()
    options.add_provider(Timid.name)
    options.add_session_config_entry("ep.enable_weightless_mode", "2")

    with pytest.raises(InvalidArgument, match=r"does not support weightless mode 2 \(ALL\)") as caught:
        if route == "compiler":
            epctx.ModelCompiler(options, scene.source, registry=registry).compile_to_file()
        else:
            epctx.InferenceSession(scene.source, options, registry=registry)

    assert caught.value.ep == Timid.name
    assert "external_only" in caught.value.message
    assert not isinstance(caught.value, Fail)
    assert [path.name for path in scene.folder.iterdir()] == ["net.onnx"]


@pytest.mark.entry(131, 132)
@pytest.mark.parametrize("key", ["ep.enable_weightless", "ep.enable_weightless_mode"])
@pytest.mark.parametrize("others", [[], ["OpenVINO"]], ids=["alone", "beside one that can"])
def test_an_ep_that_does_not_know_the_mode_is_not_implemented_and_named(scene, key, others):
    options = epctx.SessionOptions()
    for ep in [*others, "QNN"]:
        options.add_provider(ep)
    options.add_session_config_entry(key, "1")

    with pytest.raises(
        NotImplementedByProvider, match=r"QNNExecutionProvider does not know weightless"
    ) as caught:
        epctx.ModelCompiler(options, scene.source).compile_to_file()

    assert caught.value.ep == "QNNExecutionProvider"
    assert [path.name for path in scene.folder.iterdir()] == ["net.onnx"]


def test_weightless_modes_that_are_none_break_the_contract():
    wrong = type("Wrong", (Alpha,), {"name": "WrongExecutionProvider", "weightless_modes": ("all",)})

    with pytest.raises(epctx.PluginError, match=r"weightless_modes is .'all',., not a set of WeightlessMode"):
        epctx.Registry(entry_points=False).register(wrong)
