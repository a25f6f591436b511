"""A payload that one distribution of an EP refuses names the other one that is
installed.
"""

from __future__ import annotations

import itertools

import onnx
import pytest
from end_to_end.engine_eps import EngineProvider
from end_to_end.small_models import chain, saved
from installed import install_distribution

import epctx_core as epctx
from epctx_core.plugin import Compatibility, Finding, Severity, hookimpl

NAME = "VendorExecutionProvider"
_numbers = itertools.count()


class Vendor(EngineProvider):
    name = NAME
    binary_suffix = "vendor"
    operators = frozenset({"Relu", "Add"})


class Refusing(Vendor):
    """The other one: what the first wrote is foreign to it."""

    simulated = True

    @hookimpl
    def load_context(self, nodes, reader):
        raise epctx.InvalidGraph(
            "this is not a payload of the simulator",
            node=nodes[0].name,
            hint="Fetch it again.",
        )


class Validating(Refusing):
    @classmethod
    def get_compatibility_info(cls, partitions, options):
        return "simulated"

    @classmethod
    def validate_compatibility(cls, info, options):
        return Compatibility.EP_UNSUPPORTED


class Looking(Refusing):
    @classmethod
    def get_compatibility_info(cls, partitions, options):
        return ""

    @classmethod
    def validate_compatibility(cls, info, options):
        return Compatibility.EP_SUPPORTED_OPTIMAL

    @classmethod
    def verify_payloads(cls, context, nodes, reader):
        return [
            Finding(
                Severity.ERROR,
                "container-refused",
                "It is not the simulator's.",
                node=nodes[0].name,
            )
        ]


class Simulating(Vendor):
    simulated = True


def wheel(folder, distribution, cls):
    """Return a folder with a distribution whose EP is a class of this module."""
    # A process imports a module once: each test needs others.
    module = f"{distribution.replace('-', '_')}_{next(_numbers)}"
    entries = {"epctx.execution_providers": {NAME: f"{module}:Provider"}}
    info = install_distribution(folder / distribution, distribution, entries)
    (info.parent / f"{module}.py").write_text(
        f"from contract.test_foreign_payloads import {cls.__name__} as Provider\n"
    )
    return info.parent


@pytest.fixture
def registry(tmp_path):
    result = epctx.Registry(entry_points=False)
    result.add_path(wheel(tmp_path, "acme-vendor", Vendor))
    return result


def compiled(folder, registry, *, manifest):
    model = saved(chain(("Relu", "Add")), folder / "m.onnx")
    options = epctx.SessionOptions()
    options.add_provider(NAME)
    epctx.ModelCompiler(options, model, registry=registry).compile_to_file(
        folder / "m_ctx.onnx"
    )
    proto = onnx.load(folder / "m_ctx.onnx")
    if not manifest:
        del proto.metadata_props[:]
    for entry in proto.metadata_props:
        if entry.key.startswith("ep_compatibility_info"):
            entry.value = "of the vendor"
    proto.metadata_props.add(key=f"ep_compatibility_info.{NAME}", value="of the vendor")
    onnx.save(proto, folder / "m_ctx.onnx")
    return folder / "m_ctx.onnx"


@pytest.mark.parametrize("other", [Refusing, Validating])
@pytest.mark.parametrize("manifest", [True, False])
def test_a_refused_payload_names_the_other_distribution_of_its_ep(
    tmp_path, registry, manifest, other
):
    model = compiled(tmp_path, registry, manifest=manifest)
    registry.add_path(wheel(tmp_path, "acme-sim", other))
    options = epctx.SessionOptions()
    options.add_provider(f"acme-sim:{NAME}")

    with pytest.raises(epctx.InvalidGraph) as caught:
        epctx.InferenceSession(model, options, registry=registry)

    made = ", and made this" if manifest else ""
    said = f'acme-vendor 1.0 provides {NAME}, too{made}: name it "acme-vendor:{NAME}"'
    assert said in caught.value.hint
    assert caught.value.ep == NAME


def test_another_distribution_that_is_disabled_is_not_advised(
    tmp_path, registry, monkeypatch
):
    model = compiled(tmp_path, registry, manifest=True)
    monkeypatch.setenv("EPCTX_DISABLE_PLUGINS", "acme-vendor")
    later = epctx.Registry(entry_points=False)
    later.add_path(tmp_path / "acme-vendor")
    later.add_path(wheel(tmp_path, "acme-sim", Refusing))
    options = epctx.SessionOptions()
    options.add_provider(NAME)

    with pytest.raises(epctx.InvalidGraph) as caught:
        epctx.InferenceSession(model, options, registry=later)

    said = f"acme-vendor 1.0 provides {NAME}, too, and made this; it is disabled"
    assert said in caught.value.hint


def test_a_verification_that_finds_a_foreign_payload_names_the_other_distribution(
    tmp_path, registry
):
    model = compiled(tmp_path, registry, manifest=False)
    registry.add_path(wheel(tmp_path, "acme-sim", Looking))
    registry.prefer(NAME, distribution="acme-sim")

    report = epctx.verify_model(model, registry=registry)

    (finding,) = [
        finding for finding in report.findings if finding.code == "container-refused"
    ]
    assert (
        f'provides {NAME}, too: name it "acme-vendor:{NAME}" among the providers.'
        in finding.hint
    )


def test_who_made_a_payload_and_refuses_it_names_nobody(tmp_path, registry):
    model = compiled(tmp_path, registry, manifest=True)
    other = epctx.Registry(entry_points=False)
    other.add_path(wheel(tmp_path / "new", "acme-vendor", Refusing))
    other.add_path(wheel(tmp_path, "acme-sim", Refusing))
    options = epctx.SessionOptions()
    options.add_provider(f"acme-vendor:{NAME}")

    with pytest.raises(epctx.InvalidGraph) as caught:
        epctx.InferenceSession(model, options, registry=other)

    assert "acme-sim" not in caught.value.hint


def test_without_a_choice_the_manifest_says_who_loads(tmp_path, registry):
    registry.add_path(wheel(tmp_path, "acme-sim", Simulating))
    registry.prefer(NAME, distribution="acme-sim")
    model = compiled(tmp_path, registry, manifest=True)
    both = epctx.Registry(entry_points=False)
    both.add_path(tmp_path / "acme-sim")
    both.add_path(tmp_path / "acme-vendor")

    with epctx.InferenceSession(model, registry=both) as session:
        (record, *_) = session.get_provider_records()

    assert record.distribution == "acme-sim"
