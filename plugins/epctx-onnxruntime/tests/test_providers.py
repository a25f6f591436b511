"""EPs of onnxruntime behind the hooks of epctx, on onnxruntime's own CPU EP."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from epctx_onnxruntime.providers import OnnxRuntimeProvider, register_plugin_ep
from epctx_onnxruntime.providers.library import PluginLibrary
from epctx_onnxruntime.providers.openvino import OpenVINOExecutionProvider
from epctx_onnxruntime.providers.programs import Binary, Program
from epctx_onnxruntime.providers.qnn import QNNExecutionProvider
from epctx_onnxruntime.providers.sharing import SourceModel
from support.networks.catalog import Catalog
from support.onnxruntime_cpu_ep import OrtCpuExecutionProvider as CpuProvider

import epctx_core as epctx
from epctx_core.plugin import ProviderOption, Purpose

pytestmark = pytest.mark.internal

EXPORTED = ("bert", "lstm", "resnet")


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    return Catalog(tmp_path_factory.mktemp("networks"))


def registry_of(cls):
    registry = epctx.Registry(entry_points=False)
    registry.register(cls)
    return registry


def options_for(ep, given=None, **entries):
    options = epctx.SessionOptions()
    options.add_provider(ep.name, given or {})
    for key, value in entries.items():
        options.add_session_config_entry(f"ep.{key}", value)
    return options


def run(model, inputs, cls=CpuProvider, **entries):
    with epctx.InferenceSession(
        model, options_for(cls, **entries), registry=registry_of(cls)
    ) as session:
        return session.run(None, inputs)


@pytest.mark.parametrize("name", EXPORTED)
def test_a_session_runs_the_network_on_the_ep(networks, name):
    network = networks.get(name)

    results = run(network.path, network.inputs)

    for result, expected in zip(results, network.reference, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("name", EXPORTED)
def test_a_compiled_network_loads_without_its_source(
    networks, tmp_path, name, embedded
):
    network = networks.get(name)
    context = tmp_path / "out" / "m_ctx.onnx"
    context.parent.mkdir()

    compiler = epctx.ModelCompiler(
        options_for(CpuProvider),
        network.path,
        embedded,
        registry=registry_of(CpuProvider),
    )
    report = compiler.compile_to_file(context)
    network.path.unlink()

    assert {partition.ep for partition in report.partitions} == {CpuProvider.name}
    for result, expected in zip(
        run(context, network.inputs), network.reference, strict=True
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-5)


def test_an_ep_is_not_available_whose_package_is_not_installed():
    class Absent(CpuProvider):
        library = PluginLibrary(
            ep="Absent", distribution="onnxruntime-absent", module="onnxruntime_absent"
        )

    found = Absent.availability(Purpose.EXPORT)

    assert not found.available
    assert found.reason == "the package onnxruntime-absent of Absent is not installed."
    assert found.hint == "pip install onnxruntime-absent"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (
            "def get_library_path(): raise OSError('gone')",
            "cannot be used: OSError: gone",
        ),
        ("library_path = '/missing/libacme.so'", "is missing at /missing/libacme.so"),
        ("EP_NAME = 'Acme'", "is missing"),
        ("import no_such_module_anywhere", "cannot be used: ModuleNotFoundError"),
        ("library_path = __file__", "does not load"),
    ],
)
def test_an_ep_is_not_available_whose_library_does_not_load(
    tmp_path, monkeypatch, told, reason
):
    name = f"vendors_package_{abs(hash(told))}"
    Path(tmp_path, f"{name}.py").write_text(told)
    monkeypatch.syspath_prepend(str(tmp_path))

    class Broken(CpuProvider):
        library = PluginLibrary(ep="Acme", distribution="onnxruntime-acme", module=name)

    found = Broken.availability(Purpose.LOAD)

    assert not found.available
    assert reason in found.reason
    assert found.hint


def test_a_package_that_is_installed_meanwhile_is_found(tmp_path, monkeypatch):
    class Late(CpuProvider):
        library = PluginLibrary(
            ep="Late", distribution="onnxruntime-late", module="onnxruntime_late"
        )

    before = Late.availability(Purpose.RUN)
    Path(tmp_path, "onnxruntime_late.py").write_text("library_path = __file__")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert before.hint == "pip install onnxruntime-late"
    assert (
        "onnxruntime_late.py of Late does not load"
        in Late.availability(Purpose.RUN).reason
    )


def test_a_library_that_does_not_load_is_tried_once(tmp_path, monkeypatch):
    import onnxruntime

    tried = []

    def register(_name, path):
        tried.append(path)
        raise RuntimeError("no library")

    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", register)
    library = tmp_path / "libbroken.so"
    library.write_bytes(b"no library")

    class Broken(CpuProvider):
        library = PluginLibrary(ep="Broken", path=str(tmp_path / "libbroken.so"))

    reasons = {Broken.availability(Purpose.RUN).reason for _ in range(3)}

    assert tried == [str(library)]
    assert len(reasons) == 1


def test_an_ep_of_no_listed_device_says_so(networks):
    class Unlisted(CpuProvider):
        library = PluginLibrary(ep="Unlisted")

    found = Unlisted.availability(Purpose.RUN)

    assert not found.available


def test_a_vendor_not_known_by_name_is_registered_by_one_call(tmp_path):
    registry = epctx.Registry(entry_points=False)
    library = tmp_path / "libacme.so"
    library.write_bytes(b"no library")
    option = ProviderOption("device", str, default=None, doc="The device.")

    made = register_plugin_ep(
        "AcmeExecutionProvider", library=library, options=[option], registry=registry
    )

    (record,) = registry.find("AcmeExecutionProvider")
    assert issubclass(made, OnnxRuntimeProvider)
    assert (
        "libacme.so of AcmeExecutionProvider does not load"
        in registry.availability(record, Purpose.RUN).reason
    )
    assert made.vendor_options({"device": None}) == {}
    assert made.vendor_options({"device": "NPU"}) == {"device": "NPU"}


def test_another_process_makes_a_registered_ep_again_out_of_text(tmp_path, monkeypatch):
    """Whatever folder it works in."""
    (tmp_path / "libacme.so").write_bytes(b"no library")
    monkeypatch.chdir(tmp_path)
    options = [
        ProviderOption("device", str, default=None, doc="The device."),
        ProviderOption("level", int, default=1, choices=(1, 2), doc="How much."),
        ProviderOption("key", str, default="", doc="A key.", secret=True),
    ]
    made = register_plugin_ep(
        "AcmeExecutionProvider",
        library="libacme.so",
        distribution="onnxruntime-acme",
        options=options,
        registry=epctx.Registry(entry_points=False),
    )
    function, arguments = made.factory
    monkeypatch.chdir("/")

    again = pkgutil.resolve_name(function)(**json.loads(json.dumps(arguments)))

    assert again.library.find_path() == str(tmp_path / "libacme.so")
    assert (again.name, again.vendor, again.needs_verified_payloads) == (
        "AcmeExecutionProvider",
        "onnxruntime-acme",
        True,
    )
    assert [o.parse("Acme", "2") for o in again.options] == ["2", 2, "2"]
    assert again.options == made.options


@pytest.mark.parametrize(
    "wrong", ["device", {"name": "device"}, SimpleNamespace(name="device")]
)
def test_what_is_no_option_is_refused_by_the_registration(wrong):
    with pytest.raises(epctx.PluginError, match="not a ProviderOption"):
        register_plugin_ep(
            "AcmeExecutionProvider",
            module="acme",
            options=[wrong],
            registry=epctx.Registry(entry_points=False),
        )


@pytest.mark.parametrize("given", [{}, {"library": "a.so", "module": "a"}])
def test_a_registration_needs_a_library_or_a_module(given):
    with pytest.raises(
        epctx.InvalidArgument, match="either the path of its library or its module"
    ):
        register_plugin_ep("AcmeExecutionProvider", **given)


def test_importing_the_eps_imports_no_onnxruntime():
    code = (
        "import sys, epctx_onnxruntime.providers.base, "
        "epctx_onnxruntime.providers.qnn as q;import epctx_onnxruntime.providers; "
        "assert 'onnxruntime' not in sys.modules"
    )

    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=60)


def test_a_damaged_payload_is_refused(networks, tmp_path):
    network = networks.get("lstm")
    context = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(
        options_for(CpuProvider), network.path, registry=registry_of(CpuProvider)
    ).compile_to_file(context)
    (binary,) = tmp_path.glob("*.bin")
    content = bytearray(binary.read_bytes())
    content[100:200] = bytes(100)
    binary.write_bytes(content)

    with pytest.raises(epctx.InvalidGraph):
        run(context, network.inputs)


def test_facts_for_keys_of_caches_name_versions_device_and_library():
    import onnxruntime

    facts = CpuProvider.identify({})

    assert facts["onnxruntime"] == onnxruntime.__version__
    assert facts["target"].startswith("CPU ")
    assert len(facts["files"]) == 64


class Configured(CpuProvider):
    options = (
        ProviderOption("config", str, default=None, doc="Properties, or their file."),
    )
    file_options = ("config",)


@pytest.mark.parametrize("form", ["{}", "Add:{}:Interface,Mul:{}:Other:HTP"])
def test_a_file_that_an_option_names_changes_the_build_as_its_content_does(
    tmp_path, form
):
    file = tmp_path / "config.json"
    given = {"config": form.format(file, file)}

    def written(text):
        file.write_text(text)
        return Configured.get_build_info(given)

    first = written("one")
    assert written("another") != first
    assert written("one") == first


@pytest.mark.parametrize(
    "text", [None, "", "{}", '{"CPU": {"' + 300 * "x" + '": ""}}', "missing.json", "."]
)
def test_an_option_that_names_no_file_leaves_the_build_as_it_is(text):
    assert Configured.get_build_info({"config": text}) == CpuProvider.get_build_info({})


@pytest.mark.parametrize("ep", [QNNExecutionProvider, OpenVINOExecutionProvider])
def test_options_of_files_are_declared(ep):
    assert ep.file_options
    assert {*ep.file_options} <= {option.name for option in ep.options}


def test_nodes_of_another_ep_are_left_out_of_the_model_that_is_compiled(networks):
    """The earlier EP's nodes cut the graph: each group is compiled as a model of its
    own.
    """
    network = networks.get("resnet")
    from epctx_sim_qnn import QnnProvider

    registry = registry_of(CpuProvider)
    registry.register(QnnProvider)
    options = epctx.SessionOptions()
    options.add_provider(QnnProvider.name, {})
    options.add_provider(CpuProvider.name, {})
    with epctx.InferenceSession(network.path, options, registry=registry) as session:
        results = session.run(None, network.inputs)

    for result, expected in zip(results, network.reference, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-2, atol=1e-2)


def test_a_share_group_is_one_payload(networks, tmp_path):
    chosen = [networks.get(name) for name in ("lstm", "resnet")]

    with epctx.ShareGroup(
        output_dir=tmp_path, registry=registry_of(CpuProvider)
    ) as group:
        for network in chosen:
            group.compile(network.path, options_for(CpuProvider))

    assert len(list(tmp_path.glob("*.bin"))) == 1
    for context, network in zip(sorted(tmp_path.glob("*.onnx")), chosen, strict=True):
        for result, expected in zip(
            run(context, network.inputs), network.reference, strict=True
        ):
            np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "writer",
    [
        SimpleNamespace(final=False, graphs_by_model=(("first",),)),
        SimpleNamespace(final=True, graphs_by_model=(("first",), ("second",))),
    ],
)
def test_binaries_of_a_vendor_are_not_those_of_a_share_group(writer):
    source = SourceModel(name="model", content=b"", weights={}, level=0)
    program = Program(binary=Binary(b"of the vendor"), name="graph", source=source)
    workspace = SimpleNamespace(get_or_create=lambda _key, factory: factory())
    ep = CpuProvider(
        SimpleNamespace(options={}, purpose=Purpose.EXPORT, workspace=workspace)
    )
    ep.compile([SimpleNamespace(name="first", token=program)])

    with pytest.raises(
        epctx.NotImplementedByProvider, match="writes a binary for each model"
    ):
        ep.get_ep_context_nodes(writer)
