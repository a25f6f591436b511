"""What is written: each attribute of the nodes as the real EP writes it, and one binary
for all of them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import entry_points

import numpy as np
import onnx
import pytest
from epctx_sim_openvino import OpenVinoProvider
from epctx_sim_sdk.device import Device
from onnx import helper
from support.folders import REAL

import epctx_core as epctx
from epctx_core.plugin import hookimpl

pytestmark = pytest.mark.internal

EP = "OpenVINOExecutionProvider"
X = np.random.default_rng(1).standard_normal((2, 40)).astype(np.float32)

MODES = pytest.mark.parametrize("embedded", [False, True], ids=["file", "embedded"])


def test_the_installed_package_is_found_through_its_entry_point():
    found = [e for e in entry_points(group="epctx.execution_providers") if e.name == EP]

    (entry,) = (e for e in found if e.dist.name == "epctx-sim-openvino")
    assert entry.load() is OpenVinoProvider


def test_importing_the_package_imports_neither_onnx_nor_numpy():
    code = (
        "import epctx_sim_openvino, sys;print([m for m in ('onnx', 'numpy', "
        "'onnxruntime', 'epctx_sim_sdk.loading') if m in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_the_vendor_says_that_it_is_simulated():
    assert "SIMULATED" in OpenVinoProvider.vendor
    assert "not for hardware" in OpenVinoProvider.vendor


@MODES
def test_each_node_says_who_made_it_and_which_blob_is_its_own(bench, embedded):
    compiled = bench.compile(bench.two_partitions(), embedded=embedded)

    for node, partition in zip(compiled.nodes, compiled.report.partitions, strict=True):
        assert node["source"] == EP.encode()
        assert (
            node["partition_name"] == node["name"].encode() == partition.name.encode()
        )
        assert node["ep_sdk_version"].startswith(b"sim-")
        assert node["embed_mode"] == int(embedded)


@MODES
def test_no_other_attribute_is_written(bench, embedded):
    first, second = bench.compile(bench.two_partitions(), embedded=embedded).nodes
    usual = {
        "name",
        "source",
        "partition_name",
        "ep_sdk_version",
        "embed_mode",
        "main_context",
    }

    assert first.keys() == usual | {"ep_cache_context"}
    assert second.keys() == (usual if embedded else usual | {"ep_cache_context"})


def test_with_a_file_every_node_is_a_main_node_and_names_the_one_binary(bench):
    compiled = bench.compile(bench.two_partitions())

    assert [node["main_context"] for node in compiled.nodes] == [1, 1]
    assert {node["ep_cache_context"] for node in compiled.nodes} == {
        f"net_{EP}.bin".encode()
    }
    assert {path.name for path in compiled.path.parent.iterdir()} == {
        "net_ctx.onnx",
        f"net_{EP}.bin",
    }
    assert compiled.report.required_files == (f"net_{EP}.bin", "net_ctx.onnx")


def test_embedded_the_first_node_holds_the_payload_and_the_others_refer_to_it(bench):
    model = bench.two_partitions()
    compiled, in_a_file = bench.compile(model, embedded=True), bench.compile(model)

    assert [node["main_context"] for node in compiled.nodes] == [1, 0]
    assert compiled.nodes[0]["ep_cache_context"] == in_a_file.binary.read_bytes()
    assert [path.name for path in compiled.path.parent.iterdir()] == ["net_ctx.onnx"]


def test_every_partition_is_in_the_binary_by_its_name_and_a_shared_weight_once(bench):
    compiled = bench.compile(bench.two_partitions(channels=200))
    content = compiled.binary.read_bytes()

    assert all(node["partition_name"] in content for node in compiled.nodes)
    assert len(content) < 1.2 * 200 * 200 * 4


@MODES
def test_one_node_is_written_as_the_real_ep_writes_it(bench, embedded):
    """The file of the real EP is one partition in a file; what differs is what is said
    in the README.
    """
    (real,) = (n for n in onnx.load(REAL / "ov_ctx0.onnx").graph.node)
    written = bench.compile(REAL / "conv.onnx", embedded=embedded).nodes[0]
    real_attributes = {a.name: helper.get_attribute_value(a) for a in real.attribute}

    assert written["source"] == real_attributes["source"]
    assert written["main_context"] == real_attributes["main_context"] == 1
    assert real_attributes["partition_name"] == real.name.encode()
    if not embedded:
        assert written["embed_mode"] == real_attributes["embed_mode"] == 0
        assert written["ep_cache_context"] == f"net_{EP}.bin".encode()
        assert real_attributes["ep_cache_context"] == f"ov_ctx0_{EP}.bin".encode()
    # onnxruntime adds the default of max_size to each node that it writes.
    assert real_attributes.keys() - {"max_size"} == written.keys() - {"name"}


def test_the_nodes_say_that_they_are_not_for_hardware(bench):
    compiled = bench.compile(bench.two_partitions())

    graph = onnx.load(compiled.path).graph
    docs = [node.doc_string for node in graph.node if node.op_type == "EPContext"]
    assert len(docs) == 2
    assert all("not for hardware" in doc for doc in docs)


@MODES
def test_the_same_model_gives_the_same_bytes_in_any_folder(bench, embedded):
    first, second = (
        bench.compile(bench.two_partitions(), embedded=embedded) for _ in range(2)
    )

    assert first.path.read_bytes() == second.path.read_bytes()
    if not embedded:
        assert first.binary.read_bytes() == second.binary.read_bytes()


@MODES
def test_a_context_model_runs_in_another_folder(bench, tmp_path, embedded):
    model = bench.two_partitions()
    compiled = bench.compile(model, embedded=embedded)
    (expected,) = bench.run(model.SerializeToString(), {"x": X})
    moved = tmp_path / "far away"
    shutil.move(compiled.path.parent, moved)

    (found,) = bench.run(moved / "net_ctx.onnx", {"x": X})

    assert np.allclose(found, expected, rtol=1e-5)


@MODES
def test_the_nodes_are_shown_with_their_payload(bench, embedded):
    compiled = bench.compile(bench.two_partitions(), embedded=embedded)

    info = epctx.inspect_model(compiled.path)

    assert [(c.source, c.main_context) for c in info.ep_contexts] == [
        (EP, True),
        (EP, not embedded),
    ]
    assert [c.payload_bytes is not None for c in info.ep_contexts] == [
        True,
        not embedded,
    ]
    assert set(info.required_files) == (set() if embedded else {compiled.binary.name})


def test_loaded_compiled_and_original_agree(bench):
    model = bench.two_partitions()
    with epctx.InferenceSession(model.SerializeToString()) as session:
        (original,) = session.run(None, {"x": X})

    (compiled,) = bench.run(model.SerializeToString(), {"x": X})
    (loaded,) = bench.run(bench.compile(model).path, {"x": X})

    assert np.allclose(compiled, original, rtol=1e-5)
    assert np.array_equal(loaded, compiled)


def test_exporting_opens_no_device(bench, tmp_path):
    opened = []

    class Watched(OpenVinoProvider):
        @hookimpl
        def shutdown(self):
            opened.append(type(self._session.device) is Device)
            super().shutdown()

    registry = epctx.Registry(entry_points=False)
    registry.register(Watched)
    source = bench.two_partitions().SerializeToString()

    compiler = epctx.ModelCompiler(bench.settings({}), source, registry=registry)
    compiler.compile_to_file(tmp_path / "net_ctx.onnx")
    epctx.InferenceSession(source, bench.settings({}), registry=registry).close()

    # The instance that reads back what was written, the one that wrote it, and a
    # session's.
    assert opened == [False, False, True]
