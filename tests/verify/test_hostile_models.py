"""Whatever the bytes are, a verification ends with a report."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.context_pairs import by_hand, by_qnn

import epctx_core as epctx

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "cut", "double", "insert"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
        st.integers(1, 40),
    ),
    min_size=1,
    max_size=6,
)
SEEDS = ["file", "embedded", "handmade", "bodies", "weights"]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Small context models by name: bytes, and the options with which a load finds
    their files.
    """
    folder = tmp_path_factory.mktemp("seeds")
    written = by_qnn(folder / "qnn")
    handmade = by_hand(folder / "handmade").path
    return {
        "file": (written.read_bytes(), written),
        "embedded": (embedded(written), written),
        "handmade": (handmade.read_bytes(), handmade),
        "bodies": (in_a_body(handmade), handmade),
        "weights": (with_weights(handmade), handmade),
    }


def embedded(path):
    """Return a model with the payload in its first node, without a manifest."""
    proto = onnx.load(path)
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "ep_cache_context":
                attribute.s = path.with_name("m_qnn.bin").read_bytes()[-3000:]
            if attribute.name == "embed_mode":
                attribute.i = 1
    del proto.metadata_props[:]
    return proto.SerializeToString()


def in_a_body(path):
    """Return a model whose nodes lie in the body of an If."""
    proto = onnx.load(path)
    body = onnx.helper.make_graph(
        list(proto.graph.node),
        "b",
        [],
        list(proto.graph.output),
        value_info=proto.graph.value_info,
    )
    choose = onnx.helper.make_node(
        "If", ["c"], ["y"], then_branch=body, else_branch=body
    )
    condition = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    del proto.graph.node[:], proto.graph.value_info[:]
    proto.graph.node.append(choose)
    proto.graph.input.append(condition)
    return proto.SerializeToString()


def with_weights(path):
    """Return a model with weights of its own: small, large, and in a file."""
    proto = onnx.load(path)
    for name, rows in (("w0", 2), ("w1", 400), ("w2", 3)):
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(np.ones((rows, 3), np.float32), name)
        )
        proto.graph.node.append(
            onnx.helper.make_node("Add", [name, name], [f"sum_{name}"])
        )
    outside = proto.graph.initializer[-1]
    outside.ClearField("raw_data")
    outside.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (
        ("location", path.with_name("h_alpha.bin").name),
        ("offset", "8"),
        ("length", "36"),
    ):
        outside.external_data.add(key=key, value=value)
    return proto.SerializeToString()


def mutated(content, changes):
    """Return bytes after a list of changes."""
    data = bytearray(content)
    for kind, where, value, length in changes:
        at = int(where * max(1, len(data)))
        if kind == "flip" and data:
            data[at] ^= 1 << (value % 8)
        elif kind == "set" and data:
            data[at] = value
        elif kind == "cut":
            del data[at : at + length]
        elif kind == "double":
            data[at:at] = data[at : at + length]
        else:
            data[at:at] = bytes([value]) * length
    return bytes(data)


def verified(content, path):
    """Verify bytes with their files at hand; return the report as JSON text."""
    options = epctx.SessionOptions()
    options.add_session_config_entry("ep.context_file_path", str(path))
    options.add_session_config_entry(FOLDER_OPTION, str(path.parent))
    return json.dumps(epctx.verify_model(content, options).as_dict())


@pytest.mark.parametrize("name", SEEDS)
@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=MUTATIONS)
def test_a_mutated_model_gives_a_report(seeds, name, changes):
    content, path = seeds[name]

    text = verified(mutated(content, changes), path)

    assert '"findings"' in text


@settings(max_examples=100, deadline=None, derandomize=True)
@given(content=st.binary(max_size=300))
def test_any_bytes_give_a_report(content):
    report = epctx.verify_model(content)

    assert json.dumps(report.as_dict())


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=MUTATIONS)
def test_a_mutated_payload_gives_a_report(seeds, tmp_path_factory, changes):
    _, path = seeds["file"]
    folder = tmp_path_factory.mktemp("payload")
    proto = onnx.load(path)
    del proto.metadata_props[:]
    (folder / "m_ctx.onnx").write_bytes(proto.SerializeToString())
    (folder / "m_qnn.bin").write_bytes(
        mutated(path.with_name("m_qnn.bin").read_bytes(), changes)
    )

    report = epctx.verify_model(folder / "m_ctx.onnx")

    assert {finding.code for finding in report.findings} <= {
        "manifest-missing", "container-refused", "container-not-checked",
        "payload-refused"
    }  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    key=st.sampled_from(
        ["version", "source_model", "providers", "payloads", "source_weights"]
    ),
    inner=st.sampled_from(
        [None, "name", "embedded", "bytes", "root", "segments", "references"]
    ),
    value=JSON,
)
def test_a_manifest_that_says_anything_gives_a_report(seeds, key, inner, value):
    content, path = seeds["file"]
    proto = onnx.load_from_string(content)
    entry = next(each for each in proto.metadata_props if each.key == "epctx.manifest")
    manifest = json.loads(entry.value)
    if inner is None:
        manifest[key] = value
    else:
        manifest["payloads"][0][inner] = value
    entry.value = json.dumps(manifest)

    assert verified(proto.SerializeToString(), path)


@pytest.mark.parametrize(
    "name", [b"w0", b"w1", b"h_alpha.bin", b"location", b"sum_w1", b"36"]
)
def test_a_name_that_is_not_text_is_a_finding_and_a_typed_error_of_a_load(seeds, name):
    content, beside = seeds["weights"]
    spoilt = content.replace(name, b"\xff" + name[1:])

    path = beside.with_name("spoilt.onnx")
    path.write_bytes(spoilt)

    report = epctx.verify_model(path)

    assert not report.ok
    assert {f.code for f in report.findings} & {"model-invalid"}
    with pytest.raises(epctx.InvalidGraph):
        epctx.InferenceSession(path)
