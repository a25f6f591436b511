"""Several EPs in one model: who gets what, whose files are whose, and what happens if
one is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from epctx_sim_openvino import OpenVinoProvider
from epctx_sim_qnn import QnnProvider
from epctx_sim_vitisai import VitisAIProvider
from onnx import helper, numpy_helper
from support.agreement import assert_agree
from support.engine_eps import EngineProvider
from support.folders import TESTS
from support.install_commands import pip_install
from support.onnxruntime_results import onnxruntime_result, onnxruntime_says
from support.sim_eps import (
    CPU,
    EVERY_ORDER,
    OPENVINO,
    PACKAGES,
    QNN,
    SUFFIXES,
    VITISAI,
    short,
    with_eps,
)
from support.small_models import finished, saved, tensor

import epctx_core as epctx
from epctx_core import InvalidGraph, NotImplementedByProvider
from epctx_core.plugin import ComputeCapability, hookimpl, supported_partitions

RUN_MODEL = TESTS / "support/run_model.py"
CLASSES = {OPENVINO: OpenVinoProvider, QNN: QnnProvider, VITISAI: VitisAIProvider}
SHAPE = (1, 4, 8, 8)
SCALE = 2.0**-4
X = np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32)
ORDER = (VITISAI, QNN, OPENVINO)
TAKEN = {VITISAI: {"Conv"}, QNN: {"Tanh", "Where"}, OPENVINO: {"Erf"}}
"""Operators that only this EP can take, or gets in that order."""


class _Network:
    """Two INT8 convolutions (VitisAI), Tanh and Where (QNN), Erf (OpenVINO), IsInf
    (nobody).
    """

    def __init__(self):
        self.nodes, self.random = [], np.random.default_rng(0)
        self.weights = {
            "scale": np.float32(SCALE),
            "zero": np.int8(0),
            "nought": np.float32(0),
        }

    def add(self, operator, *inputs, output=None, **attributes):
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(
                operator,
                inputs,
                [output],
                f"{operator}_{len(self.nodes)}",
                **attributes,
            )
        )
        return output

    def conv(self, value):
        name = f"w{len(self.weights)}"
        self.weights[name] = self.random.integers(
            -100, 100, (4, 4, 3, 3), dtype=np.int8
        )
        self.weights[f"{name}_scale"] = np.float32(2.0**-9)
        known = self.add("DequantizeLinear", name, f"{name}_scale", "zero")
        given = self.add("DequantizeLinear", value, "scale", "zero")
        result = self.add("Conv", given, known, pads=[1, 1, 1, 1])
        return self.add("QuantizeLinear", result, "scale", "zero")

    def model(self):
        first = self.conv(self.add("QuantizeLinear", "x", "scale", "zero"))
        middle = self.add(
            "Erf",
            self.add("Tanh", self.add("DequantizeLinear", first, "scale", "zero")),
        )
        middle = self.add("Where", self.add("IsInf", middle), "nought", middle)
        second = self.conv(self.add("QuantizeLinear", middle, "scale", "zero"))
        self.add("DequantizeLinear", second, "scale", "zero", output="y")
        weights = [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in self.weights.items()
        ]
        return finished(
            self.nodes, [tensor("x", shape=SHAPE)], [tensor("y", shape=SHAPE)], weights
        )


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return saved(_Network().model(), folder / "net.onnx")


@pytest.fixture
def written(source, tmp_path):
    """A context model over three EPs, its binaries beside it."""
    return compiled(source, tmp_path / "written").output


def compiled(source, folder, eps=ORDER, *, embedded=False, **arguments):
    folder.mkdir()
    compiler = epctx.ModelCompiler(with_eps(*eps), source, embedded, **arguments)
    return compiler.compile_to_file(folder / "net_ctx.onnx")


def result(path, options=None, **arguments):
    with epctx.InferenceSession(path, options, **arguments) as session:
        return session.run(None, {"x": X})


def registry_with(*classes):
    registry = epctx.Registry(entry_points=False)
    for cls in classes:
        registry.register(cls)
    return registry


def context_nodes(path):
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "EPContext"]
    return [
        (n, {a.name: helper.get_attribute_value(a) for a in n.attribute}) for n in nodes
    ]


def test_three_eps_share_a_network_each_with_a_binary_of_its_own(source, tmp_path):
    report = compiled(source, tmp_path / "written")

    for ep, operators in TAKEN.items():
        assert operators <= {
            name for p in report.partitions if p.ep == ep for name in p.operators
        }
    assert report.assignments[CPU] == 3  # IsInf, and what computes nothing
    binaries = {ep: f"net_{suffix}.bin" for ep, suffix in SUFFIXES.items()}
    assert {path.name for path in report.output.parent.iterdir()} == {
        "net_ctx.onnx",
        *binaries.values(),
    }
    for _, said in context_nodes(report.output):
        name = said.get("ep_cache_context")
        assert name is None or name.decode() == binaries[said["source"].decode()]
    assert "is not compatible with any execution provider" in onnxruntime_says(
        report.output
    )


def test_moved_without_its_source_it_runs_in_a_process_that_finds_the_eps(
    source, tmp_path
):
    expected = onnxruntime_result(source, {"x": X})
    report = compiled(source, tmp_path / "written")
    far = tmp_path / "far away"
    report.output.parent.rename(far)
    shutil.rmtree(source.parent)
    np.savez(tmp_path / "inputs.npz", x=X)

    command = [
        sys.executable,
        str(RUN_MODEL),
        str(far / "net_ctx.onnx"),
        "inputs.npz",
        "outputs.npz",
    ]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=120)

    with np.load(tmp_path / "outputs.npz") as stored:
        assert_agree([stored[name] for name in stored.files], expected, [SCALE])


@pytest.mark.parametrize("embedded", [False, True], ids=["file", "embedded"])
@pytest.mark.parametrize("eps", EVERY_ORDER, ids=short)
def test_in_any_order_a_network_compiled_in_a_session_and_loaded_agree(
    source, tmp_path, eps, embedded
):
    expected = onnxruntime_result(source, {"x": X})

    report = compiled(source, tmp_path / "written", eps, embedded=embedded)

    assert_agree(result(source, with_eps(*eps)), expected, [SCALE])
    assert_agree(result(report.output), expected, [SCALE])
    assert sum(report.assignments.values()) == len(onnx.load(source).graph.node)


@pytest.mark.parametrize("missing", ORDER)
def test_where_a_plugin_is_missing_the_error_names_node_source_and_package(
    written, missing
):
    registry = registry_with(*(cls for ep, cls in CLASSES.items() if ep != missing))
    theirs = [
        node.name
        for node, said in context_nodes(written)
        if said["source"].decode() == missing
    ]

    with pytest.raises(NotImplementedByProvider) as caught:
        result(written, registry=registry)

    error = caught.value
    assert error.node == theirs[0]
    assert repr(error.node) in error.message
    assert f"source '{missing}'" in error.message
    assert pip_install(PACKAGES[missing]) in error.hint


@pytest.mark.parametrize("missing", ORDER)
def test_where_the_host_leaves_an_ep_out_the_error_says_which_are_there(
    written, missing
):
    listed = [ep for ep in ORDER if ep != missing]

    with pytest.raises(
        NotImplementedByProvider, match=f"{missing}.*{listed[0]}, {listed[1]}"
    ) as caught:
        result(written, with_eps(*listed))

    assert f"Add {missing!r} to the providers" in caught.value.hint


def spies():
    """Return the EPs as classes that remember which nodes they were shown, and what
    they were given to load.
    """
    shown, loaded = {}, {}

    def spy(cls):
        class Spy(cls):
            @hookimpl
            def get_capability(self, graph):
                shown.setdefault(cls.name, set()).update(
                    node.name for node in graph.nodes
                )
                return super().get_capability(graph)

            @hookimpl
            def load_context(self, nodes, reader):
                loaded.setdefault(cls.name, set()).update(
                    (node.source, node.name) for node in nodes
                )
                return super().load_context(nodes, reader)

        return Spy

    return registry_with(*map(spy, CLASSES.values())), shown, loaded


@pytest.mark.parametrize("eps", EVERY_ORDER, ids=short)
def test_no_ep_sees_what_another_has_taken(source, tmp_path, eps):
    registry, shown, loaded = spies()

    report = compiled(source, tmp_path / "written", eps, registry=registry)
    result(report.output, registry=registry)

    taken = {
        ep: {n for p in report.partitions if p.ep == ep for n in p.node_names}
        for ep in eps
    }
    everything = {node.name for node in onnx.load(source).graph.node}
    for place, ep in enumerate(eps):
        assert shown[ep] == everything - set().union(
            *(taken[other] for other in eps[:place])
        )
    contexts = [
        (said["source"].decode(), node.name)
        for node, said in context_nodes(report.output)
    ]
    assert loaded == {
        ep: {c for c in contexts if c[0] == ep} for ep in eps if taken[ep]
    }


@pytest.mark.parametrize("checked", [True, False], ids=["manifest", "no manifest"])
@pytest.mark.parametrize(
    ("ep", "other"), [order[:2] for order in EVERY_ORDER], ids=short
)
def test_a_binary_in_the_place_of_another_eps_is_refused(written, ep, other, checked):
    theirs, ours = (
        written.with_name(f"net_{SUFFIXES[name]}.bin") for name in (other, ep)
    )
    shutil.copy(theirs, ours)
    if not checked:
        model = onnx.load(written)
        del model.metadata_props[:]
        onnx.save(model, written)

    with pytest.raises(InvalidGraph) as caught:
        result(written)

    assert caught.value.ep == ep
    assert caught.value.node in {
        n.name for n, said in context_nodes(written) if said["source"] == ep.encode()
    }


ENCLOSING = """
<ir_version: 8, opset_import: ["" : 18]>
small (float[2, 3] x) => (float[2, 3] d, float[2, 3] r, float[2, 3] c)
    <float scale = {0.0625}, int8 zero = {0}, float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
    [input_q] q = QuantizeLinear(x, scale, zero)
    [input_dq] d = DequantizeLinear(q, scale, zero)
    [other_q] v = QuantizeLinear(w, scale, zero)
    [other_dq] e = DequantizeLinear(v, scale, zero)
    [add] s = Add(d, e)
    [result_q] t = QuantizeLinear(s, scale, zero)
    [result_dq] r = DequantizeLinear(t, scale, zero)
    [relu] c = Relu(d)
}
"""
"""The group of `add` reads `d`, which `relu` reads, and what `other_q` makes: with both
of these in one partition, a path leaves the group and returns to it.
"""


def make_ep(label, choose, *, one_by_one=False):
    """Return an EP that claims nodes by name, in the core's groups or one by one."""

    class Provider(EngineProvider):
        name = f"{label}ExecutionProvider"
        binary_suffix = label.lower()

        @hookimpl
        def get_capability(self, graph):
            if one_by_one:
                return [
                    ComputeCapability([node])
                    for node in graph.nodes
                    if node.name in choose
                ]
            return supported_partitions(graph, lambda node: node.name in choose)

    return Provider


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_quantized_group_around_nodes_of_another_ep_is_left_to_the_cpu(
    tmp_path, one_by_one
):
    group = {"input_dq", "other_dq", "add", "result_q"}
    first = make_ep("First", {"other_q", "relu"})
    second = make_ep("Second", group, one_by_one=one_by_one)
    registry = epctx.Registry(entry_points=False)
    options = epctx.SessionOptions()
    for ep in (first, second):
        registry.register(ep)
        options.add_provider(ep.name)
    path = saved(onnx.parser.parse_model(ENCLOSING), tmp_path / "m.onnx")

    compiler = epctx.ModelCompiler(options, path, registry=registry)
    report = compiler.compile_to_file(tmp_path / "m_ctx.onnx")

    assert [(p.ep, set(p.node_names)) for p in report.partitions] == [
        (first.name, {"other_q", "relu"})
    ]
    refused = [each for each in report.refusals if "of another EP" in each.reason]
    assert {node for each in refused for node in each.nodes} == group
    (reason,) = {each.reason for each in refused}
    assert reason.startswith("Add 'add' and the quantisation around it")
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    with epctx.InferenceSession(tmp_path / "m_ctx.onnx", registry=registry) as session:
        results = session.run(None, {"x": x})
    for result, expected in zip(
        results, onnxruntime_result(path, {"x": x}), strict=True
    ):
        np.testing.assert_allclose(result, expected, atol=1e-6)
