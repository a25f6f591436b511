"""examples/cached_service.py serves, with and without plugins that are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.folders import ROOT
from support.installed import install_distribution

# The client runs the application as a server does, its start and its end too.
CLIENT = """
import json, sys
import numpy as np
from fastapi.testclient import TestClient
from cached_service import create_app

image = np.ones((1, 3, 32, 32)).tolist()
with TestClient(create_app(sys.argv[1], sys.argv[2].split(","))) as client:
    health = client.get("/healthz").json()
    scores = client.post("/predict", json={"image": image}).json()["scores"]
    wrong = client.post("/predict", json={"picture": image}).status_code
print(json.dumps([health, scores, wrong]))
"""
# Found by its entry point, imported, and gone in its compile, as a native one may be.
CRASHING = """
import os
from epctx_core.plugin import ExecutionProvider, hookimpl, supported_partitions

class CrashingProvider(ExecutionProvider):
    name = "CrashingExecutionProvider"
    binary_suffix = "broken"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: True)

    @hookimpl
    def compile(self, partitions):
        os.abort()

    @hookimpl
    def get_ep_context_nodes(self, writer):
        return []

    @hookimpl
    def load_context(self, nodes, reader):
        return []
"""
# Its compiler reports an error.
RAISING = CRASHING.replace("Crashing", "Raising").replace(
    "os.abort()", 'raise ValueError("compiler bug")'
)


@pytest.fixture
def serve(tmp_path):
    """Return a function that serves a network with these EPs and asks it."""
    model = tmp_path / "model.onnx"
    network = ROOT / "examples/network.py"
    subprocess.run([sys.executable, network, model], check=True)
    plugins = tmp_path / "plugins"
    for name, text in {
        "crashing": CRASHING,
        "raising": RAISING,
        "lost": "import no_such_sdk",
    }.items():
        entry = {f"{name.title()}ExecutionProvider": f"{name}:{name.title()}Provider"}
        install_distribution(
            plugins, f"epctx-{name}", {"epctx.execution_providers": entry}
        )
        (plugins / f"{name}.py").write_text(text)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), str(plugins)]),
        "EPCTX_CACHE_DIR": str(tmp_path / "cache"),
    }

    def ask(eps):
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, model, eps],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask


def test_the_service_predicts_and_refuses_a_wrong_request(serve):
    health, scores, wrong = serve("QNN")

    assert health["eps"] == ["QNNExecutionProvider", "CPUExecutionProvider"]
    assert sum(scores[0]) == pytest.approx(1, abs=1e-4)
    assert wrong == 422


def test_the_service_goes_on_without_plugins_that_crash_or_cannot_be_imported(serve):
    health, scores, _ = serve("Lost,Crashing,QNN")

    assert health["eps"] == ["QNNExecutionProvider", "CPUExecutionProvider"]
    assert list(health["failed"]) == ["Crashing"]
    assert sum(scores[0]) == pytest.approx(1, abs=1e-4)


def test_the_service_goes_on_without_an_ep_whose_compiler_raises(serve):
    health, scores, _ = serve("Raising,QNN")

    assert health["eps"] == ["QNNExecutionProvider", "CPUExecutionProvider"]
    assert list(health["failed"]) == ["Raising"]
    assert "compiler bug" in health["failed"]["Raising"]
    assert sum(scores[0]) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("spelling", ["crashing", "epctx-crashing:Crashing"])
def test_the_service_recognises_a_broken_ep_however_the_host_spells_it(serve, spelling):
    health, _, _ = serve(f"{spelling},QNN")

    assert health["eps"] == ["QNNExecutionProvider", "CPUExecutionProvider"]
    assert list(health["failed"]) == [spelling]
