"""onnxruntime's telemetry writes into the home of nobody who has not asked for it; see
SECURITY.md.
"""

from __future__ import annotations

import os
import subprocess
import sys

import epctx_onnxruntime
import onnxruntime
import pytest
from support.packages import Packages
from support.small_models import chain, saved

import epctx_core as epctx

SWITCH = "ORT_DISABLE_TELEMETRY"
OPERATORS = ("Relu", "Add", "Erf", "Add")
"""The simulated QNN EP takes some of these, and onnxruntime runs the rest."""

HOST = """
import os, sys
before = dict(os.environ)
import numpy as np
X = {"x": np.ones((2, 3), np.float32)}
"""
SAME = """
assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
"""
A_SESSION = f"""{HOST}
import epctx_core as epctx
epctx.InferenceSession(sys.argv[1]).run(None, X)
{SAME}
assert "onnxruntime" in sys.modules
"""
A_DROP_IN = f"""{HOST}
import epctx_onnxruntime as onnxruntime
onnxruntime.InferenceSession(sys.argv[1]).run(None, X)
onnxruntime.disable_telemetry_events()
onnxruntime.enable_telemetry_events()
onnxruntime.InferenceSession(sys.argv[1]).run(None, X)
{SAME}
"""
A_DISABLED_DROP_IN = f"""{HOST}
import epctx_onnxruntime as onnxruntime
onnxruntime.disable_telemetry_events()
onnxruntime.InferenceSession(sys.argv[1]).run(None, X)
{SAME}
"""
A_SUBPACKAGE = f"""{HOST}
import epctx_onnxruntime.capi
{SAME}
assert "onnxruntime" in sys.modules
"""
IMPORTING_EP = """
from epctx_core.plugin import hookimpl
from epctx_sim_qnn import QnnProvider

class Provider(QnnProvider):
    name = "ImportingExecutionProvider"

    @hookimpl
    def compile(self, partitions):
        import onnxruntime
        return super().compile(partitions)
"""
PROCESSES = f"""{HOST}
import epctx_core as epctx
from epctx_core.__main__ import main
options = epctx.SessionOptions()
options.add_provider("Importing")
options.add_session_config_entry("ep.isolate", "compile")
compiler = epctx.ModelCompiler(options, sys.argv[1])
compiler.compile_to_file(sys.argv[1] + ".isolated_ctx.onnx")
main(["bench", sys.argv[1], "--ep", "QNN", "--turns", "1", "--runs", "1"])
assert "onnxruntime" not in sys.modules
options = epctx.SessionOptions()
options.add_provider("QNN")
epctx.ModelCompiler(options, sys.argv[1]).compile_to_file(sys.argv[1] + "_ctx.onnx")
with epctx.load_or_compile(sys.argv[1], options) as session:
    session.run(None, X)
{SAME}
"""
COMMANDS = (
    ("compile", "{model}", "--ep", "Importing", "-o", "{folder}/m_ctx.onnx"),
    ("inspect", "{folder}/m_ctx.onnx"),
    ("run", "{folder}/m_ctx.onnx"),
    ("verify", "{folder}/m_ctx.onnx"),
    ("explain", "{model}", "--ep", "QNN", "--fail-on-cpu", "1"),
    ("doctor", "{model}", "--ep", "QNN"),
    ("compare", "{model}", "{folder}/m_ctx.onnx"),
    ("batch", "{folder}/fleet.toml"),
)
FLEET = """
[[model]]
path = "m.onnx"
[[target]]
name = "each"
eps = ["Importing"]
"""
"""File of a batch, whose tasks are done by processes of its own."""


@pytest.fixture
def model(tmp_path):
    return saved(chain(OPERATORS), tmp_path / "m.onnx")


@pytest.fixture
def importing_ep(tmp_path):
    """Install an EP that imports onnxruntime by itself, when it compiles."""
    installed = Packages(tmp_path / "installed")
    installed.install(
        "epctx-importing", "ImportingExecutionProvider", code=IMPORTING_EP
    )


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def run_in(home, *arguments, **environment):
    """Run Python where onnxruntime's telemetry is on, as it is not in CI, but reaches
    nobody; return the names of the files in the home afterwards that are not epctx's.
    """
    subprocess.run(
        [sys.executable, *map(str, arguments)],
        check=True,
        cwd=home,
        env={
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": os.pathsep.join([str(home.parent / "installed"), *sys.path]),
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "https_proxy": "http://127.0.0.1:9",
            **environment,
        },
        timeout=120,
    )
    paths = (path for path in home.rglob("*") if path.is_file())
    names = sorted(path.relative_to(home).as_posix() for path in paths)
    return [name for name in names if not name.startswith(".cache/epctx/")]


@pytest.mark.parametrize(
    "program",
    [A_SESSION, A_DROP_IN, A_DISABLED_DROP_IN, A_SUBPACKAGE],
    ids=["a session", "the drop-in", "the drop-in without events", "a subpackage"],
)
def test_the_engine_and_the_drop_in_leave_no_telemetry_and_the_environment_as_it_was(
    home, model, program
):
    assert run_in(home, "-c", program, model) == []


@pytest.mark.usefixtures("importing_ep")
def test_isolated_and_measuring_processes_of_a_host_leave_no_telemetry(home, model):
    assert run_in(home, "-c", PROCESSES, model) == []


@pytest.mark.usefixtures("importing_ep")
def test_no_command_leaves_telemetry(home, model):
    model.with_name("fleet.toml").write_text(FLEET)
    for name, *arguments in COMMANDS:
        places = {"model": model, "folder": home.parent}
        given = [argument.format(**places) for argument in arguments]

        assert (name, run_in(home, "-m", "epctx_core", name, *given)) == (name, [])


@pytest.mark.skipif(sys.platform != "linux", reason="other wheels have other telemetry")
def test_a_user_may_have_telemetry(home, model):
    """If this fails, onnxruntime writes nothing any more, and the other tests show
    nothing.
    """
    files = run_in(home, "-c", A_SESSION, model, **{SWITCH: "0"})

    assert any("onnxruntime" in name for name in files)


@pytest.mark.parametrize(
    "name", ["disable_telemetry_events", "enable_telemetry_events"]
)
def test_the_calls_about_telemetry_reach_onnxruntime(monkeypatch, name):
    called = []
    monkeypatch.setattr(onnxruntime, name, lambda: called.append(name))

    getattr(epctx_onnxruntime, name)()
    getattr(epctx, name)()

    assert called == [name, name]
