"""What the tests of the benchmarks share: their modules, and a report of real models."""

from __future__ import annotations

from importlib import import_module

import onnx
import pytest
from epctx_bench import BenchSettings, bench
from epctx_bench.saved import save_report
from support.folders import ROOT

BENCHMARKS = ROOT / "benchmarks"
CHAIN = """
<ir_version: 8, opset_import: ["" : 17]>
chain (float[2, 3] x) => (float[2, 3] y) { a = Relu(x)  y = Tanh(a) }
"""


@pytest.fixture
def harness(monkeypatch):
    """The module that benchmarks stand on."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("harness")


@pytest.fixture
def plot(monkeypatch):
    """The module that draws reports."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("plot")


@pytest.fixture(scope="session")
def report_of_chain(tmp_path_factory):
    """A saved report of a chain of two nodes, for the simulated QNN."""
    folder = tmp_path_factory.mktemp("plots")
    onnx.save(onnx.parser.parse_model(CHAIN), folder / "chain_2.onnx")
    settings = BenchSettings(turns=2, runs=1, time_limit=1000.0)
    report = bench(folder / "chain_2.onnx", eps=["QNN"], settings=settings)
    save_report(report.as_dict(), folder / "report.json")
    return folder / "report.json"
