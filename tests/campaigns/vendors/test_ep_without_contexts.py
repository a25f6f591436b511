"""An EP that runs models and writes no EPContext nodes: nxrt-ep-cpu, which works on any
processor. epctx gives it the nodes that onnxruntime gives it.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import nxrt_ep_cpu
import onnxruntime
import pytest
from epctx_onnxruntime import cached
from epctx_onnxruntime.providers import register_plugin_ep
from support.agreement import worst_relative_error
from support.vendor_routes import with_named_nodes
from support.vendors_onnxruntime import QUIET, devices
from vendors.vendor_networks import NETWORKS, network

import epctx_core as epctx
from epctx_core.errors import NotImplementedByProvider
from epctx_core.plugin import Purpose

EP = "cpu_ep"
RECORD = "session.record_ep_graph_assignment_info"
DISABLED = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
STEP = 0.02
"""Largest difference: of quantised networks a result differs by one step, as fused
nodes compute in another order.
"""
TAKEN = "two_parts"


@pytest.fixture(scope="module")
def registry():
    made = epctx.Registry(entry_points=False)
    register_plugin_ep(EP, library=nxrt_ep_cpu.get_library_path(), registry=made)
    return made


@pytest.fixture(scope="module", params=[*NETWORKS])
def example(request):
    return with_named_nodes(network(request.param).model), network(request.param).inputs


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(with_named_nodes(network(TAKEN).model))
    return path


def native_options():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    options.graph_optimization_level = DISABLED
    options.add_session_config_entry(RECORD, "1")
    return options


def native_session(model):
    options = native_options()
    options.add_provider_for_devices(devices(EP, nxrt_ep_cpu), {})
    return onnxruntime.InferenceSession(model, options)


def options(**entries):
    made = epctx.SessionOptions()
    made.add_provider(EP)
    made.add_session_config_entry(RECORD, "1")
    for key, value in entries.items():
        made.add_session_config_entry(f"ep.{key}", value)
    return made


def nodes_of_ep(session):
    return {
        node.name
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == EP
        for node in part.get_nodes()
    }


def test_a_session_gives_it_the_nodes_that_onnxruntime_gives_it(registry, example):
    model, inputs = example
    native = native_session(model)

    with epctx.InferenceSession(model, options(), registry=registry) as session:
        assert nodes_of_ep(session) == nodes_of_ep(native)
        results = session.run(None, inputs)

    assert worst_relative_error(results, native.run(None, inputs)) <= STEP


def test_it_takes_nodes_of_some_of_these_networks():
    assert nodes_of_ep(native_session(network(TAKEN).model))


DROP_IN = """
import sys, json
import epctx_onnxruntime as onnxruntime, nxrt_ep_cpu, numpy as np

def use():
    path = nxrt_ep_cpu.get_library_path()
    onnxruntime.register_execution_provider_library("nxrt", path)
    options = onnxruntime.SessionOptions()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "cpu_ep"]
    options.add_provider_for_devices(devices, {})
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with onnxruntime.InferenceSession(sys.argv[1], options) as session:
        parts = session.get_provider_graph_assignment_info()
        nodes = [n.name for p in parts if p.ep_name == "cpu_ep" for n in p.get_nodes()]
        return nodes, session.get_providers(), options

use()
onnxruntime.unregister_execution_provider_library("nxrt")
*answer, options = use()
onnxruntime.ModelCompiler(options, sys.argv[1]).compile_to_file(sys.argv[2])
print(json.dumps(answer))
"""


def test_the_drop_in_gives_it_the_nodes_that_onnxruntime_gives_it(source, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", DROP_IN, source, tmp_path / "m_ctx.onnx"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    names, providers = json.loads(done.stdout)
    assert {*names} == nodes_of_ep(native_session(source))
    assert providers == [EP, "CPUExecutionProvider"]
    assert "runs models but cannot save what it compiled" in done.stderr
    assert "no node" not in done.stderr


NAMES = """
import shutil, sys
import epctx_onnxruntime as onnxruntime, nxrt_ep_cpu

def names():
    return [device.ep_name for device in onnxruntime.get_ep_devices()].count("cpu_ep")

path = nxrt_ep_cpu.get_library_path()
onnxruntime.register_execution_provider_library("a", path)
onnxruntime.register_execution_provider_library("b", path)
assert names() == 1
onnxruntime.unregister_execution_provider_library("a")
assert names() == 1
onnxruntime.unregister_execution_provider_library("b")
assert names() == 0
for number in "12":
    copy = shutil.copy(path, f"{sys.argv[1]}/copy{number}.so")
    onnxruntime.register_execution_provider_library("c", copy)
    assert names() == 1
    onnxruntime.unregister_execution_provider_library("c")
    assert names() == 0
"""


def test_a_library_has_its_ep_while_one_name_of_the_host_is_left(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", NAMES, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr


def test_a_host_that_keeps_onnxruntime_gets_a_session_with_it(
    registry, source, tmp_path, caplog
):
    def load(model):
        return cached.load_or_compile(
            model,
            native_options(),
            provider=EP,
            cache_dir=tmp_path / "cache",
            registry=registry,
        )

    sessions = [load(source), load(source)]

    for session in sessions:
        assert nodes_of_ep(session) == nodes_of_ep(native_session(source))
        assert session.get_providers()[0] == EP
    said = [r.message for r in caplog.records]
    warning = (
        f"{EP} runs m.onnx but cannot save what it compiled as EPContext nodes: "
        "onnxruntime compiles the model at each start."
    )
    assert said == [warning]

    other = tmp_path / "other" / "m.onnx"
    other.parent.mkdir()
    other.write_bytes(with_named_nodes(network("three_parts").model))
    load(other)

    assert [r.message for r in caplog.records if r.name == "epctx.cache"] == [
        warning,
        warning,
    ]


def test_the_cache_gives_a_session_with_it(registry, source, tmp_path, caplog):
    caplog.set_level(logging.INFO, "epctx.cache")

    for _ in range(2):
        with epctx.load_or_compile(
            source, options(), tmp_path / "cache", registry=registry
        ) as session:
            assert nodes_of_ep(session) == nodes_of_ep(native_session(source))

    assert caplog.text.count("compiled m.onnx") == 1


def test_a_compile_leaves_its_nodes_and_a_session_takes_them(registry, source, caplog):
    report = epctx.ModelCompiler(options(), source, registry=registry).compile_to_file()

    assert not report.compiled
    (reason,) = {refusal.reason for refusal in report.refusals}
    assert reason.startswith("it runs models but cannot save what it compiled")
    assert "no node" not in caplog.text
    with epctx.InferenceSession(report.output, options(), registry=registry) as session:
        assert nodes_of_ep(session) == nodes_of_ep(native_session(source))


def test_a_session_that_compiles_elsewhere_warns_that_it_gives_it_no_node(
    registry, source, caplog
):
    with epctx.InferenceSession(
        source, options(isolate="compile"), registry=registry
    ) as session:
        assert not nodes_of_ep(session)

    said = "\n".join(r.message for r in caplog.records)
    assert f"no node of m.onnx is taken by {EP}" in said
    assert "a session without ep.isolate=compile gives it nodes" in said


def test_a_session_that_is_to_write_a_context_model_is_refused(registry, source):
    with pytest.raises(NotImplementedByProvider, match=f"{EP} runs models but cannot"):
        epctx.InferenceSession(source, options(context_enable="1"), registry=registry)


def test_explain_names_the_nodes_that_a_session_gives_it(registry, source):
    explained = epctx.explain_model(
        source, options(), registry=registry, purpose=Purpose.RUN
    )

    taken = {node.name for node in explained.nodes if node.ep == EP}
    assert taken == nodes_of_ep(native_session(source))
    (row, _) = explained.placement.eps
    assert row["nodes"] == len(taken)


def test_explain_says_why_a_compile_gives_it_no_node(registry, source):
    explained = epctx.explain_model(source, options(), registry=registry)

    assert all(node.ep != EP for node in explained.nodes)
    reasons = {refused["reason"] for refused in explained.placement.left}
    assert any(
        reason.startswith("it runs models but cannot save what it compiled")
        for reason in reasons
    )


def test_its_library_is_checked_by_its_name():
    done = subprocess.run(
        [
            *(sys.executable, "-m", "epctx_core", "plugins", "check"),
            *("--library", nxrt_ep_cpu.get_library_path(), "--ep", EP),
            *("--without", "export", "--only", "signatures"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stdout + done.stderr
