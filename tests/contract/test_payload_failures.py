"""Entries 84 to 87 and what a payload can be wrong in: an invalid graph that names the
cause, on every route.

The manifest and the compatibility information are taken off: what is left to refuse a
payload is the payload itself, as for a model that somebody else wrote.
"""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
from support.folders import REAL
from support.routes import with_qnn
from support.small_models import chain, example, saved

import epctx_core as epctx
from epctx_core.errors import InvalidGraph

DISTANCE = 41


def compiled(source, *, embed=False, bare=True, **options):
    """Compile with the simulated QNN; `bare` takes off all that the core knows about
    the payload.
    """
    path = source.with_name(f"{source.stem}_ctx.onnx")
    epctx.ModelCompiler(with_qnn(options), source, embed).compile_to_file(path)
    if bare:
        model = onnx.load(path)
        del model.metadata_props[:]
        saved(model, path)
    return path


def result(path, **options):
    with epctx.InferenceSession(path, with_qnn(options)) as session:
        return session.run(None, {"x": example()})[0]


MISMATCHES = [
    ({"runtime_driver_version": "sim-1.9.0"}, {}, "driver sim-1.9.0 .newer."),
    (
        {"runtime_driver_version": "sim-0.9.0"},
        {},
        "driver sim-0.9.0 .of an older major version.",
    ),
    ({}, {"runtime_driver_version": "none"}, "needs none"),
    ({"runtime_sdk_version": "sim-2.99.0"}, {}, "sdk sim-2.99.0 .newer."),
    (
        {"runtime_sdk_version": "sim-1.0.0"},
        {},
        "sdk sim-1.0.0 .of an older major version.",
    ),
    (
        {"runtime_sdk_version": "sim-3.0.0"},
        {},
        "sdk sim-3.0.0 .of a newer major version.",
    ),
    (
        {"htp_arch": "75"},
        {},
        "htp_arch 75 .newer., but this simulated runtime needs 73",
    ),
    ({"runtime_backend": "gpu"}, {}, "backend gpu .another one."),
    ({"runtime_api_version": "2"}, {}, "api 2 .newer."),
    (
        {"runtime_blob_version": "99"},
        {},
        "blob 99 .newer., but this simulated runtime needs 1",
    ),
]


@pytest.mark.entry(102)
@pytest.mark.parametrize("embed", [False, True], ids=["file", "embedded"])
@pytest.mark.parametrize(("made", "runtime", "words"), MISMATCHES, ids=str)
def test_a_payload_for_another_driver_sdk_or_target_is_refused_by_what_it_says_itself(
    source, made, runtime, words, embed
):
    path = compiled(source, embed=embed, **made)

    with pytest.raises(InvalidGraph, match=words) as caught:
        result(path, **runtime)

    assert caught.value.ep == "QNNExecutionProvider"
    assert caught.value.node
    assert "Compile the source model again" in caught.value.hint


@pytest.mark.parametrize(
    ("made", "runtime"),
    [({"runtime_sdk_version": "sim-2.1.0"}, {}), ({"htp_arch": "68"}, {"htp_arch": "73"}), ({"soc_model": "60"}, {})],
    ids=str,
)  # fmt: skip
def test_a_payload_for_an_older_sdk_or_device_runs(source, made, runtime):
    assert np.array_equal(result(compiled(source, **made), **runtime), result(source))


@pytest.mark.entry(84)
@pytest.mark.parametrize("embed", [False, True], ids=["file", "embedded"])
def test_an_empty_or_truncated_payload_is_refused(source, embed):
    path = compiled(source, embed=embed)
    content = payload(path)

    for length in (0, 1, 7, *range(8, len(content), DISTANCE), len(content) - 1):
        replace_payload(path, content[:length])
        with pytest.raises(InvalidGraph):
            result(path)


@pytest.mark.entry(84)
def test_junk_in_place_of_a_payload_is_refused(source):
    path = compiled(source)

    for junk in (b"\0" * 5000, b"junk" * 999, payload(path)[::-1]):
        replace_payload(path, junk)
        with pytest.raises(InvalidGraph) as caught:
            result(path)
        assert caught.value.hint


@pytest.mark.entry(84)
def test_a_changed_bit_is_refused_or_changes_nothing_but_weights(source):
    path = compiled(source)
    content = bytearray(payload(path))
    refused = 0

    for place in range(0, len(content), DISTANCE):
        content[place] ^= 4
        replace_payload(path, content)
        try:
            assert result(path).shape == (2, 3)
        except InvalidGraph:
            refused += 1
        content[place] ^= 4

    assert refused > 10


@pytest.mark.entry(84)
def test_with_the_manifest_even_a_changed_bit_of_padding_is_found_if_the_host_asks(
    source,
):
    path = compiled(source, bare=False)
    content = bytearray(payload(path))
    options = with_qnn(ep__context_verify="full")

    for place in range(0, len(content), DISTANCE):
        content[place] ^= 4
        replace_payload(path, content)
        with pytest.raises(
            InvalidGraph, match="not the one that the model was written with"
        ):
            epctx.InferenceSession(path, options)
        content[place] ^= 4


@pytest.mark.entry(85)
def test_a_file_name_as_an_embedded_payload_is_refused(source):
    path = compiled(source)
    set_attribute_of_first(path, "embed_mode", 1)

    with pytest.raises(
        InvalidGraph,
        match=r"is the text 'm_qnn\.bin', as if a file's name had been embedded",
    ) as caught:
        result(path)

    assert caught.value.hint


@pytest.mark.entry(86)
@pytest.mark.parametrize(
    ("operators", "bare", "words"),
    [
        (["Relu", "Erf", "Add"], True, "graphs found"),
        (["Relu", "Erf", "Add"], False, "model was written with"),
        (["Relu", "Add"], False, "model was written with"),
    ],
)
def test_a_binary_of_another_model_in_the_place_of_the_own_is_refused(
    tmp_path, operators, bare, words
):
    path = compiled(saved(chain(operators), tmp_path / "m.onnx"), bare=bare)
    other = tmp_path / "other"
    other.mkdir()
    theirs = compiled(saved(chain([*operators, "Mul"], seed=5), other / "m.onnx"))
    shutil.copy(theirs.with_name("m_qnn.bin"), path.with_name("m_qnn.bin"))

    with pytest.raises(InvalidGraph, match=words) as caught:
        result(path)

    assert caught.value.node


@pytest.mark.entry(87)
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ep_sdk_version", "sim-9.0.0", "the node has sdk sim-9.0.0"),
        ("ep_sdk_version", "v2.51.0.260929181845", "the node has sdk v2.51"),
        ("hardware_architecture", "htp-v81 (simulated)", "the node has htp_arch 81"),
        ("notes", "anything", ""),
        ("an_attribute_of_ones_own", 7, ""),
    ],
)
def test_what_a_node_says_about_versions_is_checked_and_other_attributes_are_not(
    source, name, value, words
):
    path = compiled(source)
    set_attribute_of_first(path, name, value)

    if words:
        with pytest.raises(InvalidGraph, match=words):
            result(path)
    else:
        assert np.array_equal(result(path), result(source))


@pytest.mark.parametrize("file", sorted(p.name for p in REAL.glob("*.bin")))
def test_a_payload_of_a_vendors_own_compiler_is_refused_by_name(source, file):
    path = compiled(source)
    replace_payload(path, (REAL / file).read_bytes())

    with pytest.raises(InvalidGraph, match="simulated") as caught:
        result(path)

    assert caught.value.ep == "QNNExecutionProvider"


def first_node(model):
    return next(n for n in model.graph.node if n.op_type == "EPContext")


def set_attribute_of_first(path, name, value):
    model = onnx.load(path)
    node = first_node(model)
    for attribute in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(attribute)
    node.attribute.append(onnx.helper.make_attribute(name, value))
    saved(model, path)


def embedded_payload(path):
    attributes = {a.name: a for a in first_node(onnx.load(path)).attribute}
    return attributes["ep_cache_context"].s if attributes["embed_mode"].i else None


def payload(path):
    embedded = embedded_payload(path)
    return path.with_name("m_qnn.bin").read_bytes() if embedded is None else embedded


def replace_payload(path, content):
    if embedded_payload(path) is None:
        path.with_name("m_qnn.bin").write_bytes(content)
    else:
        set_attribute_of_first(path, "ep_cache_context", bytes(content))
