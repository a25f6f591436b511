"""A host without Python, in C: it registers the library, which loads an interpreter."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_epctx
import pytest
from onnx import TensorProto, helper, numpy_helper
from programs import run_program

HERE = Path(__file__).parent
RUNTIME = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"))
LIBPYTHON = Path(
    sysconfig.get_config_var("LIBDIR") or "",
    sysconfig.get_config_var("INSTSONAME") or "none",
)
EP = "QNNExecutionProvider"

pytestmark = pytest.mark.skipif(
    not (shutil.which("cc") and RUNTIME),
    reason="needs a C compiler, and a wheel of onnxruntime with its library",
)
needs_libpython = pytest.mark.skipif(
    not LIBPYTHON.is_file(), reason="this Python was built without a libpython"
)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """Return the program."""
    program = tmp_path_factory.mktemp("host") / "host"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]
    command = ["cc", *flags, str(HERE / "host.c"), "-o", str(program)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return program


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a model, and three values of its result."""
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    weight = np.arange(16, dtype=np.float32).reshape(4, 4) / 7
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Add", ["b", "x"], ["z"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xz"
    ]
    weights = [numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    x = np.arange(16, dtype=np.float32).reshape(4, 4) / 16
    expected = (np.maximum(x @ weight, 0) + x).ravel()
    return path, " ".join(f"{expected[i]:.6f}" for i in (0, 5, 15))


def run_host(program, *arguments, registration=f"epctx.{EP}", ep=EP, **variables):
    """Run the program without Python's own variables; return its result and output."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "EPCTX"))
    }
    library = onnxruntime_ep_epctx.get_library_path()
    done = subprocess.run(
        [program, RUNTIME[0], library, registration, ep, *arguments],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def environment():
    """Return the variables by which the library finds this Python and its packages."""
    folders = [path for path in sys.path if path.endswith("site-packages")]
    return {
        "EPCTX_LIBPYTHON": str(LIBPYTHON),
        "EPCTX_SITE": os.pathsep.join(folders or site.getsitepackages()),
    }


@needs_libpython
def test_a_program_without_python_compiles_loads_and_runs_in_four_threads(
    host, model, tmp_path
):
    path, expected = model
    context = tmp_path / "m_ctx.onnx"

    compiled = run_host(host, path, context, **environment())
    loaded = run_host(host, context, **environment())

    for code, output, errors in (compiled, loaded):
        assert output.splitlines() == [
            f"device: {EP}",
            f"result: {expected}",
            "threads: right",
            "end",
        ], errors
        assert code == 0
    (node,) = onnx.load(context).graph.node
    assert node.op_type == "EPContext"
    assert (tmp_path / "m_qnn.bin").is_file()


def test_without_a_libpython_the_registration_fails_and_says_what_to_set(host, model):
    code, output, _ = run_host(host, model[0])

    assert code == 3
    assert "register: epctx: the host has no Python. Set EPCTX_LIBPYTHON" in output


def test_a_library_that_is_no_libpython_is_refused(host, model):
    code, output, _ = run_host(host, model[0], EPCTX_LIBPYTHON=str(RUNTIME[0]))

    assert code == 3
    assert "register: epctx: EPCTX_LIBPYTHON names a library that is no libpython" in (
        output
    )


@needs_libpython
@pytest.mark.parametrize("variable", ["PYTHONHOME", "PYTHONPLATLIBDIR"])
def test_a_python_that_does_not_start_is_refused_and_the_host_goes_on(
    host, model, variable
):
    missing = {variable: "/nowhere"}

    code, output, _ = run_host(host, model[0], **{**environment(), **missing})

    assert code == 3
    assert "register: epctx: its Python does not start" in output
    assert "PYTHONHOME" in output


@needs_libpython
def test_a_python_without_the_packages_is_refused_with_the_reason(host, model):
    code, output, errors = run_host(
        host, model[0], EPCTX_LIBPYTHON=str(LIBPYTHON), EPCTX_SITE=""
    )

    assert code == 3
    assert "register: epctx: its Python half cannot be imported" in output
    assert "ModuleNotFoundError" in errors


@needs_libpython
def test_a_payload_that_was_cut_is_refused_in_such_a_program_too(host, model, tmp_path):
    context = tmp_path / "m_ctx.onnx"
    run_host(host, model[0], context, **environment())
    binary = tmp_path / "m_qnn.bin"
    binary.write_bytes(binary.read_bytes()[:-1])

    code, output, _ = run_host(host, context, **environment())

    assert code == 3
    assert "session: " in output
    assert "m_qnn.bin" in output


BESIDE = """
import ctypes, sys
import hosting
from hosting import *

host, runtime, ep, model, small = sys.argv[1:]
offer()
session = open_session(make_model(small), FAULTY)
found = [is_right(session)]
names = "host", runtime, bridge.get_library_path(), f"{ep}.virtual", ep, model
bridge.register([ep])
arguments = [name.encode() for name in names]
code = ctypes.CDLL(host).main(
    len(arguments), (ctypes.c_char_p * len(arguments))(*arguments)
)
found += [code, is_right(session)]
print(found)
"""


def test_two_onnxruntimes_of_one_process_have_their_own_functions(model, tmp_path):
    # Another version than Python's, if there is one.
    runtime = os.environ.get("EPCTX_OTHER_ONNXRUNTIME") or RUNTIME[0]
    library = tmp_path / "host.so"
    command = ["cc", "-std=c11", "-O1", "-shared", "-fPIC", str(HERE / "host.c")]
    subprocess.run([*command, "-o", str(library), "-ldl", "-lpthread"], check=True)
    path, expected = model
    small = tmp_path / "small.onnx"

    said = run_program(BESIDE, library, runtime, EP, path, small)

    assert f"device: {EP}" in said
    assert f"result: {expected}" in said
    assert "threads: right" in said
    assert said.splitlines()[-1] == "[True, 0, True]"
