"""Each file of examples/ does in a process of its own what its first lines say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from support.folders import ROOT
from support.installed import install_distribution

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


@pytest.fixture
def run_workflow(tmp_path):
    """Run the step of gate.yml that has a name, in the folder of the model, with further
    options.
    """
    workflow = yaml.safe_load((EXAMPLES / "gate.yml").read_text("utf-8"))
    steps = {step.get("name"): step for step in workflow["jobs"]["gate"]["steps"]}
    command = shlex.split(steps["Gate"]["run"])
    assert command[0] == "epctx"

    def run(*options):
        return subprocess.run(
            [sys.executable, "-m", "epctx_core", *command[1:], *options],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )

    return run


def test_the_workflow_fails_a_build_in_which_the_ep_loses_a_node_of_the_model(
    model, run_workflow, tmp_path
):
    model()
    written = run_workflow("--update")
    passed = run_workflow()
    model(", wrap=True")
    failed = run_workflow()

    assert (written.returncode, passed.returncode, failed.returncode) == (0, 0, 1)
    assert "regressed: nodes of CPUExecutionProvider: 1, 0 in the" in failed.stdout
    comment = (tmp_path / "reports" / "gate.md").read_text()
    assert comment.startswith("### epctx gate: failed\n")


def test_the_workflow_uploads_the_reports_that_its_gate_writes(
    model, run_workflow, tmp_path
):
    model()
    run_workflow("--update")
    text = (EXAMPLES / "gate.yml").read_text("utf-8")

    written = {f"reports/{path.name}" for path in (tmp_path / "reports").iterdir()}

    assert {"reports/gate.md", "reports/gate.sarif", "reports/gate.xml"} == written
    assert written <= set(re.findall(r"reports/\S+", text))


def test_the_workflow_ends_as_the_command_does_that_cannot_read_the_model(run_workflow):
    assert run_workflow("--update").returncode == 2


@pytest.mark.parametrize("name", ["keep_onnxruntime.py", "network.py"])
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
    assert {"keep_onnxruntime.py"} <= {name for name, _ in lines}


def test_each_example_is_in_the_table_of_the_readme_and_has_a_first_sentence():
    text = (EXAMPLES / "README.md").read_text("utf-8")
    named = re.findall(r"^\| \[`(\w+\.\w+)`\]\((\w+\.\w+)\) \|", text, re.MULTILINE)

    assert sorted(named) == sorted(
        (p.name, p.name) for p in EXAMPLES.iterdir() if p.suffix in {".py", ".yml"}
    )
