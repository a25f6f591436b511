"""The hooks: what is compiled, written, said about it, loaded and run."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import numpy as np
import onnx
import pytest
from epctx_sim_qnn import QnnProvider
from support.folders import MODELS
from support.networks import fill
from support.networks.catalog import run_onnxruntime

from epctx_core.errors import InvalidArgument, ModelLoadCanceled
from epctx_core.plugin import Purpose


def differs(found, wanted):
    return float(np.max(np.abs(found - wanted)) / (np.max(np.abs(wanted)) + 1e-6))


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("epctx.execution_providers", "QNNExecutionProvider"),
        ("epctx.ep_sources", "QNN"),
        ("epctx.ep_sources", "QnnExecutionProvider"),
    ],
)
def test_the_installed_package_is_found_through_its_entry_points(group, name):
    (entry,) = (
        e
        for e in entry_points(group=group)
        if e.name == name and e.dist.name == "epctx-sim-qnn"
    )

    assert entry.load() is QnnProvider


def test_importing_the_package_imports_neither_onnx_nor_numpy():
    code = (
        "import epctx_sim_qnn, sys; print([m for m in ('onnx', 'numpy', "
        "'onnxruntime') if m in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "source", ["QNN", "qnn", "Qnn", "QNNExecutionProvider", "qnnexecutionPROVIDER"]
)
def test_its_sources_are_taken_in_any_case(source):
    assert QnnProvider.accepts_source(source)


@pytest.mark.parametrize(
    "source", ["", "QNN ", "QNNExecution", "OpenVINOExecutionProvider", "MyQNN"]
)
def test_other_sources_are_not(source):
    assert not QnnProvider.accepts_source(source)


def test_every_option_has_a_default_that_is_allowed_and_a_sentence(scene):
    assert scene.options() == {
        option.name: option.default for option in QnnProvider.options
    }
    assert all(o.default in o.choices for o in QnnProvider.options if o.choices)
    assert all(o.doc.endswith(".") for o in QnnProvider.options)


def test_the_vendor_says_that_it_is_simulated():
    assert "SIMULATED" in QnnProvider.vendor
    assert "not for hardware" in QnnProvider.vendor


def test_the_first_node_carries_all_graphs_and_the_others_refer_to_it(scene):
    nodes, content = scene.export(scene.two_partitions())

    assert [node.main_context for node in nodes] == [1, 0]
    assert nodes[0].payload is not None
    assert nodes[1].payload is None
    for node in nodes:
        assert node.partition.name.encode() in content


def test_the_attributes_of_the_nodes(scene):
    nodes, _ = scene.export(scene.two_partitions(), htp_arch="75")

    main, other = (dict(node.attributes) for node in nodes)
    assert main.pop("max_size") == 0
    assert main == other
    assert main.keys() == {"ep_sdk_version", "hardware_architecture", "notes"}
    assert main["ep_sdk_version"].startswith("sim-")
    assert main["hardware_architecture"] == "htp-v75 (simulated)"
    assert "not for hardware" in main["notes"]
    assert all("not for hardware" in node.doc_string for node in nodes)


def test_max_size_is_the_largest_plan_when_the_spill_fill_buffer_is_on(scene):
    nodes, _ = scene.export(scene.two_partitions(), enable_htp_spill_fill_buffer="1")

    # Each graph holds two values of 2 x 40 floats at a time, each rounded up to 128
    # bytes.
    assert nodes[0].attributes["max_size"] == 2 * 384
    assert "max_size" not in nodes[1].attributes


def test_a_weight_that_both_graphs_use_is_stored_once(scene):
    model = scene.two_partitions(channels=200)
    _, content = scene.export(model)

    assert len(content) < 1.2 * 200 * 200 * 4


def test_asking_twice_for_the_nodes_gives_the_same(scene):
    provider = scene.provider()
    provider.compile(scene.partitions(scene.two_partitions()))

    first, second = scene.written(provider), scene.written(provider)

    assert first[1] == second[1]
    assert [n.attributes for n in first[0]] == [n.attributes for n in second[0]]


def test_compile_may_be_called_again_with_further_partitions(scene):
    model = scene.two_partitions()
    provider, again = scene.provider(), scene.provider()
    partitions = scene.partitions(model)

    provider.compile(partitions)
    for partition in partitions:
        again.compile([partition])

    assert scene.written(again)[1] == scene.written(provider)[1]


def test_without_partitions_nothing_is_written(scene):
    assert scene.written(scene.provider()) == ([], b"")


def test_exporting_makes_nothing_ready_to_run(scene, monkeypatch):
    provider, partitions = scene.provider(), scene.partitions(scene.two_partitions())
    prepared = []
    monkeypatch.setattr(
        type(provider.context.engine),
        "prepare",
        lambda *given, **_more: prepared.append(given),
    )

    compiled = provider.compile(partitions)

    assert [c.run for c in compiled] == [None, None]
    assert prepared == []


def test_loaded_graphs_and_graphs_compiled_to_run_give_the_same(scene):
    model = scene.two_partitions()
    x = np.random.default_rng(1).standard_normal((2, 40)).astype(np.float32)

    loaded = scene.load(*scene.export(model))
    compiled = scene.provider(Purpose.RUN).compile(scene.partitions(model))

    for one, other in zip(loaded, compiled, strict=True):
        assert np.array_equal(one.run([x], None)[0], other.run([x], None)[0])


def catalogue(name, folder):
    path = folder / f"{name}.onnx"
    model = (
        onnx.load(MODELS / name / "model.onnx")
        if (MODELS / name).is_dir()
        else fill.fill(name)
    )
    onnx.save(model, path)
    return model, path


@pytest.mark.parametrize(
    ("name", "input_name"), [("resnet", "pixel_values"), ("squeezenet", "data_0")]
)
def test_a_network_that_is_one_partition_runs_from_its_container_like_onnxruntime(
    scene, tmp_path, name, input_name
):
    model, path = catalogue(name, tmp_path)
    (value,) = (v for v in model.graph.input if v.name == input_name)
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)

    (compiled,) = scene.load(*scene.export(model))

    (expected,) = run_onnxruntime(path, {input_name: x})
    assert differs(compiled.run([x], None)[0], expected) <= 1e-4


def test_float16_weights_change_results_a_little_and_halve_the_payload(scene):
    model = scene.two_partitions(channels=200)
    x = np.random.default_rng(1).standard_normal((2, 200)).astype(np.float32)

    full_nodes, full = scene.export(model)
    half_nodes, half = scene.export(model, enable_htp_fp16_precision="1")

    exact, rounded = scene.load(full_nodes, full)[0], scene.load(half_nodes, half)[0]
    assert 0 < differs(rounded.run([x], None)[0], exact.run([x], None)[0]) < 1e-2
    assert len(half) < 0.6 * len(full)


def test_a_cancelled_compile_stops(scene):
    scene.cancel.set(True)

    with pytest.raises(ModelLoadCanceled):
        scene.provider().compile(scene.partitions(scene.two_partitions()))


def test_a_cancelled_write_stops(scene):
    provider = scene.provider()
    provider.compile(scene.partitions(scene.two_partitions(channels=100)))
    scene.cancel.set(True)

    with pytest.raises(ModelLoadCanceled):
        scene.written(provider)


def test_progress_is_reported_to_its_end(scene):
    scene.load(*scene.export(scene.two_partitions()))

    assert ("compile", 0, 2) in scene.progress
    assert ("compile", 2, 2) in scene.progress
    assert scene.progress[-1] == ("load", 2, 2)


def test_shutdown_closes_engines_and_may_follow_a_failure(scene):
    provider = scene.provider(Purpose.RUN)
    compiled = provider.compile(scene.partitions(scene.two_partitions()))

    provider.shutdown()
    for one in compiled:
        one.close()

    assert not provider._device._shared
    scene.provider(Purpose.LOAD).shutdown()


@pytest.mark.parametrize(
    ("target", "shown"), [(None, 73), ("htp-v81", 81), ("75", 75), ("V69", 69)]
)
def test_a_target_of_the_host_goes_before_htp_arch(scene, target, shown):
    provider = scene.provider(target=target)
    provider.compile(scene.partitions(scene.two_partitions()))

    nodes, _ = scene.written(provider)

    assert nodes[0].attributes["hardware_architecture"] == f"htp-v{shown} (simulated)"


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"target": "gpu"}, "no target 'gpu'"),
        ({"htp_arch": "74"}, "htp_arch"),
        ({"backend_type": "gpu"}, "backend_type"),
        ({"runtime_sdk_version": "2.51"}, "not a simulated version"),
        ({"htp_archh": "73"}, "Did you mean 'htp_arch'"),
    ],
)
def test_wrong_options_are_refused_at_once(scene, keywords, text):
    with pytest.raises(InvalidArgument, match=text):
        scene.provider(**keywords)
