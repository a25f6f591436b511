"""`epctx seal` and `epctx verify` of a folder."""

from __future__ import annotations

import shutil

import pytest
from support.folders import REAL


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a context model of a vendor, its binary, and settings."""
    folder = tmp_path / "phi"
    folder.mkdir()
    for name in ("share1_ctx.onnx", "share1_qnn.bin"):
        shutil.copy(REAL / name, folder)
    (folder / "genai_config.json").write_text("{}")
    return folder


def test_a_folder_is_sealed_and_right(epctx, folder):
    said = epctx("seal", folder, "--purpose", "phi for SM8650")

    assert said.code == 0
    assert f"wrote {folder / 'folder.epctx.json'}" in said.out
    assert "genai_config.json" in said.out
    verified = epctx("verify", folder)
    assert verified.code == 0
    assert f"{folder}: 3 files" in verified.out
    assert "phi for SM8650" in verified.out
    assert verified.out.endswith("ok: nothing found\n")


def test_each_wrong_file_of_a_folder_is_listed(epctx, folder):
    epctx("seal", folder)
    (folder / "genai_config.json").unlink()
    (folder / "other.bin").write_bytes(b"x")

    said = epctx("verify", folder)

    assert said.code == 1
    assert "error missing\n  genai_config.json: it is not in the folder.\n" in said.out
    assert "error added\n  other.bin: " in said.out
    assert said.out.endswith("faulty: 2 errors\n")
    assert epctx("verify", folder, "--json").json["findings"] == [
        {"name": "genai_config.json", "problem": "missing"},
        {"name": "other.bin", "problem": "added"},
    ]


def test_a_folder_without_a_digest_is_refused_with_the_way_to_one(epctx, folder):
    said = epctx("verify", folder)

    assert said.code == 2
    assert "folder.epctx.json" in said.err
    assert "epctx seal" in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("seal", "--beside"),
        ("seal", "--force"),
        ("verify", "--strict"),
        ("verify", "--ep", "QNN"),
    ],
)
def test_an_option_for_models_is_refused_for_a_folder(epctx, folder, arguments):
    verb, *options = arguments
    said = epctx(verb, folder, *options)

    assert said.code == 2
    assert "are for models, not folders" in said.err


def test_options_for_folders_are_refused_for_a_model(epctx, folder):
    model = folder / "share1_ctx.onnx"

    for said in (
        epctx("verify", model, "--public-key", "key.pub"),
        epctx("seal", model, "--purpose", "x"),
    ):
        assert said.code == 2
        assert "for folders, not models" in said.err


@pytest.mark.parametrize("content", [None, "no key"])
def test_what_is_no_public_key_is_refused(epctx, folder, content):
    pytest.importorskip("model_signing", reason="needs epctx-files[signing]")
    key = folder.parent / "key.pub"
    if content is not None:
        key.write_text(content)
    epctx("seal", folder)

    said = epctx("verify", folder, "--public-key", key)

    assert said.code == 2
    assert "is not a public key" in said.err
