"""Entries 45, 46, 64 and 65, and the options that no entry names: paths, mapping,
verification.
"""

from __future__ import annotations

import logging
import shutil

import numpy as np
import onnx
import pytest
from support.engine_eps import Alpha, scripted
from support.routes import by_compiler, by_session, refused
from support.small_models import chain, example, saved, snapshot
from support.validating_eps import compiled, options_with, registry_with, session

import epctx_core as epctx
from epctx_core.errors import InvalidArgument, InvalidGraph

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    return saved(chain(["Relu", "Add", "Sigmoid", "Add"]), folder / "m.onnx")


@pytest.fixture
def model(source):
    """A context model and its binary, without the source."""
    model = compiled(source, Alpha)
    source.unlink()
    return model


# --- where a context model is written -------------------------------------------------


FOLDERS = ["out/", "out", "there", ".onnx"]


@pytest.mark.entry(45)
@pytest.mark.parametrize(
    ("route", "name"),
    [
        *((route, name) for route in (by_compiler, by_session) for name in FOLDERS),
        (by_compiler, ""),
    ],
)
def test_an_output_path_that_means_a_folder_is_refused_before_the_ep_sees_the_model(
    route, name, source
):
    (source.parent / "there").mkdir()
    ep = scripted()

    with refused(
        InvalidArgument, "should not point to a folder", folder=source.parent
    ) as caught:
        route(ep, source, f"{source.parent}/{name}" if name else "")

    assert not {"get_capability", "compile"} & set(ep.calls)
    assert "folder/model_ctx.onnx" in caught.value.hint


@pytest.mark.entry(46)
def test_a_model_from_bytes_needs_a_path_for_its_context_model(source):
    data = source.read_bytes()

    with refused(
        InvalidArgument,
        "given as bytes, so its context model has no name",
        folder=source.parent,
    ) as caught:
        session(data, Alpha, ep__context_enable=1)
    assert "ep.context_file_path" in caught.value.hint
    with refused(
        InvalidArgument,
        "given as bytes, so its context model has no name",
        folder=source.parent,
    ):
        epctx.ModelCompiler(
            options_with(Alpha), data, registry=registry_with(Alpha)
        ).compile_to_file()

    output = source.with_name("named_ctx.onnx")
    session(data, Alpha, ep__context_enable=1, ep__context_file_path=output).close()
    assert sorted(snapshot(source.parent)) == [
        "m.onnx",
        "named_alpha.bin",
        "named_ctx.onnx",
    ]


# --- where a context model's binaries are looked for ----------------------------------


def result(model, **entries):
    with session(model, Alpha, **entries) as opened:
        return opened.run(None, {"x": example()})[0]


@pytest.mark.entry(18, 63)
def test_a_model_from_bytes_needs_the_option_for_its_binary_and_a_file_does_not(
    model, monkeypatch
):
    monkeypatch.chdir(model.parent)

    with refused(InvalidArgument, "given as bytes.*'m_alpha.bin'") as caught:
        session(model.read_bytes(), Alpha)

    assert "'ep.context_file_path'" in caught.value.hint
    found = result(
        model.read_bytes(), ep__context_file_path=model.parent / "anything.onnx"
    )
    assert np.array_equal(found, result(model))


@pytest.mark.entry(63, 64)
def test_the_option_wins_over_the_models_own_folder(model, tmp_path):
    other_folder = tmp_path / "elsewhere"
    other_folder.mkdir()

    with refused(
        InvalidGraph, "the context binary 'm_alpha.bin', which is missing"
    ) as caught:
        session(model, Alpha, ep__context_file_path=other_folder / "m_ctx.onnx")

    assert str(other_folder) in caught.value.hint
    expected = result(model)
    shutil.move(model.parent / "m_alpha.bin", other_folder)
    # Only the folder counts: there is no such file.
    for path in (other_folder / "anything.onnx", f"{other_folder}/", other_folder):
        for given in (model, model.read_bytes()):
            assert np.array_equal(result(given, ep__context_file_path=path), expected)


@pytest.mark.entry(65)
def test_the_folder_of_weights_never_says_where_context_binaries_are(model, tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    folder = {FOLDER_OPTION.replace(".", "__"): weights}

    with refused(
        InvalidArgument, "given as bytes.*'m_alpha.bin'", folder=tmp_path
    ) as caught:
        session(model.read_bytes(), Alpha, **folder)
    assert "'ep.context_file_path'" in caught.value.hint
    assert f"'{FOLDER_OPTION}'" in caught.value.hint

    expected = result(model)
    assert np.array_equal(result(model, **folder), expected)
    assert np.array_equal(
        result(model.read_bytes(), ep__context_file_path=model, **folder), expected
    )


# --- sharing: more in test_sharing_groups.py ------------------------------------------


def test_an_ep_that_knows_no_share_groups_loads_in_one(model):
    assert np.array_equal(result(model, ep__share_ep_contexts=1), result(model))


def test_the_end_of_a_group_without_a_group_is_refused(source, model):
    with refused(InvalidArgument, "without ep.share_ep_contexts=1"):
        session(model, Alpha, ep__stop_share_ep_contexts=1)
    with refused(InvalidArgument, "without ep.share_ep_contexts=1"):
        epctx.ModelCompiler(options_with(Alpha, ep__stop_share_ep_contexts=1), source)


# --- mapping and verification ---------------------------------------------------------


@pytest.mark.parametrize("mapping", ["0", "1"])
@pytest.mark.parametrize("verify", ["once", "head", "lazy", "full"])
def test_a_sound_model_runs_however_its_binary_is_taken(
    source, mapping, verify, caplog
):
    expected = result(source)
    model = compiled(source, Alpha)

    with caplog.at_level(logging.WARNING, "epctx"):
        found = result(
            model, ep__context_file_mapping=mapping, ep__context_verify=verify
        )

    assert np.array_equal(found, expected)
    assert caplog.messages == []


def altered_weight(folder):
    """Compile a model with a large weight, and change a byte in its middle; return the
    model.
    """
    weight = np.ones((1024, 1024), dtype=np.float32)
    proto = chain(["Relu"])
    proto.graph.node.append(
        onnx.helper.make_node("MatMul", ["y", "big"], ["z"], name="m")
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "big"))
    for value, name in ((proto.graph.input[0], "x"), (proto.graph.output[0], "z")):
        value.CopyFrom(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 1024])
        )
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    model = folder / "big_ctx.onnx"
    epctx.ModelCompiler(options, saved(proto, folder / "big.onnx")).compile_to_file(
        model
    )
    binary = folder / "big_qnn.bin"
    data = bytearray(binary.read_bytes())
    data[len(data) // 2] ^= 1
    binary.write_bytes(data)
    return model


@pytest.mark.parametrize(
    "entries",
    [
        {},
        {"ep.context_verify": "lazy"},
        {"ep.context_verify": "full"},
        {"ep.context_file_mapping": "0"},
    ],
    ids=str,
)
def test_one_changed_bit_in_a_weight_is_found_unless_the_host_wants_heads_only(
    tmp_path, entries
):
    model = altered_weight(tmp_path)
    options = epctx.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)

    with pytest.raises(
        InvalidGraph,
        match=r"'big_qnn\.bin' is not the one that the model was written with",
    ):
        epctx.InferenceSession(model, options)
    options = epctx.SessionOptions()
    options.add_session_config_entry("ep.context_verify", "head")
    epctx.InferenceSession(model, options).close()


def test_verifying_a_model_without_digests_is_warned_about(model, caplog):
    proto = onnx.load(model)
    (entry,) = [e for e in proto.metadata_props if e.key == "epctx.manifest"]
    proto.metadata_props.remove(entry)
    saved(proto, model)

    with caplog.at_level(logging.WARNING, "epctx"):
        result(model, ep__context_verify="full")

    assert caplog.messages == [
        "the payload 'm_alpha.bin' is not checked: no manifest lists it."
    ]
