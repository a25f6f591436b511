"""Imports of loading and running a context model; it asks nothing of the system that
only POSIX has.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx.parser
import pytest
from support.folders import MODELS

import epctx_core as epctx

pytestmark = pytest.mark.internal

MOST_MODULES, MOST_EXPRESSIONS, MOST_OF_ALL = 95, 45_000, 165
"""With `placement`, which is counted while the session still has its model, and with a
reader of entry points in place of importlib_metadata, which is not counted. Of all
modules those are counted that numpy and onnxruntime do not import themselves.
"""
UNNEEDED = {
    "argparse",
    "concurrent.futures",
    "email",
    "importlib.metadata",
    "importlib_metadata",
    "ml_dtypes",
    "onnx",
    "shutil",
    "subprocess",
    "tempfile",
}
LOAD = """
import ast, json, sys
import numpy as np
import onnxruntime
others = set(sys.modules)
import epctx_core as epctx
with epctx.InferenceSession(sys.argv[1]) as session:
    shapes = {i.name: [d if isinstance(d, int) else 1 for d in i.shape] for i in session.get_inputs()}
    types = {i.name: {"tensor(int64)": np.int64}.get(i.type, np.float32) for i in session.get_inputs()}
    found = session.run(None, {name: np.ones(shape, types[name]) for name, shape in shapes.items()})
loaded = sorted(sys.modules.keys() - others)
names = [name for name in loaded if name.startswith("epctx")]
nodes = [node for name in names for node in ast.walk(ast.parse(open(sys.modules[name].__file__).read()))]
expressions = sum(isinstance(node, ast.expr) for node in nodes)
print(json.dumps({"sum": float(sum(np.abs(f).sum() for f in found)), "names": names, "loaded": loaded, "expressions": expressions}))
"""
WITHOUT_POSIX = """
import builtins, os, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
import mmap
POSIX = ("link", "register_at_fork", "fork", "pread", "posix_fadvise", "sendfile", "copy_file_range", "getuid", "geteuid",
         "fchmod", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_PATH", "O_TMPFILE", "fdatasync", "getpgid")
gone = [name for name in POSIX if hasattr(os, name)]
real = os.open
def no_folder(path, *rest, **named):
    if os.path.isdir(path) or named.get("dir_fd") is not None:
        raise PermissionError(13, "a folder cannot be opened here", path)
    return real(path, *rest, **named)
import importlib, tempfile, subprocess, random, shutil, numpy, onnx, onnxruntime, pluggy, logging.handlers
for name in gone:
    delattr(os, name)
for name in [n for n in dir(mmap) if n.startswith("MADV_")]:
    delattr(mmap, name)
os.open = no_folder
"""


def compiled(network, folder):
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    output = folder / "model_ctx.onnx"
    epctx.ModelCompiler(options, MODELS / network / "model.onnx").compile_to_file(
        output
    )
    return output


@pytest.fixture(scope="module")
def context_model(tmp_path_factory):
    """A model of EPContext nodes and of others that are left to the CPU EP."""
    return compiled("lstm", tmp_path_factory.mktemp("imports"))


def seen_by(program, model):
    done = subprocess.run(
        [sys.executable, "-c", program, str(model)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def ordinary(context_model):
    return seen_by(LOAD, context_model)


def test_a_load_imports_nothing_of_compiling_or_of_publication(ordinary):
    rooms = {
        name.split(".")[1]
        for name in ordinary["names"]
        if name.startswith("epctx_core.")
    }

    assert rooms >= {"sessions", "context"}
    assert rooms.isdisjoint({"compiling", "publish", "cache", "verify", "testing"})
    assert not [
        name
        for name in ordinary["names"]
        if name.startswith(("epctx_blobs", "epctx_cli", "epctx_isolation"))
    ]


def test_loading_a_model_of_epcontext_nodes_alone_imports_few_modules_and_little_code(
    tmp_path,
):
    seen = seen_by(LOAD, compiled("resnet", tmp_path))

    assert len(seen["names"]) <= MOST_MODULES
    assert len(seen["loaded"]) <= MOST_OF_ALL
    assert seen["expressions"] <= MOST_EXPRESSIONS
    assert UNNEEDED.isdisjoint(seen["loaded"])


def test_a_load_with_nodes_for_the_cpu_ep_imports_neither_onnx_nor_what_a_load_needs_not(
    ordinary,
):
    assert UNNEEDED.isdisjoint(ordinary["loaded"])


def test_a_load_imports_nothing_of_its_rooms_for_what_did_not_happen(ordinary):
    """Nothing failed, and no EP says what it takes."""
    contract = {"views", "storage"}
    simulated = {
        "epctx_sim_sdk.session",
        "epctx_sim_sdk.compiler",
        "epctx_sim_sdk.writing",
        "epctx_sim_sdk.foreign",
    }

    assert set(ordinary["names"]).isdisjoint(
        {f"epctx_core.plugin.{name}" for name in contract}
        | {"epctx_core.options.ignored_keys", "epctx_core.options.run"}
        | simulated
    )


def test_a_load_needs_nothing_that_only_posix_has(ordinary, context_model):
    assert seen_by(WITHOUT_POSIX + LOAD, context_model)["sum"] == pytest.approx(
        ordinary["sum"]
    )


@pytest.mark.parametrize("collects", [True, False])
def test_the_garbage_collector_is_as_the_host_left_it_after_an_import_on_first_use(
    collects,
):
    program = f"""
import gc, json
import epctx_core as epctx
{"" if collects else "gc.disable()"}
epctx.InferenceSession
print(json.dumps(gc.isenabled()))
"""

    assert seen_by(program, "") is collects


def test_a_load_asks_for_no_types_in_subgraphs_that_run_on_the_cpu_ep_whole(tmp_path):
    """An If whose branches no EP takes a node of, behind what QNN takes."""
    source = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        g (float[1, 2] x) => (float[1, 2] z)
        <float[1, 2] one = {1, 1}>
        {
            y = Add(x, one)
            b = Shrink(y)
            s = ReduceSum<keepdims = 0>(b)
            c = Cast<to = 9>(s)
            z = If(c) <
                then_branch = t () => (float[1, 2] t1) { t0 = Shrink(b) t1 = Shrink(t0) },
                else_branch = e () => (float[1, 2] e1) { e1 = Shrink(b) }>
        }"""
    )
    path = tmp_path / "model.onnx"
    onnx.save(source, path)
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    output = tmp_path / "model_ctx.onnx"
    epctx.ModelCompiler(options, path).compile_to_file(output)
    written = onnx.load(output, load_external_data=False)
    assert {node.op_type for node in written.graph.node} >= {"EPContext", "If"}

    seen = seen_by(LOAD, output)

    with epctx.InferenceSession(path) as session:
        (z,) = session.run(None, {"x": np.ones((1, 2), np.float32)})
    assert seen["sum"] == pytest.approx(float(np.abs(z).sum()))
    assert UNNEEDED.isdisjoint(seen["loaded"])
    assert "epctx_core.graph.inference" not in seen["loaded"]


@pytest.mark.parametrize("network", ["bert", "lstm", "resnet"])
def test_a_plain_load_without_eps_imports_nothing_that_infers_or_cuts(network):
    seen = seen_by(LOAD, MODELS / network / "model.onnx")

    assert not {
        "epctx_core.graph.inference",
        "epctx_core.graph.extraction",
        "epctx_core.sessions.steps",
    }.intersection(seen["names"])
