"""Every damage to a file of initializers, and to what its model says of it, against
every way of checking it.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from faults.pairs import NEW, OLD, ROWS, OneModel, put
from support.share_models import example
from support.small_models import saved

import epctx_core as epctx
from epctx_core import InvalidGraph

DEEP = ["lazy", "full"]
MODES = ["once", "head", *DEEP]
KEY = "epctx.initializers"
"""Of the metadata that says what the file holds."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Two models whose compiles differ in their files of initializers, too."""
    return OneModel(tmp_path_factory.mktemp("pairs"))


@pytest.fixture
def folder(pairs, tmp_path):
    """A folder with what the first of them compiles to."""
    inner = tmp_path / "out"
    inner.mkdir()
    put(inner, pairs.states[OLD])
    return inner


def answer(folder, mode):
    options = epctx.SessionOptions()
    options.add_session_config_entry("ep.context_verify", mode)
    with epctx.InferenceSession(folder / "m_ctx.onnx", options) as session:
        return session.run(None, example(ROWS))[0]


def found(folder):
    return [
        (f.code, f.message) for f in epctx.verify_model(folder / "m_ctx.onnx").findings
    ]


def place_of_weight(folder):
    model = onnx.load(folder / "m_ctx.onnx", load_external_data=False)
    (weight,) = [t for t in model.graph.initializer if t.name == "left"]
    entries = {entry.key: entry.value for entry in weight.external_data}
    return int(entries["offset"]), int(entries["length"])


def flip(folder):
    content = bytearray((folder / "m.data").read_bytes())
    content[place_of_weight(folder)[0] + 6] ^= 1
    (folder / "m.data").write_bytes(content)


@pytest.mark.parametrize("mode", MODES)
def test_a_whole_file_loads_in_every_mode(pairs, folder, mode):
    assert np.array_equal(answer(folder, mode), pairs.answers[OLD][0])


def test_a_verification_finds_nothing_wrong_with_a_whole_file(folder):
    assert found(folder) == []


def test_a_load_that_verifies_heads_reads_no_weights_and_so_takes_a_flipped_bit(
    pairs, folder
):
    flip(folder)

    assert not np.array_equal(answer(folder, "head"), pairs.answers[OLD][0])


@pytest.mark.parametrize("mode", DEEP)
def test_a_load_that_verifies_more_refuses_a_flipped_bit(folder, mode):
    flip(folder)

    with pytest.raises(
        InvalidGraph,
        match=r"weights file 'm\.data' is not the one .* have another digest",
    ):
        answer(folder, mode)


def test_a_verification_says_where_the_flipped_bit_is(folder):
    flip(folder)

    ((code, message),) = found(folder)

    offset, length = place_of_weight(folder)
    assert code == "model-invalid"
    assert f"its bytes {offset:,} to {offset + length:,} have another digest" in message


@pytest.mark.parametrize("mode", MODES)
def test_another_compiles_file_is_refused_in_every_mode(pairs, folder, mode):
    (folder / "m.data").write_bytes(pairs.states[NEW]["m.data"])

    with pytest.raises(
        InvalidGraph, match=r"'m\.data' is not the one .* have another digest"
    ):
        answer(folder, mode)
    assert [code for code, _ in found(folder)] == ["model-invalid"]


@pytest.mark.parametrize(
    "change",
    [
        {"segments": None},
        {"segments": []},
        {"segments": [[9, "00"]]},
        {"segments": [[-1, "0" * 64]]},
        {"segments": [[10**4300 - 1, "0" * 64]] * 3},
        {"digest": "0" * 64},
        {"digest": "\ud800"},
        {"bytes": 9},
    ],
)
def test_a_model_that_contradicts_itself_about_the_file_is_refused(folder, change):
    path = folder / "m_ctx.onnx"
    model = onnx.load(path, load_external_data=False)
    entry = next(entry for entry in model.metadata_props if entry.key == KEY)
    entry.value = json.dumps({**json.loads(entry.value), **change})
    saved(model, path)

    with pytest.raises(InvalidGraph, match=r"epctx\.initializers metadata is damaged"):
        answer(folder, "head")
    assert [code for code, _ in found(folder)] == ["model-invalid"]
