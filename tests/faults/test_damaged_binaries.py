"""Every damage of a payload and every reader of it: a table of what is found."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import onnx
import pytest
from support.routes import refused
from support.share_models import example, options, run, write_model
from support.sim_eps import OPENVINO, QNN, VITISAI

import epctx_core as epctx
from epctx_core import InvalidGraph

EPS = (QNN, OPENVINO, VITISAI)
MODES = ["once", "head", "lazy", "full"]
MANIFEST = "epctx.manifest"
ROWS = 3


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Give context models, made once each: `compiled(ep, seed=0, embedded=False)`."""

    @cache
    def make(ep, *, seed=0, embedded=False):
        source = write_model(
            ep, tmp_path_factory.mktemp("source") / "m.onnx", ROWS, seed=seed
        )
        model = source.with_name("m_ctx.onnx")
        compiler = epctx.ModelCompiler(
            options(ep), source, embed_compiled_data_into_model=embedded
        )
        compiler.compile_to_file(model)
        return model

    return make


@pytest.fixture
def pair(compiled, tmp_path):
    """Copy a context model and its binary: `pair(ep)` gives the two paths."""

    def copy(ep):
        for path in compiled(ep).parent.glob("m_*"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        (binary,) = tmp_path.glob("*.bin")
        return tmp_path / "m_ctx.onnx", binary

    return copy


def a_weight(model):
    """Return the place of a byte in the middle of a weight, as the manifest has it."""
    (manifest,) = (
        json.loads(p.value)
        for p in onnx.load(model).metadata_props
        if p.key == MANIFEST
    )
    (payload,) = manifest["payloads"]
    offset = 0
    for length, _digest, *is_weight in payload["segments"]:
        if is_weight and length > 1000:
            break
        offset += length
    return offset + length // 2


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


ANOTHER = "the model was written with"
DAMAGES = {
    "empty": (lambda _content, _stale: b"", "is empty"),
    "half": (lambda content, _stale: content[: len(content) // 2], ANOTHER),
    "a byte short": (lambda content, _stale: content[:-1], ANOTHER),
    "a byte longer": (lambda content, _stale: content + b"\0", ANOTHER),
    "zeroes": (lambda content, _stale: bytes(len(content)), ANOTHER),
    "backwards": (lambda content, _stale: content[::-1], ANOTHER),
    "a flipped bit in its header": (
        lambda content, _stale: flipped(content, 9),
        ANOTHER,
    ),
    "a flipped last bit": (
        lambda content, _stale: flipped(content, len(content) - 1),
        ANOTHER,
    ),
    "stale": (lambda _content, stale: stale, ANOTHER),
}
"""Name to (content, the same model's binary with other weights) -> damaged; and words
that each reader says.
"""


def compile_again(model, _rows, session_options):
    epctx.ModelCompiler(session_options, model).compile_to_file(
        model.with_name("again_ctx.onnx")
    )


def assert_refused(ep, model, binary, match):
    """Have every reader refuse a binary with the same error, and change nothing."""
    readers = [(run, {"ep__context_verify": mode}) for mode in MODES] + [
        (compile_again, {})
    ]
    for read, entries in readers:
        with refused(
            InvalidGraph, rf"'{binary.name}'.*{match}", folder=model.parent
        ) as caught:
            read(model, ROWS, options(ep, **entries))
        if read is run:
            assert (caught.value.ep, caught.value.node[: len(ep)]) == (ep, ep)
        assert Path(caught.value.path) == binary
    assert not epctx.verify_model(model).ok


@pytest.mark.entry(84)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("ep", EPS)
def test_a_binary_that_is_not_the_models_is_refused_by_every_reader(
    compiled, pair, ep, damage
):
    model, binary = pair(ep)
    stale = compiled(ep, seed=1).with_name(binary.name).read_bytes()
    assert len(stale) == binary.stat().st_size
    change, match = DAMAGES[damage]
    binary.write_bytes(change(binary.read_bytes(), stale))

    assert_refused(ep, model, binary, match)


@pytest.mark.entry(71, 72)
@pytest.mark.parametrize("ep", EPS)
def test_a_missing_binary_is_refused_by_every_reader_with_the_folder_that_was_looked_in(
    pair, ep
):
    model, binary = pair(ep)
    binary.unlink()

    assert_refused(ep, model, binary, "which is missing")
    with pytest.raises(InvalidGraph) as caught:
        epctx.InferenceSession(model)
    assert str(model.parent) in caught.value.hint


@pytest.mark.parametrize(
    ("mode", "found"), [("head", False), ("lazy", True), ("full", True)]
)
@pytest.mark.parametrize("ep", EPS)
def test_a_flipped_bit_of_a_weight_is_found_where_weights_are_read(
    pair, ep, mode, found
):
    model, binary = pair(ep)
    binary.write_bytes(flipped(binary.read_bytes(), a_weight(model)))

    if found:
        with pytest.raises(InvalidGraph, match="have another digest"):
            run(model, ROWS, options(ep, ep__context_verify=mode))
    else:
        assert (
            run(model, ROWS, options(ep, ep__context_verify=mode)).shape
            == example(ROWS)["x"].shape
        )


@pytest.mark.parametrize("ep", EPS)
def test_a_private_copy_is_read_whole_so_a_flipped_bit_of_a_weight_is_found_in_every_mode(
    pair, ep
):
    model, binary = pair(ep)
    binary.write_bytes(flipped(binary.read_bytes(), a_weight(model)))

    for mode in MODES:
        with pytest.raises(InvalidGraph, match="have another digest"):
            run(
                model,
                ROWS,
                options(ep, ep__context_verify=mode, ep__context_file_mapping=0),
            )


@pytest.mark.parametrize("mode", MODES)
def test_an_embedded_payload_is_checked_like_a_file(compiled, tmp_path, mode):
    model = onnx.load(compiled(QNN, embedded=True))
    (attribute,) = [
        a for n in model.graph.node for a in n.attribute if a.name == "ep_cache_context"
    ]
    (tmp_path / "m_ctx.onnx").write_bytes(model.SerializeToString())
    weight = a_weight(tmp_path / "m_ctx.onnx")
    sound = attribute.s
    for place, found in ((9, True), (len(sound) - 1, True), (weight, mode != "head")):
        attribute.s = flipped(sound, place)
        path = Path(tmp_path / "m_ctx.onnx")
        path.write_bytes(model.SerializeToString())

        if found:
            with pytest.raises(InvalidGraph, match="have another digest"):
                run(path, ROWS, options(QNN, ep__context_verify=mode))
        else:
            run(path, ROWS, options(QNN, ep__context_verify=mode))


def without_manifest(model):
    kept = [p for p in model.metadata_props if p.key != MANIFEST]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)


def of_another_version(model):
    entry = next(p for p in model.metadata_props if p.key == MANIFEST)
    entry.value = json.dumps({"version": 99, "anything": ["else"]})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", [without_manifest, of_another_version])
@pytest.mark.parametrize("ep", EPS)
def test_without_a_manifest_that_is_understood_a_model_loads_and_its_container_is_still_checked(
    pair, ep, change, mode
):
    path, binary = pair(ep)
    model = onnx.load(path)
    change(model)
    path.write_bytes(model.SerializeToString())

    assert (
        run(path, ROWS, options(ep, ep__context_verify=mode)).shape
        == example(ROWS)["x"].shape
    )
    binary.write_bytes(binary.read_bytes()[: binary.stat().st_size // 2])
    with pytest.raises(InvalidGraph):
        run(path, ROWS, options(ep, ep__context_verify=mode))
