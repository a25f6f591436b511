"""`epctx inspect`."""

from __future__ import annotations

import json

import onnx
import pytest
from support.folders import REAL

VENDORS = {
    "qnn_ctx0": ("QNNExecutionProvider", 65536, "epctx-sim-qnn"),
    "qnn_ctx1": ("QNNExecutionProvider", 65536, "epctx-sim-qnn"),
    "share1_ctx": ("QNNExecutionProvider", 102400, "epctx-sim-qnn"),
    "share2_ctx": ("QNNExecutionProvider", 102400, "epctx-sim-qnn"),
    "ov_ctx0": ("OpenVINOExecutionProvider", 131072, "epctx-sim-openvino"),
}


@pytest.mark.parametrize("name", VENDORS)
def test_what_real_compilers_write_is_understood(epctx, name):
    source, size, distribution = VENDORS[name]

    said = epctx("inspect", REAL / f"{name}.onnx", "--json")

    answer = said.json
    (node,) = answer["ep_contexts"]
    assert said.code == 0
    assert (node["source"], node["payload_bytes"], node["main_context"]) == (
        source,
        size,
        1,
    )
    assert node["embed_mode"] == (1 if name == "qnn_ctx1" else 0)
    if distribution is not None:
        assert node["plugin"]["distribution"] == distribution
    assert answer["other_nodes"] == 0
    assert list(answer["inputs"]) == ["x"]
    assert len(answer["required_files"]) == (0 if name == "qnn_ctx1" else 1)


@pytest.mark.parametrize("name", [*VENDORS, "conv", "share1"])
def test_the_report_of_a_real_file_names_its_inputs_nodes_and_files(epctx, name):
    path = REAL / f"{name}.onnx"

    said = epctx("inspect", path)

    proto = onnx.load(path, load_external_data=False)
    assert said.code == 0
    assert all(value.name in said.out for value in proto.graph.input)
    for node in proto.graph.node:
        if node.op_type == "EPContext":
            assert node.name in said.out


def test_the_plugin_that_would_load_a_node_is_shown_without_importing_it(
    process, compiled
):
    said = process("inspect", compiled)

    assert said.code == 0
    assert "epctx-sim-qnn 0.1.0 (discovered, simulated)" in said.out


def test_who_compiled_a_model_with_and_for_what_is_shown(epctx, compiled):
    said = epctx("inspect", compiled)
    detailed = epctx("inspect", compiled, "-v")
    answer = epctx("inspect", compiled, "--json").json["compiled_by"][
        "QNNExecutionProvider"
    ]

    assert answer == answer | {
        "distribution": "epctx-sim-qnn",
        "plugin_api": 1,
        "sdk": "sim-2.51.0",
        "driver": "sim-1.8.0",
        "target": "htp v73",
    }
    for text in (answer["sdk"], answer["driver"], answer["target"]):
        assert text in said.out
    assert answer["options"] not in said.out
    assert answer["options"] in detailed.out


@pytest.mark.parametrize(
    ("producer", "maker"),
    [("spox", "epctx from a model of spox 1.0"), ("", "epctx")],
)
def test_a_context_model_is_told_to_be_of_epctx_and_its_source_of_its_producer(
    epctx, resnet, tmp_path, producer, maker
):
    source = onnx.load(resnet.path)
    source.producer_name, source.producer_version = producer, "1.0" if producer else ""
    path = tmp_path / "m.onnx"
    onnx.save(source, path)
    epctx("compile", path, "--ep", "QNN")

    model, context = epctx("inspect", path), epctx("inspect", tmp_path / "m_ctx.onnx")

    first = context.out.splitlines()[0]
    assert first.endswith(f", written by {maker}")
    plain = f", written by {producer} 1.0" if producer else ", no EPContext node"
    assert model.out.splitlines()[0].endswith(plain)


def test_a_context_model_of_another_compiler_names_that_one_also_if_it_is_sealed(
    epctx, tmp_path
):
    model = onnx.load(REAL / "qnn_ctx1.onnx")
    model.producer_name = "a-compiler"
    path = tmp_path / "theirs.onnx"
    onnx.save(model, path)

    before = epctx("inspect", path).out.splitlines()[0]
    epctx("seal", path, "-o", tmp_path / "sealed.onnx")
    after = epctx("inspect", tmp_path / "sealed.onnx").out.splitlines()[0]

    assert before.endswith(", written by a-compiler")
    assert after.endswith(", written by a-compiler")


def test_a_manifest_that_does_not_say_with_what_it_was_compiled_is_shown_all_the_same(
    epctx, compiled
):
    proto = onnx.load(compiled)
    entry = next(p for p in proto.metadata_props if p.key == "epctx.manifest")
    manifest = json.loads(entry.value)
    manifest["providers"]["QNNExecutionProvider"] = {
        "distribution": "epctx-sim-qnn",
        "version": "0.0.1",
    }
    entry.value = json.dumps(manifest)
    onnx.save(proto, compiled)

    said = epctx("inspect", compiled)

    assert said.code == 0
    assert "0.0.1" in said.out


def test_a_simulated_payload_is_shown_to_be_not_for_hardware(epctx, compiled):
    said = epctx("inspect", compiled)

    assert "sim-" in said.out
    assert "not for hardware" in said.out


def test_nodes_that_differ_in_a_number_are_shown_together_with_all_their_numbers(
    epctx, model
):
    pairs = " ".join(f"r{i} = Relu(e{i}) e{i + 1} = Erf(r{i})" for i in range(4))
    source = model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y) '
        f"{{ e0 = Erf(x) {pairs} y = Selu(e4) }}"
    )
    epctx("compile", source, "--ep", "QNN")
    written = source.with_name(f"{source.stem}_ctx.onnx")
    proto = onnx.load(written)
    references = [node for node in proto.graph.node if node.op_type == "EPContext"][1:]
    for place, node in enumerate(references):
        node.attribute.append(onnx.helper.make_attribute("index", 7 + place))
    onnx.save(proto, written)

    said = epctx("inspect", written)

    assert said.out.count("Attributes of") == 2
    assert f"Attributes of {references[0].name} and 2 more:" in said.out
    assert "7, 8, 9" in said.out
    assert said.out.count("ep_sdk_version") == 2


def test_a_source_without_a_plugin_is_warned_about_with_what_would_help(
    epctx, compiled
):
    proto = onnx.load(compiled)
    next(a for a in proto.graph.node[0].attribute if a.name == "source").s = b"Unheard"
    onnx.save(proto, compiled)

    said = epctx("inspect", compiled)

    assert said.code == 0
    assert "no plugin" in said.out
    assert "No installed plugin accepts the source 'Unheard'" in said.err


def test_a_missing_payload_is_warned_about_once(epctx, compiled):
    compiled.with_name("resnet_qnn.bin").unlink()

    said = epctx("inspect", compiled)
    answer = epctx("inspect", compiled, "--json").json

    assert said.code == 0
    assert said.err.count("warning:") == 1
    assert "resnet_qnn.bin" in said.err
    assert answer["ep_contexts"][0]["payload_bytes"] is None
    assert answer["files"][0]["problem"]


def test_external_weights_are_required_files_too(epctx, resnet):
    onnx.save(
        onnx.load(resnet.path),
        resnet.path,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=1024,
    )

    there = epctx("inspect", resnet.path, "--json").json
    resnet.path.with_name("w.bin").unlink()
    gone = epctx("inspect", resnet.path)

    assert there["files"][0]["bytes"] > 1_000_000
    assert there["required_files"] == ["w.bin"]
    assert "w.bin" in gone.err


def test_names_out_of_a_model_cannot_steer_the_terminal(epctx, compiled):
    proto = onnx.load(compiled)
    proto.graph.node[0].name = "\x1b[2J\x1b]0;owned\x07\u202eevil"
    onnx.save(proto, compiled)

    said = epctx("inspect", compiled)

    assert "\\x1b[2J" in said.out
    assert not set("\x1b\x07\u202e") & set(said.out + said.err)


def test_no_text_of_a_model_forges_a_line_of_the_report(epctx, compiled):
    forged = "x\nok: nothing found\r\x1b[2J\u2028"
    proto = onnx.load(compiled)
    proto.producer_name = proto.producer_version = forged
    proto.metadata_props.add(key="weightless_mode", value=forged)
    node = proto.graph.node[0]
    node.name = forged
    node.attribute.append(onnx.helper.make_attribute(forged, forged))
    for attribute in node.attribute:
        if attribute.name in {"source", "partition_name", "notes"}:
            attribute.s = forged.encode()
    manifest = next(p for p in proto.metadata_props if p.key == "epctx.manifest")
    content = json.loads(manifest.value)
    content["sealed"] = {"by": forged, "bytes": 1, "sha256": ""}
    content["source_weights"] = {forged: ["0" * 64, 1, [1], forged, 0]}
    content["custom_domains"] = {forged: forged}
    manifest.value = json.dumps(content)
    onnx.save(proto, compiled)

    for command in ("inspect", "verify"):
        said = epctx(command, compiled)
        lines = (said.out + said.err).split("\n")

        assert any("ok: nothing found" in line for line in lines), command
        assert not any(line.strip().startswith("ok: nothing") for line in lines)
        assert all(line.isprintable() for line in lines)


def test_a_reference_to_another_node_is_told_from_a_primary(epctx, model):
    # QNN has no Erf, so this is nine partitions.
    pairs = " ".join(f"r{i} = Relu(e{i}) e{i + 1} = Erf(r{i})" for i in range(9))
    source = model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y) '
        f"{{ e0 = Erf(x) {pairs} y = Selu(e9) }}"
    )
    epctx("compile", source, "--ep", "QNN")
    written = source.with_name(f"{source.stem}_ctx.onnx")

    said = epctx("inspect", written)
    nodes = epctx("inspect", written, "--json").json["ep_contexts"]

    assert [n["main_context"] for n in nodes] == [1] + [0] * 8
    assert said.out.count("in a primary node") == 8
    assert "and 7 more:" in said.out
