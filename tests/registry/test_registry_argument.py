"""Every public function that looks up EPs takes `registry=`, and looks nowhere else."""

from __future__ import annotations

import inspect

from support.engine_eps import Alpha
from support.small_models import chain, saved

import epctx_core as epctx

COMMON = inspect.signature(epctx.plugins).parameters["registry"].default
"""The registry of everyone who gives none."""
LOOKS_UP_NO_EP = {
    "convert_model", "disable_telemetry_events", "enable_telemetry_events",
    "get_all_providers", "get_compatibility_info_from_model", "get_device",
    "get_version_string", "set_default_logger_severity", "set_default_logger_verbosity",
    "set_seed", "seal_model",
}  # fmt: skip
"""They read one text out of a model's head, convert or seal a model, or answer for the
process.
"""
ENTRIES = {"InferenceSession", "ModelCompiler", "ShareGroup"}
"""The classes that a host makes and that look up EPs."""


def public_functions():
    return sorted(
        name for name in epctx.__all__ if inspect.isfunction(getattr(epctx, name))
    )


def test_every_public_function_takes_a_registry_by_keyword_and_has_the_common_one_without():
    signatures = {
        name: inspect.signature(getattr(epctx, name))
        for name in {*ENTRIES, *public_functions()}
    }
    taken = {
        n: s.parameters["registry"]
        for n, s in signatures.items()
        if "registry" in s.parameters
    }

    assert signatures.keys() - taken.keys() == {*LOOKS_UP_NO_EP}
    assert {
        n for n, p in taken.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY
    } == set()
    assert {n for n, p in taken.items() if p.default is not COMMON} == set()


def test_no_other_public_class_takes_a_registry():
    classes = {name for name in epctx.__all__ if inspect.isclass(getattr(epctx, name))}

    takes = {
        n
        for n in classes
        if "registry" in inspect.signature(getattr(epctx, n)).parameters
    }

    assert takes == ENTRIES


def test_everything_works_with_a_registry_of_ones_own_and_never_asks_the_common_one(
    tmp_path, monkeypatch
):
    registry = epctx.Registry(entry_points=False)
    source = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")
    options = epctx.SessionOptions()
    options.add_provider("Alpha")
    asked = []
    for method in (
        "records",
        "resolve",
        "load",
        "route",
        "availability",
        "register",
        "refresh",
        "available",
    ):
        monkeypatch.setattr(COMMON, method, lambda *_a, **_k: asked.append(1))

    epctx.register_execution_provider(Alpha, registry=registry)
    output = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(options, source, registry=registry).compile_to_file(output)
    group = epctx.ShareGroup(tmp_path, registry=registry)
    group.compile(source, options, name="member")
    group.discard()  # Alpha compiles members and does not know how to finish a group
    with epctx.InferenceSession(output, registry=registry) as session:
        providers = session.get_providers()
    plugin = epctx.inspect_model(output, registry=registry).ep_contexts[0].plugin
    report = epctx.verify_model(output, registry=registry)
    verdict = epctx.get_model_compatibility(output, "Alpha", registry=registry)
    epctx.get_ep_metadata("Alpha", registry=registry)
    epctx.refresh_plugins(registry=registry)

    assert providers == ["AlphaExecutionProvider", "CPUExecutionProvider"]
    assert plugin["state"] == "loaded"
    assert report.ok
    assert verdict is epctx.CompiledModelCompatibility.EP_NOT_APPLICABLE
    assert [record.name for record in epctx.plugins(registry=registry)] == [
        "AlphaExecutionProvider"
    ]
    assert asked == []
