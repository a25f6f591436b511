"""Faults of a folder, each found by the name of its stage or file; and its description."""

from __future__ import annotations

import json
import shutil

import epctx_files
import onnx
import pytest
from epctx_genai import (
    BuildSettings,
    build_folder,
    inspect_folder,
    make_page,
    verify_folder,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.pipelines import write_pipeline

from epctx_core.errors import EpctxError, InternalError, InvalidGraph

CONFIG = "genai_config.json"


def find(folder):
    """Return code and subject of each fault."""
    return [(each.code, each.subject) for each in verify_folder(folder).findings]


def rewrite(folder, change):
    """Change the stages of a pipeline, and seal the folder again."""
    config = json.loads((folder / CONFIG).read_text())
    pipeline = config["model"]["decoder"]["pipeline"]
    change({name: facts for entry in pipeline for name, facts in entry.items()})
    (folder / CONFIG).write_text(json.dumps(config))
    epctx_files.seal_folder(folder)


def test_the_binary_of_other_weights_under_the_same_name_is_found(
    built, options, tmp_path
):
    other = build_folder(
        write_pipeline(tmp_path / "other", seed=1),
        tmp_path / "other-qnn",
        options,
        settings=BuildSettings(stages=("prefill", "decode")),
    ).folder
    name = "epctx/decode/model_qnn.bin"
    shutil.copy(other / name, built / name)

    codes = find(built)

    assert ("file-newer", name) in codes or ("file-foreign", name) in codes
    # Without the digest of the folder, too.
    (built / "folder.epctx.json").unlink()
    report = verify_folder(built)
    assert not report.sealed
    assert [each.subject for each in report.findings] == ["decode"]


def test_a_missing_binary_is_named(built):
    (built / "epctx/decode/model_qnn.bin").unlink()

    assert find(built) == [("file-missing", "epctx/decode/model_qnn.bin")]


def test_a_file_that_was_added_is_named(built):
    (built / "vocab.txt").write_text("added")

    assert find(built) == [("file-added", "vocab.txt")]


@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_name_that_a_model_does_not_have_is_found(built, kind):
    rewrite(built, lambda stages: stages["head"][f"{kind}s"].append("nothing"))

    assert find(built) == [(f"{kind}-missing", "head")]


def test_a_stage_for_an_ep_that_its_session_lacks_is_found(built):
    rewrite(built, lambda stages: stages["decode"].pop("session_options"))

    assert find(built) == [("ep-missing", "decode")]


def test_a_folder_without_a_digest_is_checked_by_its_models(source):
    report = verify_folder(source)

    assert (report.ok, report.sealed) == (True, False)


def test_what_flows_between_stages_is_shown(built):
    info = inspect_folder(built)

    assert info.type == "decoder-pipeline"
    assert [stage.runs_for for stage in info.stages] == [
        "both", "prompt", "tokens", "both",
    ]  # fmt: skip
    flows = [(flow.value, flow.source, flow.target) for flow in info.flows]
    assert ("hidden", "embeddings", "prefill") in flows
    assert ("hidden", "embeddings", "decode") in flows
    assert ("state", "prefill", "head") in flows
    assert ("state", "decode", "head") in flows
    assert ("past_key_0", "onnxruntime-genai", "decode") in flows
    decode = info.stages[2]
    size = sum(path.stat().st_size for path in (built / "epctx/decode").iterdir())
    assert decode.bytes == size
    assert decode.providers == ("QNNExecutionProvider",)


def test_a_page_shows_the_stages_and_requests_nothing(built):
    page = make_page(built)

    assert "<td>prefill</td><td>epctx/prefill/model_ctx.onnx</td>" in page
    assert "<td>hidden</td>" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_names_in_a_page_are_text(built):
    model = onnx.load(built / "head.onnx")
    model.graph.output[0].name = model.graph.node[0].output[0] = "<script>x</script>"
    onnx.save(model, built / "head.onnx")
    rewrite(built, lambda stages: stages["head"].update(outputs=["<script>x</script>"]))
    rewrite(built, lambda stages: stages["decode"]["inputs"].append("<script>x"))

    assert "<script>x" not in make_page(built)


def test_a_configuration_that_names_no_model_is_refused(tmp_path):
    (tmp_path / CONFIG).write_text('{"model": {"type": "llama"}}')

    with pytest.raises(InvalidGraph, match="not a configuration of GenAI: it names no"):
        verify_folder(tmp_path)


def test_a_model_that_is_not_there_is_named(source, tmp_path):
    copied = shutil.copytree(source, tmp_path / "source")
    (copied / "head.onnx").unlink()

    with pytest.raises(InvalidGraph, match=r"'head\.onnx', which is missing"):
        verify_folder(copied)


NAMES = [
    "decoder", "embedding", "pipeline", "filename", "inputs", "outputs", "x", "..",
    "session_options", "provider_options", "inherit_session_options",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=JSON)
def test_any_configuration_is_read_or_refused_by_a_typed_error(source, tmp_path, model):
    folder = tmp_path / "any"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(source / "head.onnx", folder / "x")
    (folder / CONFIG).write_text(json.dumps({"model": model}))

    try:
        verify_folder(folder)
        inspect_folder(folder)
    except EpctxError as error:
        assert not isinstance(error, InternalError)


@pytest.mark.parametrize(
    "session",
    [
        [1],
        "x",
        {"provider_options": 7},
        {"provider_options": [1]},
        {"provider_options": {"a": 1}},
        {"provider_options": [{"QNN": 1}]},
    ],
)
def test_session_options_of_another_form_are_refused(built, session):
    config = json.loads((built / CONFIG).read_text())
    config["model"]["decoder"]["session_options"] = session
    (built / CONFIG).write_text(json.dumps(config))

    with pytest.raises(InvalidGraph, match="is not a configuration of GenAI"):
        inspect_folder(built)


def test_an_option_that_its_ep_refuses_is_a_finding(built):
    def change(stages):
        session = stages["decode"]["session_options"]
        session["provider_options"] = [{"QNNExecutionProvider": {"htp_arch": "old"}}]

    rewrite(built, change)

    assert find(built) == [("options-wrong", "decode")]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60))
def test_any_bytes_in_place_of_a_configuration_are_a_typed_error(tmp_path, data):
    (tmp_path / CONFIG).write_bytes(data)

    with pytest.raises(InvalidGraph):
        verify_folder(tmp_path)
