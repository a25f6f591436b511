"""Wheels that keep onnxruntime's packaging convention are EPs of epctx without code."""

from __future__ import annotations

import sys

import pytest
from epctx_onnxruntime.providers import OnnxRuntimeProvider, register_plugin_ep
from epctx_onnxruntime.providers.finding import BUILDS
from support.onnxruntime_wheels import MODULE, install_wheel

import epctx_core as epctx
from epctx_core import PluginState, Registry
from epctx_core.installing import EPS
from epctx_core.plugin import ProviderOption, Purpose

pytestmark = pytest.mark.internal

ACME = MODULE.format(ep="AcmeExecutionProvider")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a folder on the path, whose modules are forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("onnxruntime_ep_")]:
        del sys.modules[name]


def records_of(distribution):
    return [r for r in Registry().records() if r.distribution == distribution]


@pytest.mark.parametrize("listed", [True, False])
def test_a_wheel_is_found_by_its_name_and_files_and_not_imported(site, listed):
    module = install_wheel(site, "onnxruntime-ep-acme", ACME, listed=listed)

    (record,) = records_of("onnxruntime-ep-acme")

    assert (record.name, record.version) == ("AcmeExecutionProvider", "1.2")
    assert record.state is PluginState.DISCOVERED
    assert record.finder == "epctx-onnxruntime:onnxruntime-ep-*"
    assert module not in sys.modules


def test_the_package_that_offers_eps_of_epctx_to_onnxruntime_is_no_vendors(site):
    install_wheel(site, "onnxruntime-ep-epctx", ACME)

    assert records_of("onnxruntime-ep-epctx") == []


@pytest.mark.parametrize(
    ("wheel", "name"),
    [("short", "Acme"), ("long", "onnxruntime-ep-long:AcmeExecutionProvider")],
)
def test_a_wheel_is_imported_when_its_ep_is_asked_whether_it_is_available(
    site, wheel, name
):
    module = install_wheel(site, f"onnxruntime-ep-{wheel}", ACME)
    registry = Registry()
    record = registry.resolve(name)
    cls = registry.load(record)

    loaded = module in sys.modules
    found = registry.availability(record, Purpose.RUN)

    assert not loaded
    assert module in sys.modules
    assert issubclass(cls, OnnxRuntimeProvider)
    assert cls.vendor == f"onnxruntime-ep-{wheel}"
    assert "the library __init__.py of AcmeExecutionProvider does not load" in (
        found.reason
    )


@pytest.mark.parametrize(
    "code",
    [
        (
            '_NAME = "AcmeExecutionProvider"\n'
            "def get_ep_names() -> list[str]:\n    return [_NAME]\n"
        ),
        (
            '_NAME: str = "AcmeExecutionProvider"\n'
            "def get_ep_names():\n"
            '    """List them."""\n'
            "    return (get_ep_name(),)\n"
            "def get_ep_name():\n    return _NAME\n"
        ),
        'def get_ep_name():\n    return "AcmeExecutionProvider"\n',
        'NAMES = ["AcmeExecutionProvider"]\ndef get_ep_names():\n    return NAMES\n',
    ],
)
def test_names_of_eps_are_read_out_of_the_source(site, code):
    install_wheel(site, "onnxruntime-ep-acme", code)

    (record,) = records_of("onnxruntime-ep-acme")

    assert record.name == "AcmeExecutionProvider"


def test_an_ep_s_name_may_end_otherwise(site):
    install_wheel(site, "onnxruntime-ep-acme", MODULE.format(ep="acme_ep"))

    (record,) = records_of("onnxruntime-ep-acme")

    assert record.name == "acme_ep"


def test_a_wheel_with_two_eps_has_a_record_for_each(site):
    code = (
        'def get_ep_names():\n    return ["AExecutionProvider", "BExecutionProvider"]'
    )
    install_wheel(site, "onnxruntime-ep-acme", code)

    names = [record.name for record in records_of("onnxruntime-ep-acme")]

    assert names == ["AExecutionProvider", "BExecutionProvider"]
    with pytest.raises(epctx.InvalidArgument, match="has several EPs") as caught:
        register_plugin_ep("onnxruntime-ep-acme", registry=Registry(entry_points=False))
    assert 'register_plugin_ep("AExecutionProvider"' in caught.value.hint


@pytest.mark.parametrize(
    "code",
    [
        "import os\ndef get_ep_names():\n    return [os.environ['EP']]\n",
        "def get_ep_names():\n    return get_ep_names()\n",
        "def get_ep_names():\n    return ['an EP']\n",
        "def get_ep_names():\n    return []\n",
        "def get_ep_names(:\n",
        "from acme import get_ep_names\n",
    ],
)
def test_a_wheel_whose_names_only_an_import_tells_is_listed_with_what_to_do(site, code):
    install_wheel(site, "onnxruntime-ep-acme", code)

    (record,) = records_of("onnxruntime-ep-acme")

    assert (record.name, record.state) == ("onnxruntime-ep-acme", PluginState.BROKEN)
    assert "register_plugin_ep('onnxruntime-ep-acme') imports it" in record.reason


def test_a_package_of_that_name_without_the_functions_is_no_wheel_of_an_ep(site):
    install_wheel(site, "onnxruntime-ep-acme", "")

    assert records_of("onnxruntime-ep-acme") == []


def test_a_wheel_with_metadata_that_cannot_be_read_disturbs_no_other(site):
    install_wheel(site, "onnxruntime-ep-acme", ACME)
    install_wheel(site, "onnxruntime-ep-broken", ACME)
    (site / "onnxruntime_ep_broken-1.2.dist-info" / "top_level.txt").write_bytes(
        b"\xff\xfe"
    )

    assert len(records_of("onnxruntime-ep-acme")) == 1
    assert records_of("onnxruntime-ep-broken") == []


def test_a_wheel_that_a_plugin_of_epctx_requires_is_left_to_that(site):
    openvino = MODULE.format(ep="OpenVINOExecutionProvider")
    install_wheel(site, "onnxruntime-ep-openvino", openvino)

    records = [r for r in Registry().find("OpenVINO") if not r.simulated]

    assert {record.finder for record in records} == {None}
    assert "epctx-onnxruntime" in {record.distribution for record in records}


def test_a_new_version_is_seen_by_a_refresh(site):
    install_wheel(site, "onnxruntime-ep-acme", ACME)
    registry = Registry()
    registry.load(registry.resolve("Acme"))
    (site / "onnxruntime_ep_acme-1.2.dist-info").rename(
        site / "onnxruntime_ep_acme-1.3.dist-info"
    )
    metadata = site / "onnxruntime_ep_acme-1.3.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.2", "1.3"))

    registry.refresh()

    (record,) = registry.find("Acme")
    assert record.state is PluginState.RESTART_NEEDED
    assert record.usable


def test_a_host_registers_a_wheel_by_its_name(site):
    install_wheel(site, "onnxruntime-ep-acme", ACME)
    registry = Registry(entry_points=False)

    made = register_plugin_ep("onnxruntime-ep-acme", registry=registry)

    assert made.name == "AcmeExecutionProvider"
    assert made.library.distribution == "onnxruntime-ep-acme"
    assert registry.resolve("Acme").vendor == "onnxruntime-ep-acme"


def test_a_host_declares_the_options_of_a_wheel_that_is_found_without_it(site):
    install_wheel(site, "onnxruntime-ep-acme", ACME)
    registry = Registry()
    found = registry.resolve("Acme")
    option = ProviderOption("device", str, default=None, doc="The device.")

    made = register_plugin_ep(
        "AcmeExecutionProvider",
        distribution="onnxruntime-ep-acme",
        options=[option],
        registry=registry,
    )

    assert found.distribution == "onnxruntime-ep-acme"
    assert registry.load(registry.resolve("Acme")) is made
    assert made.library.module == "onnxruntime_ep_acme"
    assert made.options == (option,)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise OSError('gone')", "cannot be used: OSError: gone"),
        ("def get_ep_names():\n    return []", "cannot be used: TypeError"),
        ("", "cannot be used: AttributeError"),
    ],
)
def test_a_wheel_that_does_not_name_its_eps_cannot_be_registered(site, code, reason):
    install_wheel(site, "onnxruntime-ep-acme", code)

    with pytest.raises(epctx.NotImplementedByProvider, match=reason):
        register_plugin_ep("onnxruntime-ep-acme", registry=Registry(entry_points=False))


def test_a_wheel_that_is_not_installed_is_named_with_the_line_for_pip():
    with pytest.raises(epctx.NotImplementedByProvider) as caught:
        register_plugin_ep(
            "onnxruntime-ep-absent", registry=Registry(entry_points=False)
        )

    assert "the package onnxruntime-ep-absent" in caught.value.message
    assert caught.value.hint == "pip install onnxruntime-ep-absent"


@pytest.mark.parametrize("build", [build for build, eps in BUILDS.items() if eps])
def test_an_ep_inside_a_build_of_onnxruntime_is_found_where_that_is_installed(
    site, build
):
    site.mkdir(exist_ok=True)
    folder = site / f"{build.replace('-', '_')}-1.31.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: {build}\nVersion: 1.31.0\n")

    registry = Registry()
    found = {r.name: r for r in registry.records() if r.distribution == build}

    assert {*found} == {*BUILDS[build]}
    for ep, record in found.items():
        assert not record.simulated
        cls = registry.load(record)
        assert (cls.name, cls.library.distribution) == (ep, build)
        reason = registry.availability(record, Purpose.RUN).reason
        assert reason.endswith(f"has no {ep} inside.")  # The one of these tests.


def test_messages_name_the_builds_that_are_looked_for():
    retired = {
        ("onnxruntime-rocm", "MIGraphXExecutionProvider"),
        ("onnxruntime-rocm", "ROCMExecutionProvider"),
    }
    looked_for = {(build, ep) for build, eps in BUILDS.items() for ep in eps}
    known = [ep for ep in EPS if ep.build]
    named = {(ep.build, ep.name) for ep in known}
    of_macos = {(ep.build, ep.name) for ep in known if ep.system == "macOS"}

    assert looked_for - retired == named - (
        set() if sys.platform == "darwin" else of_macos
    )


@pytest.mark.parametrize("ep", [ep for ep in EPS if ep.build], ids=lambda ep: ep.name)
def test_a_message_about_an_ep_that_is_missing_names_the_build_that_has_it(ep):
    _, hint = epctx.Registry(entry_points=False).explain_missing(ep.name)

    # What works beside an onnxruntime is named first.
    assert (ep.package or ep.build) in hint
