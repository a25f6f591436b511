"""A host that forks while onnxruntime's sessions lie in reference cycles: prints how its children ended, as JSON.

Runs as a program of its own: `fork_with_garbage.py fork|preexec_fn|compiling|hook|collector`.
The limits of the collector are so low
that a child which collects anything inherited collects these sessions, whose destructor crashes it or hangs.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import weakref


def allocate():
    """Make what starts a collection; as other packages' hooks may do, registered before ours and after."""
    return [[i] for i in range(2000)]


os.register_at_fork(after_in_child=allocate)
import onnxruntime  # noqa: E402 - after the hook
from onnx import TensorProto, helper  # noqa: E402 - after the hook

import epctx_core as epctx  # noqa: E402 - after the hook
from epctx_core.plugin import (  # noqa: E402 - after the hook
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    hookimpl,
    supported_partitions,
)

assert epctx.InferenceSession  # imports what sessions need
os.register_at_fork(after_in_child=allocate)

SECONDS = 20
"""After which a child that hangs is killed."""
ROUNDS = 20
OFTEN = (50, 1, 1 << 30)
"""The collector's limits: after 50 objects, then the next generation each time, never the oldest."""
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
MODEL = helper.make_model(
    graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
).SerializeToString()
OPTIONS = onnxruntime.SessionOptions()
OPTIONS.intra_op_num_threads = 4


class Cycle:
    """An object that only the collector frees, with sessions."""

    def __init__(self):
        self.itself = self
        self.sessions = [
            onnxruntime.InferenceSession(MODEL, OPTIONS, providers=["CPUExecutionProvider"]),
            epctx.InferenceSession(MODEL),
        ]


def garbage():
    """Leave a cycle in the middle generation, so that the parent's own few allocations do not collect it.

    From here on the collector runs often, unless it is paused. Returns what says whether the cycle is still there.
    """
    paused = not gc.isenabled()
    gc.disable()
    gc.collect()
    cycle = Cycle()
    gc.collect(0)
    left = weakref.ref(cycle)
    gc.set_threshold(*OFTEN)
    if not paused:
        gc.enable()
    return lambda: left() is not None


def work():
    signal.alarm(SECONDS)
    allocate()


def forked():
    is_left = garbage()
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return os.waitpid(pid, 0)[1], is_left()


def started():
    is_left = garbage()
    return subprocess.Popen(["true"], preexec_fn=work).wait(), is_left()  # noqa: PLW1509 - what hosts do


def children(way):
    ended = []
    for _ in range(ROUNDS):
        ended.append(way())
        gc.set_threshold(700, 10, 10)
    return {
        "forks": len(ended),
        "children that died or hung": len([status for status, _ in ended if status]),
        "garbage that the parent still had": sum(left for _, left in ended),
    }


def started_while_compiling():
    """Start a process while another thread compiles, which pauses the collector; CPython itself turns it off."""
    inside, over = threading.Event(), threading.Event()

    def write(_data):
        inside.set()
        over.wait(SECONDS)

    compiler = epctx.ModelCompiler(epctx.SessionOptions(), MODEL)
    thread = threading.Thread(target=compiler.compile_to_stream, args=[write])
    thread.start()
    inside.wait(SECONDS)
    seen = started()
    over.set()
    thread.join()
    return seen


class Forking(ExecutionProvider):
    """An EP that forks while it compiles, as a vendor's parallel compiler may; the child returns as the parent does."""

    name = "ForkingExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda _node: True)

    @hookimpl
    def compile(self, partitions):
        self.partitions = partitions
        forked_by_hook.append(os.fork())
        return [CompiledPartition(None) for _ in partitions]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        payload = writer.payload()
        payload.write(b"compiled")
        return [EPContextNode(partition, payload) for partition in self.partitions]

    @hookimpl
    def load_context(self, nodes):
        return [CompiledPartition(None) for _ in nodes]


forked_by_hook = []


def forked_in_a_hook():
    """Return how a child ended that came back from an EP's hook and then collected garbage."""
    is_left = garbage()
    gc.set_threshold(1 << 30)  # nothing is collected but by the child
    registry = epctx.Registry(entry_points=False)
    registry.register(Forking)
    options = epctx.SessionOptions()
    options.add_provider(Forking.name)
    epctx.ModelCompiler(options, MODEL, True, registry=registry).compile_to_bytes()
    child = forked_by_hook.pop()
    if child == 0:
        work()
        gc.collect()
        os._exit(not gc.isenabled())
    return os.waitpid(child, 0)[1], is_left()


def state_in_child():
    """Return whether the collector is on in a child and in the parent afterwards, and frees what the child makes."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        enabled = gc.isenabled()
        itself = type("Made", (), {})()
        itself.itself = itself
        made = weakref.ref(itself)
        del itself
        gc.collect()
        os.write(writer, json.dumps([enabled, made() is None]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    enabled, collected = json.loads(os.read(reader, 100))
    return [enabled, gc.isenabled(), collected]


if __name__ == "__main__":
    if sys.argv[1] == "collector":
        seen = {"on": state_in_child()}
        gc.disable()
        seen["off"] = state_in_child()
    else:
        seen = children(
            {
                "fork": forked,
                "preexec_fn": started,
                "compiling": started_while_compiling,
                "hook": forked_in_a_hook,
            }[sys.argv[1]]
        )
    json.dump(seen, sys.stdout)
    sys.stdout.flush()
    os._exit(0)
