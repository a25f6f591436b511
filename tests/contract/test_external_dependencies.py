"""Files that a context model needs besides its own (`external_dependencies`): true
whoever writes it again.
"""

from __future__ import annotations

import onnx
import pytest
from support.sim_eps import OPENVINO, QNN
from support.small_models import chain, saved
from support.weightless import EXTERNAL_ONLY, Harness

import epctx_core as epctx

KEY = "external_dependencies"
BINARY, WEIGHTS, SOURCE = "ep_context_binary", "external_weights", "source_model"


def options(*eps, **entries):
    result = epctx.SessionOptions()
    for ep in eps:
        result.add_provider(ep)
    for key, value in entries.items():
        result.add_session_config_entry(key.replace("__", "."), str(value))
    return result


@pytest.fixture
def source(tmp_path):
    """A model whose second weight is left to the CPU EP, as QNN has no such
    operator.
    """
    model = chain(["Relu", "Add", "Erf", "Add"])
    model.graph.node[3].op_type = "Mod"
    model.graph.node[3].attribute.append(onnx.helper.make_attribute("fmod", 1))
    return saved(model, tmp_path / "m.onnx")


def said(model):
    proto = (
        onnx.load_from_string(model)
        if isinstance(model, bytes)
        else onnx.load(model, load_external_data=False)
    )
    return {entry.key: entry.value for entry in proto.metadata_props}.get(KEY)


def compiled(source, output, *, embed=False, weights=None, **entries):
    compiler = epctx.ModelCompiler(
        options(QNN, **entries),
        source,
        embed,
        external_initializers_file_path=weights,
        external_initializers_size_threshold=0,
    )
    compiler.compile_to_file(output)
    return output


def expect(path, *words):
    assert said(path) == ";".join(words)
    assert epctx.inspect_model(path).as_dict()[KEY] == list(words)
    assert [
        f for f in epctx.verify_model(path).findings if f.code == "dependencies-wrong"
    ] == []


def test_each_way_of_writing_says_what_it_needs(source, tmp_path):
    expect(compiled(source, tmp_path / "file.onnx"), BINARY)
    expect(compiled(source, tmp_path / "embedded.onnx", embed=True))
    expect(compiled(source, tmp_path / "both.onnx", weights="w.bin"), WEIGHTS, BINARY)
    expect(
        compiled(source, tmp_path / "weights.onnx", embed=True, weights="v.bin"),
        WEIGHTS,
    )


def test_what_is_written_again_says_what_it_needs_now(source, tmp_path):
    first = compiled(source, tmp_path / "first.onnx", weights="w.bin")

    again = compiled(first, tmp_path / "again.onnx", embed=True)
    back = compiled(again, tmp_path / "back.onnx")

    expect(again)
    expect(back, BINARY)


def test_sessions_share_groups_and_callbacks_say_it_too(source, tmp_path):
    epctx.InferenceSession(source, options(QNN, ep__context_enable=1)).close()
    with epctx.ShareGroup(tmp_path) as group:
        group.compile(source, options(QNN), name="shared")
    compiler = epctx.ModelCompiler(options(QNN), source)
    compiler.set_ep_context_data_write_func(lambda _name, _data: None)

    expect(tmp_path / "m_ctx.onnx", BINARY)
    expect(tmp_path / "shared_ctx.onnx", BINARY)
    assert said(compiler.compile_to_bytes()) == BINARY


@pytest.mark.parametrize("mode", [2, EXTERNAL_ONLY])
def test_weightless_models_need_their_source_also_when_written_again(mode, tmp_path):
    harness = Harness(tmp_path)
    harness.externalise()
    path = harness.compile(mode)
    expect(path, SOURCE, BINARY)

    epctx.ModelCompiler(options(OPENVINO), path, True).compile_to_file(
        tmp_path / "again.onnx"
    )

    expect(tmp_path / "again.onnx", SOURCE)


def test_a_model_without_compiled_nodes_says_nothing(source, tmp_path):
    epctx.ModelCompiler(options(), source).compile_to_file(tmp_path / "plain.onnx")

    assert said(tmp_path / "plain.onnx") is None
    assert epctx.inspect_model(tmp_path / "plain.onnx").external_dependencies is None


@pytest.mark.parametrize(
    "words", ["", "ep_context_binary;external_weights", "external_weights"]
)
def test_a_verification_finds_what_is_false(words, source, tmp_path):
    path = compiled(source, tmp_path / "c.onnx")
    model = onnx.load(path)
    (entry,) = [entry for entry in model.metadata_props if entry.key == KEY]
    entry.value = words
    onnx.save(model, path)

    report = epctx.verify_model(path)

    assert report.ok
    assert {f.code for f in report.findings} == {"dependencies-wrong"}


def test_a_model_that_does_not_say_it_loads_and_verifies(source, tmp_path):
    path = compiled(source, tmp_path / "c.onnx")
    model = onnx.load(path)
    kept = [entry for entry in model.metadata_props if entry.key != KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, path)

    assert epctx.verify_model(path).findings == ()
    epctx.InferenceSession(path).close()
