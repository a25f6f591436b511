"""A build of onnxruntime with an EP inside: onnxruntime-openvino, which was installed
before all packages of epctx. It is older than the onnxruntime that epctx is made for.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import onnxruntime
import pytest
from epctx_onnxruntime import cached
from support.agreement import worst_relative_error
from support.vendor_routes import with_named_nodes
from vendors.vendor_networks import NETWORKS, network

import epctx_core as epctx

EP = "OpenVINOExecutionProvider"
BUILD = f"onnxruntime-openvino:{EP}"
RECORD = "session.record_ep_graph_assignment_info"
DISABLED = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
OPTIONS = {"device_type": "CPU"}
INSTALLED = f"onnxruntime-openvino {distribution('onnxruntime-openvino').version}"
QUIET = 4
STEP = 0.02
"""Largest difference: of quantised networks a result differs by one step, as fused
nodes compute in another order.
"""


@pytest.fixture(params=[*NETWORKS])
def example(request):
    return with_named_nodes(network(request.param).model), network(request.param).inputs


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(with_named_nodes(network("two_parts").model))
    return path


def native_session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    options.graph_optimization_level = DISABLED
    options.add_session_config_entry(RECORD, "1")
    return onnxruntime.InferenceSession(
        model, options, providers=[(EP, OPTIONS), "CPUExecutionProvider"]
    )


def options():
    made = epctx.SessionOptions()
    # As the native session: what is folded is in no list of nodes.
    made.graph_optimization_level = epctx.GraphOptimizationLevel.ORT_DISABLE_ALL
    made.add_provider(BUILD, OPTIONS)
    made.add_session_config_entry(RECORD, "1")
    return made


def nodes_of_ep(session):
    # onnxruntime copies a dequantiser for each of its readers.
    return {
        node.name.removesuffix("/duplicated")
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == EP
        for node in part.get_nodes()
    }


def test_the_packages_of_epctx_install_no_other_build():
    with pytest.raises(PackageNotFoundError):
        distribution("onnxruntime")

    assert onnxruntime.get_available_providers() == [EP, "CPUExecutionProvider"]


def epctx_command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "epctx_core", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_doctor_says_that_the_build_is_old_and_has_nothing_to_repair():
    said = json.loads(epctx_command("doctor", "--json").stdout)

    assert said["ok"], said
    (old,) = [f for f in said["findings"] if "onnxruntime >=1.31" in f["message"]]
    assert f"{INSTALLED} is installed" in old["message"]
    assert "the vendor's plugin wheel" in old["hint"]


def test_doctor_lists_the_build_where_onnxruntime_is_needed():
    said = epctx_command("doctor").stdout

    (line,) = [
        line for line in said.splitlines() if line.split()[:1] == ["onnxruntime"]
    ]
    assert line.split() == ["onnxruntime", *INSTALLED.split(), ">=1.31", "ort"]


@pytest.mark.parametrize("command", [("doctor",), ("plugins", "list")], ids=" ".join)
def test_its_ep_is_said_to_be_inside_the_build(command):
    said = " ".join(epctx_command(*command).stdout.split())

    assert (
        f"{EP} is inside {INSTALLED}, which knows nothing of epctx: epctx-onnxruntime "
        "finds it there, and runs it."
    ) in said
    assert "packaging convention" not in said


def test_that_the_build_is_old_is_said_once_with_a_remedy(source):
    outputs = [
        epctx_command(*command).stderr
        for command in (
            ("run", source),
            ("run", source, "--ep", BUILD, "-c", "ep.isolate=all"),
            ("compile", source, "--ep", BUILD, "-c", "ep.isolate=compile"),
        )
    ]

    for output in outputs:
        assert output.count("is older than") == 1, output
        assert "`epctx docs install`" in output


def test_its_ep_is_real_and_goes_before_the_simulated_one():
    chosen = epctx.default_registry.resolve(EP)

    assert chosen.distribution == "onnxruntime-openvino"
    assert not chosen.simulated


def test_a_session_gives_it_the_nodes_that_onnxruntime_gives_it(example):
    model, inputs = example
    native = native_session(model)

    with epctx.InferenceSession(model, options()) as session:
        assert nodes_of_ep(session) == nodes_of_ep(native)
        results = session.run(None, inputs)

    assert worst_relative_error(results, native.run(None, inputs)) <= STEP


DROP_IN = """
import sys, json
import epctx_onnxruntime as onnxruntime
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
providers = [("OpenVINOExecutionProvider", {"device_type": "CPU"})]
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=providers)
parts = session.get_provider_graph_assignment_info()
names = [n.name for p in parts if "OpenVINO" in p.ep_name for n in p.get_nodes()]
print(json.dumps([names, session.get_providers()]))
"""


def test_the_drop_in_gives_it_the_nodes_that_onnxruntime_gives_it(source):
    done = subprocess.run(
        [sys.executable, "-c", DROP_IN, source],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    names, providers = json.loads(done.stdout)
    assert {*names} == nodes_of_ep(native_session(source))
    assert providers == [EP, "CPUExecutionProvider"]


def test_a_host_that_keeps_onnxruntime_gets_a_session_with_it(source, tmp_path, caplog):
    caplog.set_level(logging.INFO, "epctx.cache")
    inputs = network("two_parts").inputs
    host_options = onnxruntime.SessionOptions()
    host_options.log_severity_level = QUIET

    for _ in range(2):
        session = cached.load_or_compile(
            source,
            host_options,
            provider=BUILD,
            provider_options=OPTIONS,
            cache_dir=tmp_path / "cache",
        )

        assert session.get_providers()[0] == EP
        expected = native_session(source).run(None, inputs)
        assert worst_relative_error(session.run(None, inputs), expected) <= STEP
    assert caplog.text.count("compiled m.onnx") == 1
    assert "removed" not in caplog.text


def test_what_it_compiles_loads_and_computes_what_onnxruntime_computes(
    example, tmp_path
):
    model, inputs = example

    report = epctx.ModelCompiler(options(), model).compile_to_file(tmp_path / "c.onnx")

    with epctx.InferenceSession(report.output, options()) as session:
        results = session.run(None, inputs)
    expected = native_session(model).run(None, inputs)
    assert worst_relative_error(results, expected) <= STEP


def can_load_what_it_compiled(source, output):
    """Return whether onnxruntime can: this build cannot on some processors."""
    made = onnxruntime.SessionOptions()
    made.log_severity_level = QUIET
    made.add_provider(EP, OPTIONS)
    onnxruntime.ModelCompiler(made, str(source)).compile_to_file(str(output))
    try:
        native_session(output)
    except Exception:  # noqa: BLE001 - onnxruntime's have no base
        return False
    return True


def test_nodes_stay_in_the_model_where_it_cannot_load_what_it_compiled(
    source, tmp_path
):
    loads = can_load_what_it_compiled(source, tmp_path / "native_ctx.onnx")

    report = epctx.ModelCompiler(options(), source).compile_to_file()

    assert bool(report.partitions) == loads
    if not loads:
        reasons = {refusal.reason for refusal in report.refusals}
        assert any(
            reason.startswith("it runs models but cannot save what it compiled: ")
            and "EP_FAIL" in reason
            for reason in reasons
        )
        with epctx.InferenceSession(report.output, options()) as session:
            assert nodes_of_ep(session) == nodes_of_ep(native_session(source))


def test_models_run_on_its_cpu_ep_without_being_optimised_for_others(example, caplog):
    model, inputs = example

    with epctx.InferenceSession(model) as session:
        results = session.run(None, inputs)

    reference = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert worst_relative_error(results, reference.run(None, inputs)) <= STEP
    assert not caplog.records


def test_simulated_eps_compile_and_run_beside_it(source):
    made = epctx.SessionOptions()
    made.add_provider("QNN")
    report = epctx.ModelCompiler(made, source).compile_to_file()

    with epctx.InferenceSession(report.output) as session:
        results = session.run(None, network("two_parts").inputs)

    assert report.partitions
    assert all(np.isfinite(result).all() for result in results)


def test_an_option_that_the_build_refuses_is_an_error_about_the_option(source):
    made = epctx.SessionOptions()
    made.add_provider(BUILD, {"nonsense": "1"})

    with pytest.raises(epctx.InvalidArgument, match="nonsense"):
        epctx.InferenceSession(source, made)


def test_a_flag_is_passed_on_as_onnxruntime_passes_it(source):
    made = epctx.SessionOptions()
    made.add_provider(BUILD, {**OPTIONS, "disable_dynamic_shapes": True})

    with epctx.InferenceSession(source, made) as session:
        assert session.run(None, network("two_parts").inputs)
