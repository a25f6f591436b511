"""Intel's plugin EP as a wheel that no plugin of epctx requires: it works by
onnxruntime's packaging convention alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import onnx
import pytest
from epctx_onnxruntime.providers import register_plugin_ep
from support.agreement import worst_relative_error
from support.onnxruntime_wheels import install_wheel
from support.vendor_routes import route
from support.vendors_onnxruntime import OPENVINO
from vendors.vendor_networks import network

import epctx_core as epctx
from epctx_core.plugin import ProviderOption

WHEEL = "onnxruntime-ep-acme"
CODE = f"""
from onnxruntime_ep_openvino import get_library_path

def get_ep_names():
    return [get_ep_name()]

def get_ep_name():
    return "{OPENVINO}"
"""
FLOAT32 = json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": "f32"}})
BFLOAT16 = 0.02
"""Relative: without options OpenVINO computes in it on CPUs that have it."""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(network("two_parts").model)
    return path


@pytest.fixture
def expected():
    """Return what onnxruntime computes with the EP; skip where it lists no device."""
    return route("onnxruntime with OpenVINO").run(*network("two_parts"))


@pytest.fixture
def command(tmp_path):
    """Return a function that calls the command line where the wheel is installed."""
    site = tmp_path / "site"
    install_wheel(site, WHEEL, CODE)

    def call(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "epctx_core", *map(str, arguments), "--json"],
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call


@pytest.mark.parametrize("further", [(), ("-c", "ep.isolate=all")])
@pytest.mark.usefixtures("expected")
def test_the_command_line_compiles_loads_and_runs_by_a_wheel(command, source, further):
    name = f"{WHEEL}:OpenVINO"
    context = source.with_name("m_ctx.onnx")

    command("compile", source, "--ep", name, *further)
    # Without names the context model says which distribution made it.
    for ep in (("--ep", name), ()):
        command("run", context, *ep, *further)

    nodes = [n for n in onnx.load(context).graph.node if n.op_type == "EPContext"]
    assert nodes
    assert WHEEL in json.dumps(command("inspect", context))


def test_a_registered_wheel_computes_as_onnxruntime_and_takes_declared_options(
    source, expected
):
    registry = epctx.Registry(entry_points=False)
    option = ProviderOption("load_config", str, default=None, doc="Properties.")
    register_plugin_ep(
        OPENVINO,
        distribution="onnxruntime-ep-openvino",
        options=[option],
        registry=registry,
    )
    options = epctx.SessionOptions()
    options.add_provider("OpenVINO", {"load_config": FLOAT32})

    epctx.ModelCompiler(options, source, registry=registry).compile_to_file()
    with epctx.InferenceSession(
        source.with_name("m_ctx.onnx"), options, registry=registry
    ) as session:
        results = session.run(None, network("two_parts").inputs)

    assert worst_relative_error(results, expected) <= 1e-5


def test_a_wheel_is_registered_by_its_name_alone(source, expected):
    registry = epctx.Registry(entry_points=False)

    cls = register_plugin_ep("onnxruntime-ep-openvino", registry=registry)

    options = epctx.SessionOptions()
    options.add_provider(cls.name)
    with epctx.InferenceSession(source, options, registry=registry) as session:
        results = session.run(None, network("two_parts").inputs)
    assert cls.name == OPENVINO
    assert worst_relative_error(results, expected) <= BFLOAT16
