"""No build of onnxruntime is required: which one is there is its user's choice."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.small_models import chain, saved

BLOCKED = """
import sys
import numpy as np

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "onnxruntime":
            raise ModuleNotFoundError(f"No module named {name!r}", name="onnxruntime")

sys.meta_path.insert(0, Absent())
"""
LEFT_BEHIND = """
import sys
from importlib.machinery import PathFinder
import numpy as np

class LeftBehind:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            return PathFinder.find_spec(name, [sys.argv[2]])

sys.meta_path.insert(0, LeftBehind())
"""
"""Beginning of a program that finds what pip leaves of a package with a strange file."""
SESSION = """
import epctx_core as epctx
with epctx.InferenceSession(sys.argv[1]) as session:
    (value,) = session.get_inputs()
    session.run(None, {value.name: np.ones(value.shape, np.float32)})
"""
DROP_IN = "import epctx_onnxruntime; epctx_onnxruntime.InferenceSession"
NAMES = ("pip install onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")


@pytest.mark.parametrize(
    ("code", "returncode"), [(SESSION, 0), (DROP_IN, 1)], ids=["session", "drop-in"]
)
def test_where_none_is_installed_the_builds_are_named(tmp_path, code, returncode):
    model = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")

    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code, model],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == returncode, done.stderr
    assert all(name in done.stderr for name in NAMES)


@pytest.mark.parametrize("file", ["stray.txt", "capi/stray.txt"])
@pytest.mark.parametrize(
    ("code", "returncode"), [(SESSION, 0), (DROP_IN, 1)], ids=["session", "drop-in"]
)
def test_a_folder_that_pip_left_behind_is_no_onnxruntime(
    tmp_path, code, returncode, file
):
    model = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")
    stray = tmp_path / "onnxruntime" / file
    stray.parent.mkdir(parents=True)
    stray.touch()

    done = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND + code, model, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == returncode, done.stderr
    assert all(name in done.stderr for name in NAMES)
