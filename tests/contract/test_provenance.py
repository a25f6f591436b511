"""Provenance in a context model: compiler, versions, target; and no secret."""

from __future__ import annotations

import dataclasses
import json

import onnx
import pytest
from support.sim_eps import OPENVINO, QNN, VITISAI
from support.small_models import example, saved
from support.validating_eps import options_with, registry_with, validating

import epctx_core as epctx
from epctx_core import PluginError
from epctx_core.plugin import BuildInfo, ProviderOption

MANIFEST = "epctx.manifest"
"""The key of a context model's metadata."""


def with_build_info(answer, **attributes):
    """Return an EP class that says this when it is asked; an exception is raised."""

    def get_build_info(_options):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return validating(get_build_info=staticmethod(get_build_info), **attributes)


def facts_of(path, ep):
    (manifest,) = (
        each.value for each in onnx.load(path).metadata_props if each.key == MANIFEST
    )
    return json.loads(manifest)["providers"][ep]


def compiled(source, ep, **provider_options):
    options = epctx.SessionOptions()
    options.add_provider(ep.name, provider_options)
    path = source.with_name("m_ctx.onnx")
    epctx.ModelCompiler(options, source, registry=registry_with(ep)).compile_to_file(
        path
    )
    return path


@pytest.mark.parametrize(
    ("ep", "given", "expected"),
    [
        (
            QNN,
            {"htp_arch": "69"},
            BuildInfo(sdk="sim-2.51.0", driver="sim-1.8.0", target="htp v69"),
        ),
        (
            QNN,
            {"runtime_driver_version": "none"},
            BuildInfo(sdk="sim-2.51.0", target="htp v73"),
        ),
        (OPENVINO, {"device_type": "CPU"}, BuildInfo(sdk="sim-2.51.0", target="CPU")),
        (
            OPENVINO,
            {"device_type": "NPU"},
            BuildInfo(sdk="sim-2.51.0", driver="sim-1.8.0", target="NPU"),
        ),
    ],
)
def test_the_manifest_says_sdk_driver_and_target(source, ep, given, expected):
    options = epctx.SessionOptions()
    options.add_provider(ep, given)

    epctx.ModelCompiler(options, source).compile_to_file(source.with_name("m_ctx.onnx"))

    facts = facts_of(source.with_name("m_ctx.onnx"), ep)
    said = {key: text for key, text in dataclasses.asdict(expected).items() if text}
    assert {
        key: facts[key] for key in ("sdk", "driver", "target") if key in facts
    } == said
    assert facts["distribution"].startswith("epctx-sim-")
    assert facts["plugin_api"] == 1


def test_vitisai_says_its_core_its_runtime_and_its_back_end():
    options = {option.name: option.default for option in vitisai().options}

    info = vitisai().get_build_info(options)

    assert info.sdk.startswith("sim-")
    assert info.driver.startswith("sim-")
    assert info.target == options["target"]


def vitisai():
    registry = epctx.Registry()
    return registry.load(registry.resolve(VITISAI))


def test_an_ep_that_says_nothing_adds_nothing(source):
    facts = facts_of(compiled(source, validating()), "ValidatingExecutionProvider")

    assert sorted(facts) == ["distribution", "options", "plugin_api", "version"]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"sdk": "1"},
        BuildInfo(sdk=7),
        BuildInfo(target=b"x"),
        RuntimeError("no SDK"),
    ],
    ids=str,
)
def test_a_wrong_answer_is_the_plugins_fault_and_nothing_is_written(source, answer):
    before = sorted(source.parent.iterdir())

    with pytest.raises(PluginError, match="get_build_info"):
        compiled(source, with_build_info(answer))

    assert sorted(source.parent.iterdir()) == before


def test_a_manifest_from_before_these_facts_existed_is_loaded(source):
    ep = with_build_info(BuildInfo(sdk="2.0"))
    path = compiled(source, ep)
    model = onnx.load(path)
    entry = next(p for p in model.metadata_props if p.key == MANIFEST)
    assert '"sdk":"2.0"' in entry.value
    entry.value = entry.value.replace(',"sdk":"2.0"', "")
    saved(model, path)

    with epctx.InferenceSession(
        path, options_with(ep), registry=registry_with(ep)
    ) as session:
        assert session.run(None, {"x": example()})[0].shape == (2, 3)


# --- the options' fingerprint ---------------------------------------------------------


KEYED = validating(
    options=(
        ProviderOption("driver", int, default=1, doc="The driver's version."),
        ProviderOption("key", str, default="", doc="A key.", secret=True),
    )
)


def test_a_secret_leaves_no_trace_in_what_is_written(source):
    plain = compiled(source, KEYED).read_bytes()

    keyed = compiled(source, KEYED, key="hunter2hunter2").read_bytes()

    assert keyed == plain  # not even as a digest
    assert b"hunter2" not in keyed


@pytest.mark.parametrize("how", ["compatibility text", "SDK"])
def test_an_ep_that_gives_its_secret_away_is_stopped(source, how):
    def told(_cls, *arguments):
        key = arguments[-1]["key"]
        return BuildInfo(sdk=key) if how == "SDK" else f"for {key}"

    hook = "get_build_info" if how == "SDK" else "get_compatibility_info"
    ep = validating(options=KEYED.options, **{hook: classmethod(told)})

    with pytest.raises(PluginError, match="holds the value of a secret") as caught:
        compiled(source, ep, key="hunter2hunter2")

    assert "hunter2" not in str(caught.value)
    assert caught.value.hook == hook
    assert not source.with_name("m_ctx.onnx").exists()


def test_a_secret_that_is_not_set_is_in_no_text(source):
    option = ProviderOption("key", str, default=None, doc="A key.", secret=True)
    ep = validating(options=(option,), info="for None")

    assert b"for None" in compiled(source, ep).read_bytes()


def test_the_secret_of_another_ep_is_no_fault_of_this_one(source):
    options = epctx.SessionOptions()
    options.add_provider(KEYED.name, {"key": "release"})
    other = validating(info="release")
    other.name = "OtherExecutionProvider"

    with epctx.InferenceSession(source, options, registry=registry_with(KEYED)):
        path = compiled(source, other)

    assert b"release" in path.read_bytes()


def test_a_compatibility_text_that_no_file_can_hold_is_the_plugins_fault(source):
    with pytest.raises(PluginError, match="which UTF-8 cannot represent"):
        compiled(source, validating(info="nimbus \ud800"))


def test_the_fingerprint_tells_other_options_apart(source):
    one, same, other = (
        facts_of(compiled(source, KEYED, driver=driver), KEYED.name)["options"]
        for driver in ("1", 1, "2")
    )

    assert one == same
    assert one != other
