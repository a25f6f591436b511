"""The distribution that made a context model loads it, where several have its EP."""

from __future__ import annotations

import itertools

import pytest
from support.engine_eps import EngineProvider
from support.installed import install_distribution
from support.small_models import chain, saved

import epctx_core as epctx
from epctx_core.errors import InvalidGraph
from epctx_core.plugin import hookimpl

NAME = "VendorExecutionProvider"
_numbers = itertools.count()


class Vendor(EngineProvider):
    name = NAME
    binary_suffix = "vendor"
    operators = frozenset({"Relu", "Add"})


class Simulating(Vendor):
    simulated = True


def wheel(folder, distribution, cls):
    """Return a folder with a distribution whose EP is a class of this module."""
    # A process imports a module once: each test needs others.
    module = f"{distribution.replace('-', '_')}_{next(_numbers)}"
    entries = {"epctx.execution_providers": {NAME: f"{module}:Provider"}}
    info = install_distribution(folder / distribution, distribution, entries)
    (info.parent / f"{module}.py").write_text(
        f"from contract.test_makers import {cls.__name__} as Provider\n"
    )
    return info.parent


@pytest.fixture
def registry(tmp_path):
    result = epctx.Registry(entry_points=False)
    result.add_path(wheel(tmp_path, "acme-vendor", Vendor))
    return result


def compiled(folder, registry):
    model = saved(chain(("Relu", "Add")), folder / "m.onnx")
    options = epctx.SessionOptions()
    options.add_provider(NAME)
    epctx.ModelCompiler(options, model, registry=registry).compile_to_file(
        folder / "m_ctx.onnx"
    )
    return folder / "m_ctx.onnx"


def test_without_a_choice_the_manifest_says_who_loads(tmp_path, registry):
    registry.add_path(wheel(tmp_path, "acme-sim", Simulating))
    registry.prefer(NAME, distribution="acme-sim")
    model = compiled(tmp_path, registry)
    both = epctx.Registry(entry_points=False)
    both.add_path(tmp_path / "acme-sim")
    both.add_path(tmp_path / "acme-vendor")

    with epctx.InferenceSession(model, registry=both) as session:
        (record, *_) = session.get_provider_records()

    assert record.distribution == "acme-sim"


class Refusing(Vendor):
    @hookimpl
    def load_context(self, nodes, reader):
        raise InvalidGraph("not one of ours.")


def test_an_ep_that_refuses_anothers_payload_has_the_maker_in_its_hint(
    tmp_path, registry
):
    model = compiled(tmp_path, registry)
    other = epctx.Registry(entry_points=False)
    other.add_path(wheel(tmp_path, "other-vendor", Refusing))

    with pytest.raises(InvalidGraph, match="not one of ours") as caught:
        epctx.InferenceSession(model, registry=other)

    assert caught.value.hint.startswith("acme-vendor made it")
    assert f'"acme-vendor:{NAME}"' in caught.value.hint


def test_an_ep_that_refuses_its_own_payload_keeps_its_hint(tmp_path):
    class Unsure(Vendor):
        @hookimpl
        def load_context(self, nodes, reader):
            raise InvalidGraph("too old.", hint="Update the driver.")

    # Neither has a distribution: the host registered both.
    registry, other = (epctx.Registry(entry_points=False) for _ in range(2))
    registry.register(Vendor)
    other.register(Unsure)

    with pytest.raises(InvalidGraph, match="too old") as caught:
        epctx.InferenceSession(compiled(tmp_path, registry), registry=other)

    assert caught.value.hint == "Update the driver."
