"""Nothing behind the host's back: no telemetry, no file in the user's home, no
connection, no thread of Python.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from onnx_models import two_partitions

CHILD = """
import socket, sys, threading
opened = []
sys.addaudithook(lambda event, arguments: opened.append(event) if event.startswith("socket.") else None)
import numpy as np
import epctx_core as epctx
from epctx_openvino import OpenVINOExecutionProvider
assert "openvino" not in sys.modules, "openvino is imported with the EP's class"
registry = epctx.Registry(entry_points=False)
registry.register(OpenVINOExecutionProvider)
options = epctx.SessionOptions()
options.add_provider("OpenVINO", {})
epctx.ModelCompiler(options, sys.argv[1], registry=registry).compile_to_file(sys.argv[2])
with epctx.InferenceSession(sys.argv[2], options, registry=registry) as session:
    session.run(None, {"x": np.ones((2, 32), np.float32)})
assert "openvino" in sys.modules
assert "openvino_telemetry" not in sys.modules
print(opened, [thread.name for thread in threading.enumerate()])
"""


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def run_child(home, program, *arguments):
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CI", "XDG_", "EPCTX_"))
    }
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=True,
        capture_output=True,
        text=True,
        # onnxruntime, which would run the rest, has telemetry of its own.
        env={
            **kept,
            "HOME": str(home),
            "EPCTX_ENGINE": "onnx.reference",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    ).stdout


def test_a_compile_a_load_and_a_run_leave_no_file_no_connection_and_no_thread(
    home, tmp_path
):
    source = tmp_path / "net.onnx"
    source.write_bytes(two_partitions())

    said = run_child(home, CHILD, str(source), str(tmp_path / "out_ctx.onnx"))

    assert said.split("\n")[0] == "[] ['MainThread']"
    files = [
        path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()
    ]
    assert [
        path for path in files if not path.startswith(".cache/epctx/receipts/")
    ] == []


def test_the_package_alone_would_write_into_the_users_home(home):
    """If this fails, openvino sends nothing any more, and the EP need not keep it from
    that.
    """
    run_child(home, "import openvino")

    assert (home / "intel").exists()


def test_a_host_may_still_import_the_telemetry_of_openvino(home):
    program = (
        "from epctx_openvino.native import import_openvino; import_openvino(); import "
        "openvino_telemetry"
    )

    run_child(home, program)

    assert list(home.iterdir()) == []


IN_A_FORK = """
import os, signal, sys
import numpy as np
import epctx_core as epctx
from epctx_core.plugin import Purpose
from epctx_openvino import OpenVINOExecutionProvider
registry = epctx.Registry(entry_points=False)
registry.register(OpenVINOExecutionProvider)
def run():
    with epctx.InferenceSession(sys.argv[1], providers=["OpenVINO"], registry=registry) as session:
        session.run(None, {"x": np.ones((2, 32), np.float32)})
if sys.argv[2] == "used":
    run()
else:
    OpenVINOExecutionProvider.availability(Purpose.RUN)
if (child := os.fork()) == 0:
    signal.alarm(60)
    try:
        run()
        print("ran", flush=True)
    except epctx.NotImplementedByProvider as error:
        print(error, flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize(
    ("before", "said"), [("used", "before this process was forked"), ("listed", "ran")]
)
def test_a_fork_of_a_process_that_used_openvino_is_told_instead_of_hanging(
    home, tmp_path, before, said
):
    source = tmp_path / "net.onnx"
    source.write_bytes(two_partitions())

    lines = run_child(home, IN_A_FORK, str(source), before)

    assert said in lines
    assert lines.endswith("0\n")
