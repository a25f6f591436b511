"""Invariants on real networks: nothing of the machine, same bytes, links into caches,
onnxruntime's eye.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import onnx
import pytest
from onnx import helper
from support.agreement import TOLERANCE, worst_relative_error
from support.engine_eps import Alpha, Beta
from support.onnxruntime_results import onnxruntime_says
from support.small_models import SHAPE, finished, saved, snapshot, tensor

import epctx_core as epctx

NETWORKS = ["bert", "lstm", "resnet"]
MODES = [pytest.param(False, id="file"), pytest.param(True, id="embedded")]


def with_qnn():
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    return options


# --- 4, 5: nothing of the machine, the same bytes anywhere ----------------------------


@pytest.mark.parametrize("embedded", MODES)
@pytest.mark.parametrize("name", NETWORKS)
def test_no_byte_of_the_output_tells_where_it_was_made(
    network, tmp_path, name, embedded
):
    source = network(name)
    out = tmp_path / "output-folder"
    out.mkdir()

    epctx.ModelCompiler(with_qnn(), source.path, embedded).compile_to_file(
        out / "net_ctx.onnx"
    )

    tells = [
        tmp_path,
        source.path.parent,
        Path.home(),
        Path(tempfile.gettempdir()),
        Path(epctx.__file__).parent,
    ]
    for file, content in snapshot(out).items():
        for place in tells:
            assert f"{place}/".encode() not in content, file
        assert b"output-folder" not in content, file


@pytest.mark.parametrize("embedded", MODES)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_work_gives_the_same_bytes_in_any_folder(
    network, tmp_path, monkeypatch, name, embedded
):
    made = []
    for place in ("one", "another, deeper/down"):
        source = network(name)
        folder = tmp_path / place
        folder.mkdir(parents=True)
        moved = shutil.move(source.path, folder / "net.onnx")
        monkeypatch.chdir(folder)
        given = moved if place == "one" else "net.onnx"
        epctx.ModelCompiler(with_qnn(), given, embedded).compile_to_file()
        made.append(snapshot(folder))

    assert made[0] == made[1]
    assert len(made[0]) == (2 if embedded else 3)


# --- 6: models that are links into a cache --------------------------------------------


def as_cache(folder, files):
    """Lay files out as a hub's cache does: blobs named by digest, a snapshot of links
    to them.
    """
    blobs, snapshot_folder = folder / "blobs", folder / "snapshots" / "1a2b"
    blobs.mkdir(parents=True)
    snapshot_folder.mkdir(parents=True)
    for number, (name, content) in enumerate(files.items()):
        (blobs / f"blob{number}").write_bytes(content)
        (snapshot_folder / name).symlink_to(Path("../../blobs") / f"blob{number}")
    return snapshot_folder


def test_a_context_model_whose_files_are_links_into_a_cache_loads(network, tmp_path):
    source = network("lstm")
    built = tmp_path / "built"
    built.mkdir()
    epctx.ModelCompiler(with_qnn(), source.path).compile_to_file(built / "net_ctx.onnx")

    cached = as_cache(tmp_path / "hub", snapshot(built))
    with epctx.InferenceSession(cached / "net_ctx.onnx") as session:
        outputs = session.run(None, source.inputs)

    assert len(list(cached.iterdir())) == 2
    assert worst_relative_error(outputs, source.reference) <= TOLERANCE


def test_a_source_whose_model_and_weights_are_links_into_a_cache_compiles(
    network, tmp_path
):
    source = network("resnet")
    onnx.save(
        onnx.load(source.path),
        source.path,
        save_as_external_data=True,
        location="net.data",
        size_threshold=1024,
    )
    cached = as_cache(tmp_path / "hub", snapshot(source.path.parent))

    report = epctx.ModelCompiler(
        with_qnn(), cached / source.path.name
    ).compile_to_file()
    shutil.rmtree(tmp_path / "hub" / "blobs")
    with epctx.InferenceSession(report.output) as session:
        outputs = session.run(None, source.inputs)

    assert worst_relative_error(outputs, source.reference) <= TOLERANCE


# --- 10: onnxruntime's eye ------------------------------------------------------------


@pytest.mark.parametrize("embedded", MODES)
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_resolves_a_context_model_until_it_looks_for_an_ep(
    network, tmp_path, name, embedded
):
    written = tmp_path / "net_ctx.onnx"
    epctx.ModelCompiler(with_qnn(), network(name).path, embedded).compile_to_file(
        written
    )

    assert "is not compatible with any execution provider" in onnxruntime_says(written)
    onnx.checker.check_model(onnx.load(written))


# --- the manifest ---------------------------------------------------------------------


def test_the_manifest_says_who_made_the_context_and_of_what(tmp_path):
    registry = epctx.Registry(entry_points=False)
    options = epctx.SessionOptions()
    for ep in (Alpha, Beta):
        registry.register(ep)
        options.add_provider(ep.name)
    nodes = [
        helper.make_node("Relu", ["x"], ["v"], "a"),
        helper.make_node("Neg", ["v"], ["y"], "b"),
    ]
    source = saved(
        finished(nodes, [tensor("x", shape=SHAPE)], [tensor("y")]), tmp_path / "m.onnx"
    )

    report = epctx.ModelCompiler(options, source, registry=registry).compile_to_file()

    (text,) = [
        p.value
        for p in onnx.load(report.output).metadata_props
        if p.key == "epctx.manifest"
    ]
    manifest = json.loads(text)
    assert set(manifest["providers"]) == {
        "AlphaExecutionProvider",
        "BetaExecutionProvider",
    }
    assert [p["name"] for p in manifest["payloads"]] == ["m_alpha.bin", "m_beta_0.bin"]
    for payload in manifest["payloads"]:
        assert payload["bytes"] == (tmp_path / payload["name"]).stat().st_size
