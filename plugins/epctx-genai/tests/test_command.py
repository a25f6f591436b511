"""`epctx genai` as it is typed, and loading where onnxruntime-genai is not installed."""

from __future__ import annotations

import importlib.util

import pytest
from epctx_genai import bench_folders, load_folder
from support.signatures import by_key, command, keys  # noqa: F401 - a fixture

from epctx_core.errors import EpctxError, InvalidArgument, InvalidGraph, PackageMissing

NEEDS_NO_GENAI = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_genai") is not None,
    reason="onnxruntime-genai is installed",
)


def test_a_folder_is_built_inspected_verified_and_shown(epctx, source, tmp_path):
    output = tmp_path / "out"
    built = epctx("genai", "build", source, "-o", output, "--ep", "QNN")
    shown = epctx("genai", "inspect", output)
    verified = epctx("genai", "verify", output)
    page = epctx("genai", "report", output, "-o", tmp_path / "page.html")

    assert [each.code for each in (built, shown, verified, page)] == [0] * 4
    assert "written and sealed" in built.out
    assert "imulated" in built.out + built.err
    assert "onnxruntime-genai" in shown.out
    assert verified.out.splitlines()[-1] == "ok: nothing found"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_results_are_json_on_demand(epctx, built):
    (built / "tokenizer.json").write_text("other")

    verified = epctx("genai", "verify", built, "--json")
    shown = epctx("genai", "inspect", built, "--json")

    assert verified.code == 1
    assert verified.json["ok"] is False
    assert [each["subject"] for each in verified.json["findings"]] == ["tokenizer.json"]
    assert [stage["name"] for stage in shown.json["stages"]] == [
        "embeddings", "prefill", "decode", "head",
    ]  # fmt: skip


def test_the_output_is_beside_the_source_by_default(epctx, source, tmp_path):
    link = tmp_path / "tiny"
    link.symlink_to(source)

    said = epctx("genai", "build", link, "--ep", "QNN", "--stage", "decode", "--share")

    assert said.code == 0, said.err
    assert (tmp_path / "tiny-ctx/epctx/decode/model_ctx.onnx").is_file()


def test_wrong_use_says_what_to_do(epctx, source, tmp_path):
    nothing = epctx("genai", "build", source, "-o", tmp_path / "out")
    unknown = epctx("genai", "polish", source)

    assert nothing.code == 2
    assert "--ep" in nothing.err
    assert unknown.code == 2


@NEEDS_NO_GENAI
def test_without_genai_loading_and_measuring_name_the_package(built):
    for use in (load_folder, lambda folder: bench_folders([folder])):
        with pytest.raises(PackageMissing, match="needs the package onnxruntime-genai"):
            use(built)


def load_signed(folder, key):
    """Load a folder only if it is as it was signed; return the error."""
    with pytest.raises(EpctxError) as caught:
        load_folder(folder, verifier=by_key(key))
    return caught.value


@NEEDS_NO_GENAI
def test_a_signed_folder_is_loaded_and_no_other(built, keys):  # noqa: F811
    private_key, public_key = keys
    assert command("sign", built, private_key=private_key).returncode == 0
    # GenAI would load it.
    assert isinstance(load_signed(built, public_key), PackageMissing)

    (built / "tokenizer.json").write_text("other")
    changed = load_signed(built, public_key)
    (built / "model.sig").unlink()
    unsigned = load_signed(built, public_key)

    assert isinstance(changed, InvalidGraph)
    assert "tokenizer.json" in changed.message
    assert isinstance(unsigned, InvalidArgument)
