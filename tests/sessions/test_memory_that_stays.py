"""What is made and closed again and again keeps no memory, Python's or native.

Counted by glibc in a process of its own, in bytes that are allocated and not freed: the
memory that the system sees moves by megabytes from one moment to the next.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from onnx import helper
from support.small_models import finished, saved, tensor

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="counted by glibc"
)

REPEATED = 25
ROUNDS = 5

MEASURE = f"""
import ctypes, gc

FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS.split()]

count = ctypes.CDLL(None).mallinfo2
count.restype = Mallinfo

def allocated():
    gc.collect()
    counted = count()
    return counted.uordblks + counted.hblkhd

def grown(once):
    # What is kept for later calls does not count, nor what a thread of onnxruntime that
    # has not ended yet holds at one moment: each round adds what is never freed.
    states = []
    for _ in range({ROUNDS}):
        for _ in range({REPEATED}):
            once()
        states.append(allocated())
    return min(after - before for before, after in zip(states, states[1:]))
"""

SESSIONS = """
import sys
import epctx_core as epctx

def once():
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    epctx.InferenceSession(sys.argv[1], options).close()

print(grown(once))
"""

OPTIMISED = """
import sys
import onnx
from epctx_core import GraphOptimizationLevel
from epctx_onnxruntime.optimiser import Allowed, optimize

model = onnx.load(sys.argv[1])

def once():
    optimize(model, {}, GraphOptimizationLevel.ORT_ENABLE_ALL, Allowed())

print(grown(once))
"""


def grown(script, path):
    child = subprocess.run(
        [sys.executable, "-c", MEASURE + script, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(child.stdout)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A chain of nodes whose names have 200,000 bytes together."""
    nodes = [
        helper.make_node(
            "Neg" if i % 2 else "Sqrt", [f"a{i}"], [f"a{i + 1}"], name=f"{i}" * 20_000
        )
        for i in range(10)
    ]
    ends = [tensor("a0"), tensor("a10")]
    return saved(
        finished(nodes, ends[:1], ends[1:]), tmp_path_factory.mktemp("m") / "m.onnx"
    )


def test_sessions_that_compile_keep_no_memory(model):
    assert grown(SESSIONS, model) < 100_000


def test_an_optimised_model_is_not_kept(model):
    assert grown(OPTIMISED, model) < 100_000
