"""What the tests of the measurements share: small models, and one measured report."""

from __future__ import annotations

import sys

import onnx
import pytest
from epctx_bench import BenchSettings, bench
from support.cli_fixtures import epctx  # noqa: F401 - a fixture
from support.sim_eps import QNN, with_eps

from epctx_core import ModelCompiler

OPEN = """
<ir_version: 8, opset_import: ["" : 17]>
open (float[N, 3] x) => (float[N, 3] y) { a = Relu(x)  y = Tanh(a) }
"""
FIXED = OPEN.replace("N, 3", "2, 3")


@pytest.fixture(scope="session", autouse=True)
def byte_code():
    """Have Python keep byte code, as measuring requires; see also the
    repository's conftest.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setattr(sys, "dont_write_bytecode", False)
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with a model of an open and one of a fixed first dimension, and a
    context model.
    """
    folder = tmp_path_factory.mktemp("bench")
    for name, text in (("open", OPEN), ("fixed", FIXED)):
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")
    ModelCompiler(with_eps(QNN), folder / "fixed.onnx").compile_to_file(
        folder / "fixed_ctx.onnx"
    )
    return folder


@pytest.fixture(scope="session")
def report(folder):
    """A report of an open model, with threads and batch sizes."""
    settings = BenchSettings(
        turns=2, time_limit=1000.0, runs=3, threads=(1, 2), batch_sizes=(1, 4)
    )
    return bench(
        folder / "open.onnx",
        eps=["QNN"],
        settings=settings,
    )


@pytest.fixture(scope="session")
def columns(report):
    """The columns of that report by their names."""
    return {column.name: column for column in report.columns}
