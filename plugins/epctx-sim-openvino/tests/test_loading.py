"""Loading: which payload and graph a node gets, and what is refused with which
words.
"""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
from epctx_sim_openvino import OpenVinoProvider
from support.folders import REAL

import epctx_core as epctx
from epctx_core.errors import InvalidGraph, NotImplementedByProvider
from epctx_core.plugin import Compatibility

EP = "OpenVINOExecutionProvider"
X = np.random.default_rng(1).standard_normal((2, 40)).astype(np.float32)
MODES = pytest.mark.parametrize("embedded", [False, True], ids=["file", "embedded"])

OPTIMAL = Compatibility.EP_SUPPORTED_OPTIMAL
NO = Compatibility.EP_UNSUPPORTED
NPU = {"device_type": "NPU"}


def sdk(version, **others):
    return {"runtime_sdk_version": version, **others}


def driver(version, **others):
    return {"runtime_driver_version": version, **others}


VERSIONS = [
    ({}, {}, OPTIMAL),
    # OpenVINO's version: exactly, ...
    (sdk("sim-2.50.0"), {}, NO),
    (sdk("sim-2.51.1"), {}, NO),
    (sdk("sim-1.51.0"), {}, NO),
    ({}, sdk("sim-3.0.0"), NO),
    (sdk("sim-3.0.0"), sdk("sim-3.0.0"), OPTIMAL),
    ({"device_type": "GPU", **sdk("sim-2.50.0")}, {"device_type": "GPU"}, NO),
    ({"device_type": "AUTO", **sdk("sim-2.50.0")}, {"device_type": "AUTO"}, NO),
    # ... but on the NPU, where the major number and the driver count.
    (NPU, NPU, OPTIMAL),
    (sdk("sim-2.50.0", **NPU), NPU, OPTIMAL),
    (NPU, sdk("sim-2.1.9", **NPU), OPTIMAL),
    (sdk("sim-1.51.0", **NPU), NPU, NO),
    (NPU, sdk("sim-1.51.0", **NPU), NO),
    (driver("sim-1.7.0", **NPU), NPU, OPTIMAL),
    (driver("sim-1.9.0", **NPU), NPU, NO),
    (driver("sim-0.9.0", **NPU), NPU, NO),
    (NPU, driver("sim-1.7.9", **NPU), NO),
    # The driver of the NPU is nothing to other devices.
    (driver("sim-1.9.0"), {}, OPTIMAL),
    # The payloads' own interface and format.
    ({"runtime_api_version": "2"}, {}, NO),
    ({}, {"runtime_api_version": "2"}, OPTIMAL),
    ({"runtime_blob_version": "99"}, {}, NO),
    ({}, {"runtime_blob_version": "99"}, OPTIMAL),
    # A blob belongs to its device.
    ({}, {"device_type": "GPU"}, NO),
    (NPU, {}, NO),
    ({"device_type": "GPU.0"}, {"device_type": "GPU.1"}, OPTIMAL),
    ({"device_type": "AUTO:GPU,CPU"}, {"device_type": "CPU"}, NO),
    ({"device_type": "AUTO:GPU,CPU"}, {"device_type": "AUTO:GPU.0,CPU"}, OPTIMAL),
]
CASES = pytest.mark.parametrize(
    ("made", "run", "verdict"),
    VERSIONS,
    ids=[f"{made}-{run}" for made, run, _ in VERSIONS],
)


@CASES
def test_a_context_model_loads_unless_the_table_says_unsupported(
    bench, made, run, verdict
):
    compiled = bench.compile(bench.two_partitions(), **made)

    if verdict is NO:
        with pytest.raises(InvalidGraph) as caught:
            bench.load(compiled.path, **run)
        assert caught.value.ep == EP
    else:
        assert bench.run(compiled.path, {"x": X}, **run)[0].shape == (2, 40)


@CASES
def test_the_payload_itself_is_judged_like_the_text_in_the_model(
    bench, made, run, verdict
):
    compiled = bench.compile(bench.two_partitions(), **made)
    model = onnx.load(compiled.path)
    kept = [
        p for p in model.metadata_props if not p.key.startswith("ep_compatibility_info")
    ]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, compiled.path)

    if verdict is NO:
        with pytest.raises(
            InvalidGraph, match="this simulated runtime needs"
        ) as caught:
            bench.load(compiled.path, **run)
        assert caught.value.node == compiled.nodes[0]["name"]
    else:
        bench.load(compiled.path, **run)


@pytest.mark.parametrize("info", ["", "v2:6:2.51.0:5.51.0:0:60:0:0", "junk;sdk=1"])
def test_a_compatibility_text_that_is_not_ours_is_not_judged(bench, info):
    assert (
        OpenVinoProvider.validate_compatibility(info, bench.options())
        is Compatibility.EP_NOT_APPLICABLE
    )


@pytest.mark.parametrize("field", ["vendor", "device", "api", "blob", "sdk"])
@pytest.mark.parametrize("device", ["CPU", "NPU"])
def test_a_compatibility_text_of_ours_without_a_field_is_unsupported(
    bench, field, device
):
    options = bench.options(device_type=device)
    info = OpenVinoProvider.get_compatibility_info([object()], options)
    without = ";".join(
        part for part in info.split(";") if not part.startswith(f"{field}=")
    )

    assert OpenVinoProvider.validate_compatibility(info, options) is OPTIMAL
    assert OpenVinoProvider.validate_compatibility(without, options) is NO


@pytest.mark.parametrize(
    ("field", "value"),
    [("vendor", "QNN"), ("device", "GPU"), ("api", "2"), ("blob", "99")],
)
def test_another_vendor_device_api_or_format_is_unsupported(bench, field, value):
    info = OpenVinoProvider.get_compatibility_info([object()], bench.options())
    parts = [
        f"{field}={value}" if part.startswith(f"{field}=") else part
        for part in info.split(";")
    ]

    assert (
        OpenVinoProvider.validate_compatibility(";".join(parts), bench.options()) is NO
    )


def test_no_partition_gives_no_compatibility_text(bench):
    assert OpenVinoProvider.get_compatibility_info([], bench.options()) == ""


@MODES
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("sim-2.51.9", "the node has sdk sim-2.51.9"),
        ("2025.4", r"the node has sdk 2025\.4"),
        (None, "the node has sdk missing"),
    ],
)
def test_the_version_must_stand_on_every_node(bench, embedded, place, version, words):
    compiled = bench.compile(bench.two_partitions(), embedded=embedded)
    name = compiled.change(place, ep_sdk_version=version)

    with pytest.raises(InvalidGraph, match=words) as caught:
        bench.load(compiled.path)

    assert caught.value.node == name


def test_on_the_npu_a_node_may_be_silent_about_the_version(bench):
    compiled = bench.compile(bench.two_partitions(), **NPU)
    compiled.change(1, ep_sdk_version=None)
    bench.load(compiled.path, **NPU)

    compiled.change(1, ep_sdk_version="sim-3.0.0")
    with pytest.raises(InvalidGraph, match=r"the node has sdk sim-3\.0\.0"):
        bench.load(compiled.path, **NPU)


@MODES
@pytest.mark.parametrize("value", [None, ""])
def test_a_node_without_partition_name_is_refused(bench, embedded, value):
    compiled = bench.compile(bench.two_partitions(), embedded=embedded)
    name = compiled.change(1, partition_name=value)

    with pytest.raises(InvalidGraph, match="has no partition_name") as caught:
        bench.load(compiled.path)

    assert (caught.value.node, caught.value.ep) == (name, EP)


@MODES
def test_a_blob_that_the_binary_lacks_is_refused_with_those_it_has(bench, embedded):
    compiled = bench.compile(bench.two_partitions(), embedded=embedded)
    name = compiled.change(1, partition_name="nowhere")

    with pytest.raises(
        InvalidGraph, match=r"holds a graph 'nowhere'; graphs found: 'OpenVINO"
    ) as caught:
        bench.load(compiled.path)

    assert caught.value.node == name


def test_the_name_of_a_node_does_not_matter(bench):
    compiled = bench.compile(bench.two_partitions())
    model = onnx.load(compiled.path)
    for number, node in enumerate(model.graph.node):
        node.name = f"renamed {number}"
    onnx.save(model, compiled.path)

    assert bench.run(compiled.path, {"x": X})[0].shape == (2, 40)


def test_with_a_file_nodes_may_also_refer_to_one_main_node(bench):
    compiled = bench.compile(bench.two_partitions())
    compiled.change(1, main_context=0, ep_cache_context=None)

    assert bench.run(compiled.path, {"x": X})[0].shape == (2, 40)


@pytest.mark.parametrize("embedded", [False, True])
def test_a_mixture_of_embedded_payloads_and_files_is_refused(bench, embedded):
    """The second node of one model takes its payload in the other way, from the same
    model compiled so.
    """
    model = bench.two_partitions()
    one, other = (
        bench.compile(model, embedded=embedded),
        bench.compile(model, embedded=not embedded),
    )
    if embedded:
        shutil.copy(other.binary, one.path.parent)
    payload = other.nodes[0]["ep_cache_context"]
    name = one.change(
        1, main_context=1, embed_mode=int(not embedded), ep_cache_context=payload
    )

    with pytest.raises(InvalidGraph, match="takes no mixture in one model") as caught:
        bench.load(one.path)

    assert (caught.value.node, caught.value.ep) == (name, EP)


@pytest.mark.parametrize(
    "source", ["openvinoexecutionprovider", "OPENVINOEXECUTIONPROVIDER", "OpenVINO"]
)
def test_a_source_in_another_spelling_is_nobodys(bench, source):
    compiled = bench.compile(bench.two_partitions())
    compiled.change(1, source=source)

    with pytest.raises(NotImplementedByProvider, match=source):
        bench.load(compiled.path)

    assert not OpenVinoProvider.accepts_source(source)
    assert OpenVinoProvider.accepts_source(EP)


def copied(tmp_path):
    for path in REAL.glob("ov_ctx0*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "ov_ctx0.onnx"


def test_what_the_real_ep_wrote_is_refused_by_name(bench, tmp_path):
    path = copied(tmp_path)

    with pytest.raises(
        InvalidGraph, match=r"real OpenVINO execution provider \(Intel\)"
    ) as caught:
        bench.load(path)

    assert "this OpenVINOExecutionProvider is simulated" in caught.value.message
    assert caught.value.ep == EP
    assert caught.value.node == f"{EP}_OpenVINO-EP-subgraph_1_0"


def test_what_the_real_ep_embedded_is_refused_by_name(bench, tmp_path):
    path = copied(tmp_path)
    model = onnx.load(path)
    (node,) = model.graph.node
    for attribute in node.attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = (REAL / f"ov_ctx0_{EP}.bin").read_bytes()
        if attribute.name == "embed_mode":
            attribute.i = 1
    onnx.save(model, path)

    with pytest.raises(InvalidGraph, match=r"real OpenVINO.*is simulated"):
        bench.load(path)


def test_an_openvino_ir_beside_the_model_is_refused_by_name(bench, tmp_path):
    path = copied(tmp_path)
    (tmp_path / "ov_ctx0.xml").write_text(
        '<?xml version="1.0"?><net name="Model0" version="11"></net>'
    )
    model = onnx.load(path)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = b"ov_ctx0.xml"
    onnx.save(model, path)

    with pytest.raises(
        InvalidGraph, match=r"models of the real OpenVINO \(Intel\).*is simulated"
    ):
        bench.load(path)


def test_the_real_eps_model_is_shown_with_the_plugin_that_would_load_it(tmp_path):
    (context,) = epctx.inspect_model(copied(tmp_path)).ep_contexts

    assert context.payload_bytes == 131_072
    assert context.plugin["distribution"] == "epctx-sim-openvino"


def test_two_models_glued_together_find_their_blobs(bench):
    """As if two embedded models had been merged: two payloads, and references that name
    neither.
    """
    models = [bench.two_partitions(seed=seed) for seed in (1, 2)]
    one, other = (
        onnx.load(bench.compile(model, embedded=True).path) for model in models
    )
    for value in (*other.graph.input, *other.graph.output):
        value.name = f"other_{value.name}"
    for node in other.graph.node:
        node.name = f"other_{node.name}"
        for names in (node.input, node.output):
            renamed = [f"other_{name}" if name else "" for name in names]
            del names[:]
            names.extend(renamed)
    for value in other.graph.value_info:
        value.name = f"other_{value.name}"
    one.graph.node.extend(other.graph.node)
    one.graph.input.extend(other.graph.input)
    one.graph.output.extend(other.graph.output)
    one.graph.value_info.extend(other.graph.value_info)

    found = bench.run(one.SerializeToString(), {"x": X, "other_x": X})

    for result, model in zip(found, models, strict=True):
        assert np.allclose(
            result, bench.run(model.SerializeToString(), {"x": X})[0], rtol=1e-5
        )


@MODES
def test_a_truncated_payload_is_refused(bench, embedded):
    compiled = bench.compile(bench.two_partitions(), embedded=embedded)
    model = onnx.load(compiled.path)
    del model.metadata_props[:]
    content = (
        compiled.nodes[0]["ep_cache_context"]
        if embedded
        else compiled.binary.read_bytes()
    )

    for length in range(0, len(content), len(content) // 23):
        if embedded:
            for attribute in model.graph.node[0].attribute:
                if attribute.name == "ep_cache_context":
                    attribute.s = content[:length]
        else:
            compiled.binary.write_bytes(content[:length])
        onnx.save(model, compiled.path)
        with pytest.raises(InvalidGraph):
            bench.load(compiled.path)
