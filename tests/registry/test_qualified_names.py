"""Names with a distribution (`acme-twin:Twin`): taken wherever a host names an EP that
two distributions provide.
"""

from __future__ import annotations

import onnx.parser
import pytest
from support.packages import Packages

import epctx_core as epctx

EP = "TwinExecutionProvider"
SPELLINGS = (f"labs-twin:{EP}", "Labs_Twin:twin")
TWIN = """
from epctx_sim_openvino import OpenVinoProvider

class Provider(OpenVinoProvider):
    name = "TwinExecutionProvider"
    vendor = "Twin"
    simulated = False
"""


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Two distributions that provide one EP, beside what is installed."""
    packages = Packages(tmp_path / "site")
    for distribution in ("acme-twin", "labs-twin"):
        packages.install(distribution, EP, code=TWIN)
    monkeypatch.syspath_prepend(packages.folder)
    return epctx.Registry()


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(
        onnx.parser.parse_model(
            """
            <ir_version: 8, opset_import: ["": 17]>
            g (float[2,3] x) => (float[2,3] y) { a = Relu (x) y = Add (a, x) }
            """
        ).SerializeToString()
    )
    return path


def options_for(name, **entries):
    options = epctx.SessionOptions()
    options.add_provider(name, {"device_type": "CPU"})
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return options


def used_by(session):
    with session:
        return session.get_providers()[0]


def compiled(name, model, registry, **entries):
    context = model.with_name("m_ctx.onnx")
    epctx.ModelCompiler(
        options_for(name, **entries), model, registry=registry
    ).compile_to_file(context)
    return context


def shared(name, model, registry):
    folder = model.with_name("shared")
    folder.mkdir()
    with epctx.ShareGroup(output_dir=folder, registry=registry) as group:
        group.compile(model, options_for(name))
    return folder / "m_ctx.onnx"


MAKERS = {
    "compiler": compiled,
    "isolated compiler": lambda *given: compiled(*given, ep__isolate="compile"),
    "optional EP": lambda name, *given: compiled(
        name, *given, ep__optional_providers=name
    ),
    "group": shared,
    "cache": lambda name, model, registry: epctx.compile_cached(
        model,
        options_for(name),
        cache_dir=model.with_name("cache"),
        registry=registry,
    ),
}
USERS = {
    "options": lambda name, model, registry: epctx.InferenceSession(
        model, options_for(name), registry=registry
    ),
    "providers": lambda name, model, registry: epctx.InferenceSession(
        model, providers=[(name, {"device_type": "CPU"})], registry=registry
    ),
    "isolated": lambda name, model, registry: epctx.InferenceSession(
        model, options_for(name, ep__isolate="all"), registry=registry
    ),
    "cache": lambda name, model, registry: epctx.load_or_compile(
        model, providers=[name], cache_dir=model.with_name("cache"), registry=registry
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_model_is_compiled_by_the_distribution_that_is_named(
    make, name, model, registry
):
    context = make(name, model, registry)

    (node,) = epctx.inspect_model(context).ep_contexts
    assert node.source == EP
    assert epctx.verify_model(context, options_for(name), registry=registry).ok
    info = epctx.inspect_model(context).manifest
    assert info.providers[EP]["distribution"] == "labs-twin"


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("use", USERS.values(), ids=USERS)
def test_a_session_has_the_distribution_that_is_named(use, name, model, registry):
    context = compiled(name, model, registry)

    assert used_by(use(name, model, registry)) == EP
    assert used_by(use(name, context, registry)) == EP


@pytest.mark.parametrize("name", SPELLINGS)
def test_what_an_ep_says_of_itself_and_of_a_model_is_asked_by_that_name(
    name, model, registry
):
    context = compiled(name, model, registry)

    assert epctx.get_ep_metadata(name, registry=registry)["simulated"] == "0"
    assert epctx.get_model_compatibility(
        context, name, registry=registry
    ) == epctx.get_model_compatibility(context, "acme-twin:Twin", registry=registry)
    text = epctx.get_compatibility_info_from_model(context, EP)
    assert text
    assert epctx.get_compatibility_info_from_model(context, name) == text


def test_a_distribution_may_be_preferred_by_a_name_that_has_it(registry):
    registry.prefer("labs-twin:Twin", distribution="labs-twin")

    assert registry.resolve(EP).distribution == "labs-twin"
    with pytest.raises(epctx.InvalidArgument, match="'acme-twin' does not provide"):
        registry.prefer("labs-twin:Twin", distribution="acme-twin")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EPCTX_PLUGINS", "labs-twin:Twin"),
        ("EPCTX_DISABLE_PLUGINS", f"Acme_Twin:{EP}"),
        ("EPCTX_PREFER", "labs-twin:Twin=labs-twin"),
    ],
)
def test_the_environment_may_name_it_so(registry, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    registry.refresh()

    assert registry.resolve(EP).distribution == "labs-twin"
    assert registry.misspelt() == []


def test_a_preference_that_contradicts_itself_chooses_nothing(registry, monkeypatch):
    monkeypatch.setenv("EPCTX_PREFER", "labs-twin:Twin=acme-twin")
    registry.refresh()

    assert registry.misspelt()
    with pytest.raises(epctx.PluginError, match="provide TwinExecutionProvider"):
        registry.resolve(EP)
