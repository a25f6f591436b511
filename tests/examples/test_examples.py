"""Each file of examples/ does in a process of its own what its first lines say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from installed import install_distribution

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run_example(name, *arguments, path=(), code=0):
    """Run an example with further folders to import from; return what it prints."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
    )

    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_session_options_compile_embed_and_load_and_a_wrong_one_is_refused(tmp_path):
    said = run_example("session_options.py", tmp_path).splitlines()

    assert said[0] == "wrote pictures_ctx.onnx"
    assert "  CPUExecutionProvider: 0 nodes" in said
    assert "  skipped AcmeNpu: no installed plugin provides" in "\n".join(said)
    assert said[-2] == "loaded and run: (1, 10)"
    assert said[-1].endswith("Did you mean 'ep.context_embed_mode'?")
    assert not list(tmp_path.glob("*.bin"))


def test_networks_of_a_share_group_have_one_binary_and_give_right_results(tmp_path):
    said = run_example("share_group.py", tmp_path)

    (binary,) = tmp_path.rglob("*.bin")
    assert {path.name for path in binary.parent.iterdir()} == {
        "animals_qnn.bin", "animals_ctx.onnx", "plants_ctx.onnx",
    }  # fmt: skip
    saved = re.search(r"would have ([\d,]+) bytes more", said)[1]
    # The shared layer has 512 * 512 floats.
    assert int(saved.replace(",", "")) >= 512 * 512 * 4
    assert said.count("results agree") == 2


def test_batches_run_in_the_smallest_compiled_size_that_fits(tmp_path):
    said = run_example("dynamic_shapes.py", tmp_path).splitlines()

    assert said[1:] == [
        "1 pictures in the model for 1: results agree",
        "3 pictures in the model for 4: results agree",
        "11 pictures in the model for 16: results agree",
    ]
    assert len(list(tmp_path.rglob("*.bin"))) == 1


def test_a_cancelled_compile_leaves_the_files_of_the_one_before(tmp_path):
    first, second = run_example("progress_and_cancel.py", tmp_path).split("again")

    assert "  compile: 1 of 1" in first
    assert "  write: 1 of 1" in first
    assert "  write" not in second
    assert second.endswith("cancelled; pictures_ctx.onnx is as before\n")


def test_without_an_ep_of_a_vendor_the_example_says_what_to_install(tmp_path):
    said = run_example("vendor_ep.py", tmp_path)

    assert "pip install ./plugins/epctx-openvino" in said


def test_an_installed_ep_of_a_vendor_compiles_and_runs(tmp_path):
    pytest.importorskip("openvino")
    entries = {"OpenVINOExecutionProvider": "epctx_openvino:OpenVINOExecutionProvider"}
    installed = tmp_path / "installed"
    install_distribution(
        installed,
        "epctx-openvino",
        {"epctx.execution_providers": entries},
        version="0.1.0",
    )

    said = run_example(
        "vendor_ep.py",
        tmp_path,
        path=[installed, ROOT / "plugins" / "epctx-openvino" / "src"],
    )

    assert "epctx-openvino:OpenVINOExecutionProvider: results agree" in said
    assert re.search(r"OpenVINOExecutionProvider [1-9]\d* nodes", said)


@pytest.fixture
def model(tmp_path):
    """Return a function that writes the model of a build anew, with arguments of
    `write_network`.
    """
    path = tmp_path / "model.onnx"

    def write(arguments=""):
        program = f"import pathlib, network; network.write_network(pathlib.Path({str(path)!r}){arguments})"
        subprocess.run([sys.executable, "-c", program], check=True, cwd=EXAMPLES)
        return path

    return write


def test_the_gate_lets_a_build_pass_until_the_ep_loses_a_node_of_the_model(
    model, tmp_path
):
    baseline = tmp_path / "baseline.json"

    first = run_example("ci_gate.py", model(), baseline)
    second = run_example("ci_gate.py", model(), baseline)
    third = run_example("ci_gate.py", model(", wrap=True"), baseline, code=1)

    assert "wrote baseline.json: 0 nodes" in first
    assert (
        second == "ok: QNN takes what it took of model.onnx, and the result verifies\n"
    )
    assert third.startswith("FAILED: QNN does not take 'wrap' any more: ")
    assert "Mod" in third
    assert json.loads(baseline.read_text()) == []


def test_the_gate_passes_a_model_whose_refused_nodes_are_in_the_baseline(
    model, tmp_path
):
    baseline = tmp_path / "baseline.json"

    run_example("ci_gate.py", model(", wrap=True"), baseline)
    run_example("ci_gate.py", model(", wrap=True"), baseline)

    assert json.loads(baseline.read_text()) == ["wrap"]


def test_the_gate_ends_as_the_command_does_that_cannot_read_the_model(tmp_path):
    run_example("ci_gate.py", tmp_path / "no.onnx", tmp_path / "b.json", code=2)


@pytest.mark.parametrize("name", ["ci_gate.py", "keep_onnxruntime.py", "network.py"])
def test_an_example_without_its_arguments_ends_with_its_usage(name):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert f"python examples/{name} " in done.stderr
    assert "Traceback" not in done.stderr


def test_each_command_line_of_the_readme_is_one_that_its_example_takes(tmp_path):
    text = (EXAMPLES / "README.md").read_text("utf-8")
    lines = re.findall(r"^python examples/(\S+\.py)(.*)$", text, re.MULTILINE)

    for name, arguments in lines:
        done = subprocess.run(
            [sys.executable, EXAMPLES / name, *arguments.split()],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
    assert {"ci_gate.py", "keep_onnxruntime.py"} <= {name for name, _ in lines}


def test_each_example_is_in_the_table_of_the_readme_and_has_a_first_sentence():
    text = (EXAMPLES / "README.md").read_text("utf-8")
    named = re.findall(r"^\| \[`(\w+\.py)`\]\((\w+\.py)\) \|", text, re.MULTILINE)

    assert sorted(named) == sorted((p.name, p.name) for p in EXAMPLES.glob("*.py"))
