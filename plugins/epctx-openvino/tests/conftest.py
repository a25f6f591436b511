"""Fixtures of this EP's tests: it has a registry of its own, as the suite's EPs of this
name are simulated.
"""

from __future__ import annotations

import pytest
from epctx_openvino import OpenVINOExecutionProvider
from support.contract_eps import Harness
from support.networks.catalog import Catalog


@pytest.fixture
def harness():
    return Harness(provider=OpenVINOExecutionProvider)


@pytest.fixture
def harness_with():
    """Make harnesses with options of the EP."""

    def make(**options):
        return Harness(provider=OpenVINOExecutionProvider, options=options)

    return make


@pytest.fixture
def compile_into(tmp_path):
    """Compile bytes of a model into a folder of the test; return the path of the
    context model and the report.
    """

    def compile_(harness, model, name="net", *, embed=False):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(model)
        return harness.compile(path, embed=embed)

    return compile_


@pytest.fixture(scope="session")
def network(tmp_path_factory):
    """`network("bert")` gives a fresh copy of a network, with inputs and onnxruntime's
    results.
    """
    return Catalog(tmp_path_factory.mktemp("networks")).get
