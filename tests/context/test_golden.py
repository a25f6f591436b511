"""Models of earlier versions are read, and this version writes the same bytes as
ever.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil

import numpy as np
import onnx
import pytest
from context import make_golden
from support.folders import ROOT, TESTS
from support.small_models import snapshot

import epctx_core as epctx

GOLDEN = TESTS / "data/golden"
CHANGELOG = ROOT / "CHANGELOG.md"
VERSIONS = sorted(
    path.name for path in GOLDEN.iterdir() if re.fullmatch(r"\d+\.\d+", path.name)
)
CONTEXT_MODELS = sorted(GOLDEN.glob("[0-9]*/*/*_ctx.onnx"))
RELEASED: dict[str, str] = {}
"""Version folder to its digest, from the release on."""


def shown(path):
    return path.relative_to(GOLDEN).with_suffix("").as_posix()


def source_of(path):
    return path.with_name(path.name.replace("_ctx", ""))


def sources_of_nodes(path):
    return {
        attribute.s.decode()
        for node in onnx.load(path).graph.node
        if node.op_type == "EPContext"
        for attribute in node.attribute
        if attribute.name == "source"
    }


def digest(folder):
    sha = hashlib.sha256()
    for name, content in snapshot(folder).items():
        sha.update(f"{name} {len(content)}\n".encode() + content)
    return sha.hexdigest()


@pytest.mark.parametrize("path", CONTEXT_MODELS, ids=shown)
def test_a_context_model_of_any_version_loads_and_gives_the_right_results(path):
    expected = np.load(source_of(path).with_suffix(".npy"))

    with epctx.InferenceSession(path) as session:
        eps = session.get_providers()
        (result,) = session.run(None, {"x": make_golden.example(source_of(path))})

    assert set(eps) == sources_of_nodes(path) | {"CPUExecutionProvider"}
    np.testing.assert_allclose(result, expected, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("path", CONTEXT_MODELS, ids=shown)
def test_a_context_model_of_any_version_passes_verification(path):
    report = epctx.verify_model(path)

    assert report.ok, report
    for ep in sources_of_nodes(path):
        assert epctx.get_model_compatibility(
            path, ep
        ) <= epctx.CompiledModelCompatibility(2)


@pytest.mark.parametrize(
    "path", [p for p in CONTEXT_MODELS if "weightless" not in p.parent.name], ids=shown
)
def test_a_context_model_of_any_version_can_be_compiled_again(path, tmp_path):
    report = epctx.ModelCompiler(epctx.SessionOptions(), path, True).compile_to_file(
        tmp_path / "again_ctx.onnx"
    )
    with epctx.InferenceSession(report.output) as session:
        (result,) = session.run(None, {"x": make_golden.example(source_of(path))})

    assert report.kept_nodes
    np.testing.assert_allclose(
        result, np.load(source_of(path).with_suffix(".npy")), rtol=2e-2, atol=1e-2
    )


def test_what_a_later_version_says_of_payloads_is_left_out_with_a_warning(
    tmp_path, caplog
):
    shutil.copytree(make_golden.FOLDER / "qnn_file", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model_ctx.onnx"
    model = onnx.load(path)
    (manifest,) = [
        entry for entry in model.metadata_props if entry.key == "epctx.manifest"
    ]
    manifest.value = json.dumps({**json.loads(manifest.value), "version": 2})
    onnx.save(model, path)

    with epctx.InferenceSession(path) as session:
        (result,) = session.run(None, {"x": make_golden.example(source_of(path))})

    np.testing.assert_allclose(
        result, np.load(tmp_path / "model.npy"), rtol=2e-2, atol=1e-2
    )
    assert "has the version 2, and this epctx reads 1" in caplog.text


@pytest.mark.parametrize("case", make_golden.CASES)
def test_this_version_writes_what_it_wrote(case, tmp_path):
    kept = make_golden.FOLDER / case
    make_golden.CASES[case](tmp_path)

    written = {
        name: content
        for name, content in snapshot(kept).items()
        if not name.endswith(".npy")
    }
    different = [
        name
        for name, content in snapshot(tmp_path).items()
        if written.get(name) != content
    ]
    assert snapshot(tmp_path).keys() == written.keys()
    assert different == [], (
        "if that is meant: run tests/context/make_golden.py, and say in CHANGELOG.md what "
        "changed"
    )


def test_every_version_has_its_folder_with_every_case():
    assert make_golden.FOLDER.name in VERSIONS
    assert {path.name for path in make_golden.FOLDER.iterdir() if path.is_dir()} == set(
        make_golden.CASES
    )


def test_folders_of_released_versions_never_change():
    dated = re.findall(
        r"^## \[(\d+\.\d+)\.\d+\] - \d{4}-", CHANGELOG.read_text("utf-8"), re.MULTILINE
    )

    assert {name: digest(GOLDEN / name) for name in RELEASED} == RELEASED
    assert set(dated) & set(VERSIONS) == set(RELEASED), (
        "a release adds its folder's digest to RELEASED"
    )


def test_golden_files_are_small_enough_to_carry():
    sizes = [
        path.stat().st_size
        for path in GOLDEN.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]

    assert sum(sizes) < 300_000 * len(VERSIONS)
