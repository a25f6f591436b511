"""Looking up: what a host's name means, and what an error says when nothing is
found.
"""

from __future__ import annotations

import re

import pytest
from support.folders import PLUGINS
from support.install_commands import pip_install

from epctx_core import Registry
from epctx_core.errors import InvalidArgument, PluginError


@pytest.fixture
def installed(packages):
    packages.install(
        "epctx-sim-qnn", "QNNExecutionProvider", sources=["QNN", "QnnExecutionProvider"]
    )
    packages.install("epctx-toy", "Toy")
    return packages


@pytest.mark.parametrize(
    "name",
    [
        "QNNExecutionProvider",
        "QNN",
        "qnn",
        "qnnexecutionprovider",
        "epctx-sim-qnn:QNN",
        "EPCTX_sim.qnn:qnn",
    ],
)
def test_a_host_may_use_the_long_or_the_short_name_without_case(installed, name):
    assert Registry().resolve(name).name == "QNNExecutionProvider"


def test_a_source_key_is_no_name_for_hosts(installed):
    installed.install("epctx-old", "NewExecutionProvider", sources=["Legacy"])

    with pytest.raises(InvalidArgument, match="'Legacy'"):
        Registry().resolve("Legacy")


def test_an_unknown_name_lists_what_is_installed_and_suggests_the_nearest(installed):
    with pytest.raises(InvalidArgument) as caught:
        Registry().resolve("QNM")

    assert "Did you mean 'QNN'?" in caught.value.message
    assert "Installed: QNNExecutionProvider, Toy." in caught.value.message


def test_the_cpu_ep_is_suggested_too(installed):
    with pytest.raises(InvalidArgument, match="Did you mean 'CPUExecutionProvider'"):
        Registry().resolve("CPUExecutionProvidr")


@pytest.mark.parametrize("name", ["QNN", "qnnexecutionprovider"])
def test_a_known_name_that_is_not_installed_names_the_vendors_package_before_the_simulated_one(
    name,
):
    with pytest.raises(InvalidArgument) as caught:
        Registry(entry_points=False).resolve(name)

    assert "Installed: none." in caught.value.message
    assert (
        f"{pip_install('epctx-sim-qnn')} provides a simulated one" in caught.value.hint
    )
    assert caught.value.hint.startswith(
        f"{pip_install('epctx-onnxruntime[qnn]')} provides QNNExecutionProvider"
    )


def test_an_unknown_distribution_is_named(installed):
    with pytest.raises(
        InvalidArgument, match=r"'epctx-sim-qmn:QNN'.*Did you mean 'epctx-sim-qnn:QNN'"
    ):
        Registry().resolve("epctx-sim-qmn:QNN")


def test_a_distribution_without_that_ep_is_an_error(installed):
    with pytest.raises(InvalidArgument, match="'epctx-toy:QNN'"):
        Registry().resolve("epctx-toy:QNN")


def test_a_short_name_that_fits_two_ep_types_is_an_error_and_the_exact_one_is_not(
    installed,
):
    installed.install("epctx-other", "QnnExecutionProvider")
    registry = Registry()

    with pytest.raises(
        InvalidArgument, match="can mean QNNExecutionProvider or QnnExecutionProvider"
    ):
        registry.resolve("qnn")

    assert registry.resolve("QnnExecutionProvider").distribution == "epctx-other"


@pytest.mark.parametrize("name", ["CPU", "cpuexecutionprovider"])
def test_the_cpu_ep_is_no_plugin(installed, name):
    with pytest.raises(InvalidArgument, match="built in"):
        Registry().resolve(name)


def test_a_broken_plugin_is_named_with_its_reason(installed):
    installed.install("epctx-toy", "Toy", code="import libtoy_that_is_missing")
    registry = Registry()
    with pytest.raises(PluginError):
        registry.load(registry.resolve("toy"))

    with pytest.raises(
        PluginError, match=r"Toy \(epctx-toy 1\.0\).*libtoy_that_is_missing"
    ) as caught:
        registry.resolve("toy")

    assert (caught.value.ep, caught.value.distribution, caught.value.version) == (
        "Toy",
        "epctx-toy",
        "1.0",
    )
    assert "EPCTX_DISABLE_PLUGINS=epctx-toy" in caught.value.hint


def test_a_missing_source_is_explained_by_what_is_installed_and_who_would_bring_it(
    packages,
):
    packages.install("epctx-toy", "Toy")

    why, hint = Registry().explain_missing("VitisAIExecutionProvider")

    assert why == (
        "No installed plugin accepts the source 'VitisAIExecutionProvider'. "
        "Installed: Toy."
    )
    assert "epctx-sim-vitisai provides a simulated one" in hint


def test_a_missing_source_in_another_case_names_the_one_that_the_package_takes():
    _, hint = Registry(entry_points=False).explain_missing("openvinoexecutionprovider")

    assert "provides OpenVINOExecutionProvider" in hint


def test_a_source_nobody_knows_is_explained_with_the_nearest_one(installed):
    why, hint = Registry().explain_missing("QNNExecutionProvier")

    assert "Did you mean 'QNNExecutionProvider'?" in why
    assert "epctx plugins list" in hint


@pytest.mark.parametrize("name", ["VitisAIExecutionProvider", "XyzExecutionProvider"])
def test_what_all_ep_types_end_with_makes_no_two_of_them_alike(installed, name):
    why, _ = Registry().explain_missing(name)
    with pytest.raises(InvalidArgument) as caught:
        Registry().resolve(name)

    assert "Did you mean" not in why
    assert "Did you mean" not in caught.value.message


def test_a_node_without_a_source_is_explained(installed):
    why, hint = Registry().explain_missing("")

    assert "has no source" in why
    assert "'source'" in hint


def test_a_source_whose_plugin_is_broken_is_explained_by_that(installed):
    installed.install("epctx-toy", "Toy", code="import libtoy_that_is_missing")
    registry = Registry()
    with pytest.raises(PluginError):
        registry.load(registry.resolve("toy"))

    why, hint = registry.explain_missing("Toy")

    assert "'Toy': Toy (epctx-toy 1.0) can't be used (broken)" in why
    assert "libtoy_that_is_missing" in why
    assert "reinstall epctx-toy" in hint


def test_a_source_that_an_installed_plugin_takes_is_missing_only_from_the_session(
    installed,
):
    why, hint = Registry().explain_missing("QNN")

    assert "No EP of this session accepts the source 'QNN'" in why
    assert "QNNExecutionProvider (epctx-sim-qnn 1.0) accepts" in why
    assert "Add 'QNNExecutionProvider'" in hint


def test_a_source_that_differs_by_case_from_an_installed_one_says_so(installed):
    why, hint = Registry().explain_missing("TOY")

    assert "accepts 'Toy'" in why
    assert "case of a source is significant" in hint


SIMULATED = ("QNN", "OpenVINO", "VitisAI")
"""The vendors for whose EPs we ship a simulated one."""
OTHERS = ("MorphiZen",)
"""Another vendor whose EP of onnxruntime writes EPContext nodes."""


def hints_about(vendor):
    """Return what is said to a host that names a vendor's EP, and of a node with that
    source.
    """
    registry = Registry(entry_points=False)
    with pytest.raises(InvalidArgument) as caught:
        registry.resolve(vendor)
    _, hint = registry.explain_missing(f"{vendor}ExecutionProvider")
    return caught.value.hint, hint


@pytest.mark.parametrize("vendor", SIMULATED)
def test_a_known_source_is_brought_by_a_package_that_says_it_is_simulated(vendor):
    over_vendors = {
        "QNN": f"{pip_install('epctx-onnxruntime[qnn]')} provides",
        "OpenVINO": f"{pip_install('epctx-openvino')} provides",
    }

    for hint in hints_about(vendor):
        assert f"epctx-sim-{vendor.lower()} provides a simulated one" in hint
        first = over_vendors.get(vendor, f"epctx-{vendor.lower()} is reserved for it")
        assert first in hint


@pytest.mark.parametrize("vendor", OTHERS)
def test_another_known_source_is_brought_by_no_package_of_ours(vendor):
    for hint in hints_about(vendor):
        assert "epctx has no package" in hint
        assert "pip install" not in hint
        assert re.search(r"epctx-(?!sim-)\S+ is reserved", hint)


def test_the_packages_of_known_sources_are_the_ones_that_are_shipped():
    shipped = {path.name for path in PLUGINS.glob("epctx-sim-*")}

    assert {f"epctx-sim-{vendor.lower()}" for vendor in SIMULATED} == shipped - {
        "epctx-sim-sdk"
    }


IN_PLACE = ", in place of another onnxruntime"


@pytest.mark.parametrize(
    ("name", "wheel", "end"),
    [
        ("TensorRT", "onnxruntime-gpu", f"TensorrtExecutionProvider{IN_PLACE}."),
        ("cuda", "onnxruntime-gpu", f"CUDAExecutionProvider{IN_PLACE}."),
        ("NvTensorRtRtx", "onnxruntime-ep-nv-tensorrt-rtx", "RTXExecutionProvider."),
        ("WebGPU", "onnxruntime-ep-webgpu", "WebGpuExecutionProvider."),
        ("DML", "onnxruntime-directml", f" on Windows{IN_PLACE}."),
        ("CoreML", "onnxruntime", f" on macOS{IN_PLACE}."),
        ("migraphx", "onnxruntime-migraphx", f" on Linux{IN_PLACE}."),
    ],
)
def test_a_known_ep_names_the_wheel_of_onnxruntime_that_has_it(
    installed, name, wheel, end
):
    with pytest.raises(InvalidArgument) as caught:
        Registry().resolve(name)

    assert caught.value.hint.startswith(f"pip install {wheel} ")
    assert caught.value.hint.endswith(end)
    assert "epctx-onnxruntime" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("qnn", ["epctx-sim-qnn"]),
        ("QNNExecutionProvider", ["epctx-sim-qnn"]),
        ("Epctx.Sim_QNN:QNN", ["epctx-sim-qnn"]),
        ("epctx-toy:QNN", []),
        ("QnnExecutionProvider2", []),
        ("Broken", ["epctx-broken"]),
    ],
)
def test_what_a_name_means_is_found_whether_it_can_be_used_or_not(
    installed, name, found
):
    installed.install(
        "epctx-broken", "BrokenExecutionProvider", code="raise RuntimeError"
    )

    assert [record.distribution for record in Registry().find(name)] == found


def test_a_record_that_cannot_be_used_is_explained_with_what_to_do(
    installed, monkeypatch
):
    monkeypatch.setenv("EPCTX_DISABLE_PLUGINS", "epctx-toy")
    registry = Registry()

    why, hint = registry.explain_unusable(registry.find("Toy")[0])

    assert why == (
        "Toy (epctx-toy 1.0) can't be used (disabled): EPCTX_DISABLE_PLUGINS names it"
    )
    assert hint.startswith("Change that environment variable")


def test_names_in_the_environment_that_fit_nothing_are_told(installed, monkeypatch):
    monkeypatch.setenv("EPCTX_DISABLE_PLUGINS", "Tyo, epctx-toy")
    monkeypatch.setenv("EPCTX_PREFER", "QNN=epctx-toy")

    assert Registry().misspelt() == [
        (
            "EPCTX_DISABLE_PLUGINS names 'Tyo', which is neither an installed EP nor "
            "its distribution"
        ),
        (
            "EPCTX_PREFER names 'epctx-toy:QNN', which is neither an installed EP nor "
            "its distribution"
        ),
    ]
