"""`--profile` of the commands that compile and run."""

from __future__ import annotations

import json

import pytest
from support.cli_fixtures import hide_package
from support.install_commands import pip_install
from support.small_models import chain, saved


@pytest.fixture
def model(tmp_path):
    return saved(chain(["Relu", "Add", "Sigmoid", "Add"]), tmp_path / "m.onnx")


def categories(path):
    return {event.get("cat") for event in json.loads(path.read_text())} - {None}


def test_a_compile_and_a_run_write_their_profiles(epctx, model, tmp_path):
    compiled, ran = tmp_path / "new" / "compile.json", tmp_path / "run.json"

    done = epctx("compile", model, "--ep", "QNN", "--profile", compiled)
    assert done.code == 0
    assert f"Profile: {compiled}" in done.out
    done = epctx("run", tmp_path / "m_ctx.onnx", "--profile", ran)
    assert done.code == 0

    assert categories(compiled) == {"stage", "hook", "ep"}
    assert categories(ran) == {"stage", "hook", "run", "step"}


@pytest.mark.parametrize("isolate", ["compile", "all"])
def test_a_profile_has_what_another_process_does(epctx, model, tmp_path, isolate):
    path = tmp_path / "run.json"

    done = epctx(
        "run", model, "--ep", "QNN", "-c", f"ep.isolate={isolate}", "--profile", path
    )

    assert done.code == 0
    events = [e for e in json.loads(path.read_text()) if e["ph"] == "X"]
    assert {event["cat"] for event in events} == {"stage", "hook", "ep", "run", "step"}
    assert {"get_capability", "compile"} <= {event["name"] for event in events}
    assert all(
        isinstance(event["args"]["nodes"], list)
        for event in events
        if event["cat"] == "step"
    )


def test_a_compile_that_fails_leaves_the_profile_of_what_it_did(epctx, model, tmp_path):
    done = epctx(
        "compile", model, "--ep", "QNN", "-o", "/proc/no/m.onnx",
        "--profile", tmp_path / "p.json",
    )  # fmt: skip

    assert done.code != 0
    assert (tmp_path / "p.json").exists()


def test_a_profile_that_cannot_be_written_is_refused_before_the_work(
    epctx, model, tmp_path
):
    done = epctx("compile", model, "--ep", "QNN", "--profile", f"{tmp_path}/")

    assert done.code == 2
    assert "is a folder, not a file" in done.err
    assert not (tmp_path / "m_ctx.onnx").exists()


def test_without_epctx_bench_the_error_names_it(process, model, tmp_path):
    hide_package("epctx_bench", tmp_path)

    said = process("run", model, "--profile", tmp_path / "p.json", path=[tmp_path])

    assert (said.code, said.out) == (3, "")
    assert said.err == (
        "error: --profile needs the package epctx-bench, which is not installed.\n  "
        f"{pip_install('epctx-bench')}\n"
    )


def test_an_unwritable_profile_does_not_hide_what_failed(process, tmp_path):
    (tmp_path / "no.onnx").write_text("nothing")

    said = process("compile", "no.onnx", "--ep", "QNN", "--profile", "/dev/full")

    assert said.code == 2
    assert "no.onnx" in said.err
    assert "warning: the profile '/dev/full' cannot be written" in said.err
