"""After a fork: the child begins anew, and what it inherited is the parent's and stays
whole; see processes.md.
"""

# ruff: noqa: SLF001 - a state that only the inside has

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from support.small_models import SHAPE, finished, saved, tensor

import epctx_core as epctx
from epctx_core.context.scratch import make_scratch_folder
from epctx_core.plugin import CompiledPartition
from epctx_core.sessions.providers import ProviderSession

pytestmark = pytest.mark.internal

SIZE = 512
MADE_BEFORE = "this session was made before the process was forked"


def heavy():
    """Return a model whose run wakes the threads of onnxruntime's pool."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(
            random.standard_normal((SIZE, SIZE), dtype=np.float32) / 32, f"w{i}"
        )
        for i in range(2)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Sin", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("ReduceMean", ["d"], ["y"], keepdims=0),
    ]
    shape = (SIZE, SIZE)
    return finished(nodes, [tensor("x", shape=shape)], [tensor("y", shape=())], weights)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Results of a host that forks and of its children."""
    folder = tmp_path_factory.mktemp("forks")
    saved(heavy(), folder / "m.onnx")
    np.save(folder / "x.npy", np.ones((SIZE, SIZE), np.float32))
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    command = [sys.executable, str(Path(__file__).with_name("forks.py")), str(folder)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("use", ["run", "names"])
def test_a_session_that_a_child_inherited_says_so_instead_of_hanging(seen, use):
    assert seen[use]["error"] == "RuntimeException"
    assert seen[use]["text"].startswith(MADE_BEFORE)
    assert "Make a session in the child" in seen[use]["text"]


def test_closing_an_inherited_session_shuts_no_ep_down(seen):
    assert seen["shutdowns in the child"] == []
    assert seen["shutdowns in the parent"] == [True]


def test_dropping_an_inherited_session_with_threads_does_not_crash_the_child(seen):
    assert seen["closed with threads"] == []


@pytest.mark.parametrize("way", ["new session", "new load", "fork", "spawn"])
def test_a_child_makes_sessions_of_its_own(seen, way):
    np.testing.assert_allclose(seen[way], seen["parent"], rtol=1e-5)


def test_a_child_compiles(seen):
    assert seen["new compile"] == ["child_qnn.bin", "child_ctx.onnx"]


def test_a_child_uses_the_registry(seen):
    assert {"ChildExecutionProvider", "QNNExecutionProvider"} <= set(seen["registry"])


def test_a_child_uses_the_registry_although_a_thread_of_its_parent_was_in_it(seen):
    assert "QNNExecutionProvider" in seen["locked"]


def test_a_share_group_is_written_by_the_process_that_made_it(seen):
    assert seen["group"]["error"] == "Fail"
    assert "made before the process was forked" in seen["group"]["text"]
    assert seen["group left"] == [None, True]


def test_a_child_meets_no_shared_workspace_of_its_parent(seen):
    result, workspaces = seen["workspaces"]

    np.testing.assert_allclose(result, seen["parent"], rtol=1e-5)
    assert workspaces == 0


def test_the_parent_goes_on_as_before(seen):
    np.testing.assert_allclose(seen["parent again"], seen["parent"], rtol=1e-5)


def test_eps_of_another_process_are_not_closed(monkeypatch):
    closed = []
    providers = ProviderSession(epctx.SessionOptions(), epctx.Registry())
    partition = CompiledPartition(None, close=lambda: closed.append(True))
    providers._runnables.append(partition)
    monkeypatch.setattr(os, "getpid", lambda: -1)

    providers.close()

    assert closed == []


SCRATCH = """
import os, sys
from epctx_core.sessions.providers import ProviderSession
from epctx_core.context.scratch import make_scratch_folder
with make_scratch_folder() as folder:
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    os.waitpid(pid, 0)
    print(folder.is_dir())
print(folder.exists())
"""


def test_a_child_that_ends_removes_no_scratch_folder_of_its_parent():
    output = subprocess.check_output(
        [sys.executable, "-W", "ignore", "-c", SCRATCH], text=True, timeout=60
    )

    assert output.split() == ["True", "False"]


def test_a_scratch_folder_is_private_and_goes_with_its_block():
    with make_scratch_folder() as folder:
        (folder / "file").write_bytes(b"x")
        mode = folder.stat().st_mode & 0o777

    assert mode == 0o700
    assert not folder.exists()


class ByPath(epctx.InferenceSession):
    """Session that says itself how it is pickled, as programs of onnxruntime do."""

    def __init__(self, path):
        super().__init__(path)
        self.path = path

    def __getstate__(self):
        return {"path": self.path}

    def __setstate__(self, state):
        self.__init__(state["path"])


def test_a_subclass_that_says_how_it_is_pickled_is_pickled(network):
    with (
        ByPath(network("lstm").path) as session,
        pickle.loads(pickle.dumps(session)) as other,  # noqa: S301 - this test's own bytes
    ):
        assert other.get_inputs() == session.get_inputs()


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_session_cannot_be_pickled_or_copied_and_says_what_to_do_instead(
    tmp_path, way
):
    model = finished(
        [helper.make_node("Relu", ["x"], ["y"])], [tensor("x")], [tensor("y")]
    )
    with epctx.InferenceSession(saved(model, tmp_path / "m.onnx")) as session:
        with pytest.raises(epctx.InvalidArgument, match="cannot be pickled") as caught:
            way(session)

        assert "path and options" in caught.value.hint
        assert session.run(None, {"x": np.ones(SHAPE, np.float32)})[0].shape == SHAPE


ERRORS = [
    getattr(epctx, name)
    for name in sorted(dir(epctx))
    if isinstance(getattr(epctx, name), type)
]
ERRORS = [cls for cls in ERRORS if issubclass(cls, epctx.EpctxError)]


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_an_error_crosses_to_another_process_whole(cls):
    error = cls("what happened.", node="n", ep="E", path="m.onnx", hint="do this.")

    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(back) is cls
    assert (str(back), back.node, back.ep, back.path) == (
        str(error),
        "n",
        "E",
        "m.onnx",
    )
