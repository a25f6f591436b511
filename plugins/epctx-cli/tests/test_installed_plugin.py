"""The template's package in a clean environment, beside the core's wheel: it works from
the first minute.
"""

from __future__ import annotations

import json
import re
import zipfile

import numpy as np
import pytest
from clean_environment import built_wheel, clean_environment
from support.folders import ROOT

COMMAND_LINE = ROOT / "plugins" / "epctx-cli"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the command line, which has the template."""
    return built_wheel(COMMAND_LINE, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheel):
    """A clean environment with the core, its command line, the kit, the container of
    blobs and the bridge to onnxruntime, in which a plugin was begun, and is installed
    too.
    """
    made = clean_environment(tmp_path_factory.mktemp("clean") / "venv")
    core = built_wheel(ROOT, tmp_path_factory.mktemp("core"))
    further = (
        built_wheel(ROOT / "plugins" / name, tmp_path_factory.mktemp("further"))
        for name in (
            "epctx-blobs",
            "epctx-conformance",
            "epctx-isolation",
            "onnxruntime-ep-epctx",
        )
    )
    made.install(core, wheel, *further)
    made.run("epctx", "plugins", "new", "acme", "-o", made.folder / "work")
    made.install(made.folder / "work" / "epctx-acme")
    return made


def test_the_wheel_has_every_file_of_the_templates(wheel):
    source = COMMAND_LINE / "src"
    root = source / "epctx_cli" / "templates"

    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())

    here = {
        p.relative_to(source).as_posix()
        for p in root.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert len(here) > 12
    assert here <= packed


def test_the_core_is_the_one_that_was_built(environment):
    path = environment.run(
        "python", "-c", "import epctx_core; print(epctx_core.__file__)"
    ).strip()

    assert path.startswith(str(environment.folder))


def test_pip_finds_nothing_missing(environment):
    said = environment.run("python", "-m", "pip", "show", "--files", "epctx-acme")

    assert "Requires: epctx-blobs, epctx-core, onnx" in said
    assert "provider.py" in said
    assert "tests" not in said


def test_its_extra_for_tests_has_all_that_ci_test_runs(environment):
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps(m.requires('epctx-acme')))"
    )
    script = (environment.folder / "work" / "epctx-acme" / "ci" / "test").read_text()

    needs = [
        need
        for need in json.loads(environment.run("python", "-c", code))
        if "extra" in need
    ]

    assert ".venv/bin/python -m pytest\n" in script
    assert ".venv/bin/epctx plugins check " in script
    assert [need.partition("<")[0].partition(">")[0] for need in needs] == [
        "epctx-cli",
        "epctx-conformance",
        "pytest",
    ]


@pytest.mark.parametrize("loading", [(), ("--load",)])
def test_it_says_that_it_is_simulated_until_it_opens_a_device(environment, loading):
    plugins = json.loads(
        environment.run("epctx", "plugins", "list", *loading, "--json")
    )["plugins"]

    assert [plugin["simulated"] for plugin in plugins] == [True]


def test_it_is_the_only_plugin_there_and_is_found(environment):
    plugins = json.loads(
        environment.run("epctx", "plugins", "list", "--load", "--json")
    )["plugins"]

    assert [
        (p["name"], p["distribution"], p["version"], p["state"]) for p in plugins
    ] == [("AcmeExecutionProvider", "epctx-acme", "0.1.0", "loaded")]


PYTEST = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(("-k", "test_provider or it_claims"), id="some"),
        pytest.param((), id="all", marks=pytest.mark.stress),
    ],
)
def test_its_own_tests_pass(environment, chosen):
    said = environment.run(*PYTEST, "work/epctx-acme", *chosen)

    assert int(re.search(r"(\d+) passed", said)[1]) > 12
    assert "failed" not in said


def test_it_keeps_the_contract(environment):
    report = json.loads(
        environment.run(
            "epctx", "plugins", "check", "acme", "--only", "signatures", "--json"
        )
    )

    assert report["ok"]


@pytest.mark.stress
def test_it_passes_the_whole_kit(environment):
    report = json.loads(
        environment.run("epctx", "plugins", "check", "acme", "--full", "--json")
    )

    assert report["ok"]
    assert report["counts"]["passed"] > 150


def test_it_compiles_a_network_that_then_runs_as_the_network_does(environment, network):
    resnet = network("resnet")
    np.savez(environment.folder / "in.npz", **resnet.inputs)
    (environment.folder / "out").mkdir()

    environment.run("epctx", "compile", resnet.path, "--ep", "acme", "-o", "out/")
    environment.run(
        "epctx",
        "run",
        "out/resnet_ctx.onnx",
        "--input",
        "in.npz",
        "--output",
        "out.npz",
    )

    with np.load(environment.folder / "out.npz") as results:
        for found, expected in zip(results.values(), resnet.reference, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    made = json.loads(
        environment.run("epctx", "inspect", "out/resnet_ctx.onnx", "--json")
    )
    assert {node["source"] for node in made["ep_contexts"]} == {"AcmeExecutionProvider"}


IN_ONNXRUNTIME = """
import sys
import numpy, onnxruntime, onnxruntime_ep_epctx

onnxruntime_ep_epctx.register()
acme = [d for d in onnxruntime.get_ep_devices() if d.ep_name.startswith("Acme")]
options = onnxruntime.SessionOptions()
options.add_provider_for_devices(acme, {"epctx_strict": "1"})
session = onnxruntime.InferenceSession(sys.argv[1], options)
with numpy.load("in.npz") as inputs:
    numpy.savez("out.npz", *session.run(None, dict(inputs)))
"""


def test_it_runs_a_network_inside_an_unmodified_onnxruntime(environment, network):
    resnet = network("resnet")
    np.savez(environment.folder / "in.npz", **resnet.inputs)

    environment.run("python", "-c", IN_ONNXRUNTIME, resnet.path)

    with np.load(environment.folder / "out.npz") as results:
        for found, expected in zip(results.values(), resnet.reference, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_uninstalled_it_is_gone(environment):
    environment.run("python", "-m", "pip", "uninstall", "--yes", "epctx-acme")

    try:
        plugins = json.loads(environment.run("epctx", "plugins", "list", "--json"))[
            "plugins"
        ]
    finally:
        environment.install(environment.folder / "work" / "epctx-acme")
    assert plugins == []
