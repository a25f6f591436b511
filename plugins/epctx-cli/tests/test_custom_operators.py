"""`--custom-ops-library` of the commands that make sessions or compile, and what
`epctx inspect` says of the result.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from support.extensions_library import LIBRARY as PATH

LIBRARY = Path(PATH)

pytestmark = pytest.mark.not_for_onnxruntime("it is not given the library")


@pytest.fixture
def custom(epctx, tmp_path):
    """Compile a model with a custom operator; return the context model and what the
    command said.
    """
    source = tmp_path / "m.onnx"
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "ai.onnx.contrib": 1]> g (float[4] x) '
        "=> (float[4] y)"
        " { neg, pos = ai.onnx.contrib.NegPos(x) y = Relu(pos) }"
    )
    onnx.save(made, source)
    said = epctx(
        "compile",
        source,
        "--ep",
        "OpenVINO",
        "--custom-ops-library",
        LIBRARY,
        "--check",
    )
    return tmp_path / "m_ctx.onnx", said


def test_a_model_is_compiled_checked_and_run_with_the_library(epctx, custom, tmp_path):
    path, compiled = custom
    np.savez(tmp_path / "in.npz", x=np.array([1, -2, 3, -4], np.float32))

    ran = epctx(
        "run",
        path,
        "--custom-ops-library",
        LIBRARY,
        "--input",
        tmp_path / "in.npz",
        "--output",
        tmp_path / "out.npz",
    )

    assert (compiled.code, ran.code) == (0, 0)
    assert compiled.out.endswith("with the same --custom-ops-library\n")
    with np.load(tmp_path / "out.npz") as stored:
        assert stored["y"].tolist() == [1, 0, 3, 0]


def test_inspect_lists_the_domains_and_the_library_to_register(epctx, custom):
    path, _ = custom

    assert f"ai.onnx.contrib   {LIBRARY.name}" in epctx("inspect", path).out
    assert epctx("inspect", path, "--json").json["custom_domains"] == {
        "ai.onnx.contrib": LIBRARY.name
    }


def test_without_the_library_a_run_fails_and_a_verification_warns(epctx, custom):
    path, _ = custom

    ran, verified = epctx("run", path), epctx("verify", path)

    assert ran.code == 3
    assert f"register its library {LIBRARY.name!r}" in ran.err
    assert verified.code == 0
    assert "kernel-missing" in verified.out
    assert (
        "kernel-missing"
        not in epctx("verify", path, "--custom-ops-library", LIBRARY).out
    )


def test_a_library_that_is_missing_is_named(epctx, custom):
    said = epctx("run", custom[0], "--custom-ops-library", "missing.so")

    assert said.code == 2
    assert "there is no such library of custom operators" in said.err
    assert "missing.so" in said.err
