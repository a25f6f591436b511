"""Loads, inspections, verifications and runs where Python has only what it has on
Windows, or on macOS.

Neither system is here: the names that it lacks are taken away in a process of its own,
before epctx is imported.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from sessions.other_systems import SYSTEMS, list_missing
from sessions.path_ep import PathEp
from support.small_models import SHAPE, chain, example, finished, saved, tensor

import epctx_core as epctx

PROGRAM = Path(__file__).with_name("without_posix.py")
POSIX_ONLY = [
    "os.link", "os.register_at_fork", "os.fork", "os.geteuid", "os.O_DIRECTORY",
    "os.O_NOFOLLOW", "fcntl", "resource", "fsync of a folder"
]  # fmt: skip
COMPILED = {
    "beside": ("plain.onnx", "QNN", False),
    "embedded": ("plain.onnx", "QNN", True),
    "path": ("plain.onnx", "PathExecutionProvider", False),
    "lstm_openvino": ("lstm.onnx", "OpenVINO", False),
}
"""Context models: the source, the EP, and whether the payload is in the model."""
MODELS = 3 + len(COMPILED)


def save_with_weights_beside(folder):
    """Write a model whose weights, of many pages, lie in a file of their own."""
    array = np.random.default_rng(1).standard_normal((SHAPE[1], 40_000), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["v"]),
        helper.make_node("ReduceMax", ["v"], ["y"], keepdims=1),
    ]
    weights = [numpy_helper.from_array(array, "w")]
    model = finished(nodes, [tensor("x")], [tensor("y", shape=(1, 1))], weights)
    onnx.save(
        model, folder / "weights.onnx", save_as_external_data=True, location="w.bin"
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory, network):
    """A folder of models made here, each with inputs and this process's outputs."""
    folder = tmp_path_factory.mktemp("models")
    lstm = network("lstm")
    # QNN does not take Erf: the engine runs it.
    saved(chain(["Relu", "Add", "Erf", "Add"]), folder / "plain.onnx")
    shutil.copy(lstm.path, folder / "lstm.onnx")
    save_with_weights_beside(folder)
    registry = epctx.Registry()
    registry.register(PathEp)
    for name, (source, ep, embedded) in COMPILED.items():
        options = epctx.SessionOptions()
        options.add_provider(ep)
        epctx.ModelCompiler(
            options,
            folder / source,
            embed_compiled_data_into_model=embedded,
            registry=registry,
        ).compile_to_file(folder / f"{name}.onnx")
    for path in folder.glob("*.onnx"):
        inputs = lstm.inputs if path.stem.startswith("lstm") else {"x": example()}
        np.savez(path.with_suffix(".npz"), **inputs)
        with epctx.InferenceSession(path, registry=registry) as session:
            np.savez(path.with_suffix(".here.npz"), *session.run(None, inputs))
    return folder


def stored(path):
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def do(task, system, models, folder):
    """Do a task of the program for a copy of the models; return what it stored."""
    shutil.copytree(models, folder, dirs_exist_ok=True)
    missing = json.dumps(list_missing(system))
    subprocess.run(
        [sys.executable, PROGRAM, missing, task, folder], check=True, timeout=240
    )
    return json.loads((folder / f"{task}.json").read_text())


@pytest.mark.parametrize("system", SYSTEMS)
def test_models_load_run_and_are_verified_without_what_a_system_lacks(
    system, models, tmp_path
):
    seen = do("use", system, models, tmp_path)

    present = seen.pop("present")
    assert set(present).isdisjoint(
        {"/proc"} if system == "macOS" else {"/proc", *POSIX_ONLY}
    )
    assert len(seen) == MODELS
    for name, found in seen.items():
        here = epctx.inspect_model(models / f"{name}.onnx")
        assert found["valid"]
        assert found["files"] == sorted(here.required_files)
        assert found["nodes"] == len(here.ep_contexts)
        for number in range(2):
            outputs = stored(tmp_path / f"{name}.{number}.npz")
            expected = stored(models / f"{name}.here.npz")
            assert len(outputs) == len(expected) > 0
            assert all(map(np.array_equal, outputs, expected))
    assert {"beside_qnn.bin"} <= set(seen["beside"]["files"])
    assert seen["embedded"]["nodes"] == seen["beside"]["nodes"] > 0


def test_the_same_program_with_nothing_taken_away_has_all_that_the_tests_take_away(
    models, tmp_path, monkeypatch
):
    """Otherwise nothing would have been taken away above."""
    monkeypatch.setitem(SYSTEMS, "Linux", "linux")

    present = do("type", "Linux", models, tmp_path)["present"]

    assert present == POSIX_ONLY


@pytest.mark.parametrize("system", SYSTEMS)
def test_commands_inspect_verify_and_run_models_without_what_a_system_lacks(
    system, models, tmp_path
):
    codes = do("type", system, models, tmp_path)

    del codes["present"]
    assert len(codes) == 3 * (MODELS - 1)
    assert set(codes.values()) == {0}


def test_without_locks_on_folders_whatever_writes_files_is_refused_before_it_begins(
    models, tmp_path
):
    said = do("compile", "Windows", models, tmp_path)

    del said["present"]
    assert len(said) == 3
    for message in said.values():
        assert message.startswith("Fail: ")
        assert "this system has no locks (flock)" in message
        assert "compile_to_bytes" in message
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".epctx-*"))


def test_without_locks_a_compile_gives_bytes_and_load_or_compile_a_session(
    models, tmp_path
):
    do("compile", "Windows", models, tmp_path)

    expected = stored(models / "embedded.here.npz")
    with epctx.InferenceSession(tmp_path / "bytes.onnx") as session:
        assert np.array_equal(session.run(None, {"x": example()}), expected)
    assert np.array_equal(stored(tmp_path / "cached.0.npz"), expected)


def test_on_macos_a_compile_writes_files_and_loads_them_from_the_cache(
    models, tmp_path
):
    assert do("compile", "macOS", models, tmp_path).keys() == {"present"}

    expected = stored(models / "beside.here.npz")
    with epctx.InferenceSession(tmp_path / "new" / "m.onnx") as session:
        assert np.array_equal(session.run(None, {"x": example()}), expected)
    assert list((tmp_path / "cache").rglob("*.onnx"))
