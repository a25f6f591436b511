"""EPs that do what no EP should, in the hook that an option names; and one of each kind
that works.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from onnx import TensorProto, numpy_helper
from support.engine_eps import Alpha, packed

from epctx_core.errors import InternalError, InvalidGraph, PackageMissing
from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    EPContextNode,
    ProviderOption,
    Refusal,
    hookimpl,
)

SECRET = "s3cret-v4lue"  # noqa: S105 - shown nowhere
LOGGER = "epctx.ep.FaultyExecutionProvider"


def lines():
    """Return the descriptors of this process that are sockets, but those of a process's
    start.
    """
    found = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    return [fd for fd in found if fd > 2 and _is_socket(fd)]


def _is_socket(fd):
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def write_to_lines(data):
    """Write into every line that there is, as memory that was overwritten might."""
    for fd in lines():
        try:
            os.write(fd, data)
        except OSError:
            continue


def message(head):
    """Return a message as it goes over the pipes."""
    text = json.dumps(head).encode()
    is_result = isinstance(head, dict) and head.get("say") == "result"
    return struct.pack("<BI", is_result, len(text)) + text


def send_a_large_head():
    """Send 60 MiB of JSON: empty lists."""
    text = b'{"say": "log", "text": [' + b"[]," * (20 << 20) + b"[]]}"
    write_to_lines(struct.pack("<BI", 0, len(text)) + text)
    time.sleep(600)


def answer_and_exit(head):
    """Send a result, and zeros for its blobs."""
    write_to_lines(message({"say": "result", "sizes": [], **head}))
    os._exit(0)


def sleep_in_native_code():
    """Sleep without giving up the interpreter's lock: no other thread of this process
    runs.
    """
    if "EPCTX_TEST_NOTE" in os.environ:
        note_the_process()
    ctypes.PyDLL(None).sleep(600)


def write_note(text):
    """Put a note at its path whole: tests wait until it is there, and read it."""
    path = Path(os.environ["EPCTX_TEST_NOTE"])
    written = path.with_name(f"{path.name}.{os.getpid()}")
    written.write_text(text)
    written.replace(path)


def leave_a_child():
    """Start a process that would live on, say which, and hang."""
    child = subprocess.Popen(["sleep", "600"])
    write_note(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def start_a_child():
    """Start a process that would live on, and say which."""
    child = subprocess.Popen(["sleep", "600"])
    write_note(str(child.pid))
    child.returncode = 0  # nobody waits for it


def read_what_is_printed():
    """Take from the pipe of standard error what its reader should get."""
    with Path("/proc/self/fd/2").open("rb", buffering=0) as printed:
        while printed.read(1 << 16):
            pass


def print_without_end():
    with suppress(OSError):
        while True:
            os.write(2, b"x" * 4096)
    time.sleep(60)


def leave_what_holds_the_line(work=lambda: time.sleep(60)):
    """Start a process that has left the group, as services do, and holds every
    descriptor of this one.
    """
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork() == 0:
            with Path(os.environ["EPCTX_TEST_NOTE"]).open("a") as note:
                note.write(f"{os.getpid()}\n")
            signal.alarm(60)
            work()
        os._exit(0)
    os.waitpid(first, 0)


def fill_memory():
    return np.ones(4 << 30, np.uint8)


def print_much():
    print("printed by the plugin")  # noqa: T201 - what plugins do
    os.write(1, b"written to standard output\n" * 1000)


def log():
    logging.getLogger(LOGGER).warning("a record of %s", "the plugin")


def log_as_others():
    """Log to a logger of dots alone, to the core's, and to one below the EP's own."""
    for name in ("epctx" + "." * 30_000, "epctx.registry", f"{LOGGER}.known"):
        logging.getLogger("epctx").handle(
            logging.makeLogRecord(
                {
                    "name": name,
                    "levelno": 1 << 40,
                    "msg": "a\nWARNING \x1b[2J\u202e\ud800" + "." * 30_000,
                }
            )
        )


def note_the_process():
    write_note(str(os.getpid()))


def raise_error():
    raise InvalidGraph("the graph is not to its taste", node="n1", hint="Try another.")


def raise_value_error():
    raise ValueError("disk on fire")


def raise_long_error():
    raise InvalidGraph(
        "m\x1b[2J\ud800\nn",
        node="n\x07" + "n" * (10 << 20),
        hint="h\x1b[2J" + "h" * (10 << 20),
    ) from ValueError("c\x1b[2J")


def raise_secret_error():
    raise InvalidGraph(
        f"m {SECRET}", node=f"n {SECRET}", path=f"p {SECRET}", hint=f"h {SECRET}"
    ) from ValueError(SECRET)


def raise_internal_error():
    raise InternalError("epctx is wrong", hint="Report it to the project.")


def raise_package_missing():
    raise PackageMissing("the package epctx-evil is missing", hint="Install it.")


FAULTS = {
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "child-and-crash": lambda: (start_a_child(), ctypes.string_at(0)),
    "child-and-return": start_a_child,
    "service": leave_what_holds_the_line,
    # Who waits longest gets what is printed next: at first the host, then the service.
    "reading-service": lambda: (
        leave_what_holds_the_line(read_what_is_printed),
        time.sleep(0.3),
        os.write(2, b"printed"),
    ),
    "printing-service": lambda: leave_what_holds_the_line(print_without_end),
    "service-and-crash": lambda: (leave_what_holds_the_line(), ctypes.string_at(0)),
    "service-and-hang": lambda: (leave_what_holds_the_line(), time.sleep(600)),
    "fork-and-crash": lambda: (os.fork() == 0 and time.sleep(600), ctypes.string_at(0)),
    "exit": lambda: os._exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: time.sleep(600),
    "native-hang": sleep_in_native_code,
    "slow": lambda: time.sleep(0.3),
    "slow-start": lambda: time.sleep(5),
    "memory": fill_memory,
    "noise": lambda: (write_to_lines(b"\xff" * 64), time.sleep(600)),
    "nonsense": lambda: (write_to_lines(message([])), time.sleep(600)),
    "too-much": lambda: (
        write_to_lines(message({"say": "result", "sizes": [4 << 30]})),
        time.sleep(600),
    ),
    "large-head": send_a_large_head,
    "secret-error": raise_secret_error,
    "secret-value-error": lambda: int(SECRET),
    "secret-exit": lambda: (os.write(2, SECRET.encode()), os._exit(7)),
    "print": print_much,
    "log": log,
    "log as others": log_as_others,
    "log below": lambda: logging.getLogger("epctx.ep.below").warning(
        "the key is %s", "s3cret-v4lue"
    ),
    "note": note_the_process,
    "note-and-hang": lambda: (note_the_process(), time.sleep(600)),
    "note-slowly": lambda: (note_the_process(), time.sleep(2.5)),
    "leave-a-child": leave_a_child,
    "error": raise_error,
    "value-error": raise_value_error,
    "long-error": raise_long_error,
    "internal-error": raise_internal_error,
    "package-missing": raise_package_missing,
    "system-exit": lambda: sys.exit(3),
}


class Faulty(Alpha):
    """Alpha with a fault."""

    name = "FaultyExecutionProvider"
    binary_suffix = "faulty"
    options = (
        ProviderOption("fault", str, default="", doc="What goes wrong."),
        ProviderOption("hook", str, default="compile", doc="Where."),
        ProviderOption("answer", str, default="", doc="A message instead of its own."),
        ProviderOption("key", str, default="", doc="What nobody may see.", secret=True),
    )

    def __init__(self, context):
        super().__init__(context)
        self._reach("__init__")

    def _reach(self, hook):
        options = self.context.options
        if options["hook"] != hook:
            return
        if options["fault"]:
            FAULTS[options["fault"]]()
        if options["answer"]:
            answer_and_exit(json.loads(options["answer"]))

    @hookimpl
    def get_capability(self, graph):
        self._reach("get_capability")
        return super().get_capability(graph)

    @hookimpl
    def compile(self, partitions):
        self._reach("compile")
        return super().compile(partitions)

    @hookimpl
    def get_ep_context_nodes(self, writer):
        self._reach("get_ep_context_nodes")
        return super().get_ep_context_nodes(writer)

    @hookimpl
    def load_context(self, nodes, reader):
        self._reach("load_context")
        return super().load_context(nodes, reader)

    def _runnable(self, model):
        run = super()._runnable(model)
        if run is None:
            return None

        def reach_and_run(inputs, outputs=None):
            self._reach("run")
            return run(inputs, outputs)

        return reach_and_run

    @hookimpl
    def shutdown(self):
        self._reach("shutdown")


class Pointing(Alpha):
    """Believes its payload, as native readers do: the last eight bytes say where in
    memory there is more, or zero.
    """

    name = "PointingExecutionProvider"
    binary_suffix = "pointing"

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = super().get_ep_context_nodes(writer)
        nodes[0].payload.write(bytes(8))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        where = int.from_bytes(reader.payload(nodes[0]).view[-8:], "little")
        if where:
            ctypes.string_at(where)
        return super().load_context(nodes, reader)


class Patient(Alpha):
    """Waits in its compile until the host wants it to stop, and says so."""

    name = "PatientExecutionProvider"
    binary_suffix = "patient"

    @hookimpl
    def compile(self, partitions):
        self.context.progress("compile", 0, len(partitions))
        self.context.cancel.wait(60)
        self.context.cancel.raise_if_requested()
        return super().compile(partitions)


class PatientAtB(Patient):
    """Waits in the compile of the model `b` alone, and looks at the host's wish in
    every hook.
    """

    name = "PatientAtBExecutionProvider"
    binary_suffix = "patient_at_b"

    @hookimpl
    def compile(self, partitions):
        if self.context.model.name == "b":
            return super().compile(partitions)
        return Alpha.compile(self, partitions)

    @hookimpl
    def get_ep_context_nodes(self, writer):
        self.context.cancel.raise_if_requested()
        payload = writer.payload()
        if writer.final:
            graphs = {partition.name: model for partition, model in self._compiled}
            payload.write(packed(graphs))
        first, *others = (partition for partition, _ in self._compiled)
        return [
            EPContextNode(first, payload),
            *(EPContextNode(partition, main_context=0) for partition in others),
        ]


class Stuck(Faulty):
    """Reports progress in its compile before its fault."""

    name = "StuckExecutionProvider"
    binary_suffix = "stuck"

    @hookimpl
    def compile(self, partitions):
        self.context.progress("tune", 3, 10)
        return super().compile(partitions)


class StuckAtB(Stuck):
    """Has its fault in the compile of the model `b` alone."""

    name = "StuckAtBExecutionProvider"
    binary_suffix = "stuck_at_b"

    def _reach(self, hook):
        if self.context.model.name == "b":
            super()._reach(hook)


class Slow(Alpha):
    """Takes its time in each hook, most of 3 seconds in the last, and more in a run
    than to compile.
    """

    name = "SlowExecutionProvider"
    binary_suffix = "slow"

    @hookimpl
    def get_capability(self, graph):
        time.sleep(0.4)
        return super().get_capability(graph)

    @hookimpl
    def compile(self, partitions):
        time.sleep(0.4)
        return super().compile(partitions)

    @hookimpl
    def get_ep_context_nodes(self, writer):
        time.sleep(2.9)
        return super().get_ep_context_nodes(writer)

    def _runnable(self, model):
        run = super()._runnable(model)
        if run is None:
            return None

        def wait_and_run(inputs, outputs=None):
            time.sleep(1.5)
            return run(inputs, outputs)

        return wait_and_run


class Noting(Alpha):
    """Logs what it is told while its session lives, and whether that was in the host's
    process.
    """

    name = "NotingExecutionProvider"
    binary_suffix = "noting"
    dynamic_options = (
        ProviderOption("workload_type", str, default="", doc="What the host is after."),
    )

    def _note(self, what):
        where = "here" if os.environ["EPCTX_TEST_HOST"] == str(os.getpid()) else "there"
        self.context.logger.warning("%s %s", what, where)

    @hookimpl
    def set_dynamic_options(self, options):
        self._note(f"set {dict(options)}")

    @hookimpl
    def on_run_start(self, tag):
        self._note(f"start {tag}")

    @hookimpl
    def on_run_end(self, tag):
        self._note(f"end {tag}")

    @hookimpl
    def allocate(self, shape, dtype):
        self._note("allocate")
        return np.empty(shape, dtype)


class Half:
    """A tensor that an EP made."""

    elem_type, extent, source_name = TensorProto.FLOAT16, None, None

    def __init__(self, name, array):
        self.name, self.shape, self.dtype, self.nbytes = (
            name,
            array.shape,
            array.dtype,
            array.nbytes,
        )
        self._bytes = array.tobytes()
        self.digest = hashlib.sha256(self._bytes).hexdigest()

    def array(self):
        return np.frombuffer(self._bytes, self.dtype).reshape(self.shape)

    def chunks(self):
        yield memoryview(self._bytes)


class Converting(Alpha):
    """Writes its weights as float16: tensors that are not the model's own; then one of
    these again, and a file.
    """

    name = "ConvertingExecutionProvider"
    binary_suffix = "converting"
    wrong_digest: ClassVar[bool] = False

    @hookimpl
    def get_ep_context_nodes(self, writer):
        payload = writer.payload()
        payload.write(
            packed({partition.name: model for partition, model in self._compiled})
        )
        payload.align(64)
        for partition, _ in self._compiled:
            for name, weight in partition.weights.items():
                half = weight.array().astype(np.float16)
                made = Half(name, half)
                if self.wrong_digest:
                    made.digest = "0" * 64
                first = payload.write_tensor(made)
                assert payload.write_tensor(made) == first
                own = payload.write_tensor(weight)
                assert own + weight.nbytes == payload.size
        with self.context.scratch() as folder:
            (folder / "tail").write_bytes(b"tail" * 1000)
            payload.add_file(folder / "tail")
        first, *others = (partition for partition, _ in self._compiled)
        nodes = [
            EPContextNode(
                first, payload, attributes={"notes": "é", "sizes": [1, 2], "scale": 0.5}
            )
        ]
        return nodes + [EPContextNode(p, main_context=0) for p in others]


class Lying(Converting):
    """Gives a wrong digest for a weight that it made."""

    name = "LyingExecutionProvider"
    binary_suffix = "lying"
    wrong_digest = True


class Renaming(Alpha):
    """Wants Relu for each Neg."""

    name = "RenamingExecutionProvider"
    binary_suffix = "renaming"

    @hookimpl
    def optimize_model(self, model, weights):
        assert set(weights) == {t.name for t in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Neg":
                node.op_type = "Relu"
        model.graph.initializer.append(
            numpy_helper.from_array(np.zeros(1, np.float32), "unused")
        )
        return model


class ClaimsNonsense(Alpha):
    """Claims something else than nodes."""

    name = "NonsenseExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return [CompiledPartition(None)]


class ClaimsStrangers(Alpha):
    """Claims what is no node of the graph that it is asked about."""

    name = "StrangersExecutionProvider"
    options = (ProviderOption("what", str, default="", doc="What it claims."),)

    @hookimpl
    def get_capability(self, graph):
        if graph.parent_node is not None:
            self.inner = graph.nodes[0]
            return []
        strangers = {
            "number": 99,
            "text": "Relu",
            "inner": getattr(self, "inner", None),
        }
        return [ComputeCapability([strangers[self.context.options["what"]]])]


class RefusesNonsense(Alpha):
    """Gives a number for the reason why it takes no node."""

    name = "RefusingExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return [Refusal(5, graph.nodes)]


class NamesNonsense(Alpha):
    """Names things by numbers."""

    name = "NumberingExecutionProvider"
    options = (
        ProviderOption("what", str, default="", doc="What it gives as a number."),
    )

    @hookimpl
    def get_ep_context_nodes(self, writer):
        what = self.context.options["what"]
        said = {5: 5} if what == "attributes" else 5
        return [
            replace(node, **{what: said})
            for node in super().get_ep_context_nodes(writer)
        ]


class Marking(Alpha):
    """Marks what it does."""

    name = "MarkingExecutionProvider"

    def __init__(self, context):
        super().__init__(context)
        self.context = context

    @hookimpl
    def compile(self, partitions):
        with self.context.span("lower", target="v73"):
            compiled = super().compile(partitions)
        return [replace(each, run=self.mark(each.run)) for each in compiled]

    def mark(self, run):
        def marked(inputs, outputs=None):
            with self.context.span("submit"):
                return run(inputs, outputs)

        return marked


class DiesInSpan(Marking):
    """Ends its process while a span is open."""

    name = "DiesInSpanExecutionProvider"

    @hookimpl
    def compile(self, partitions):
        with self.context.span("lower"):
            os._exit(3)


class MarksInThread(Marking):
    """Has a span in a thread that outlives the call."""

    name = "MarksInThreadExecutionProvider"

    @hookimpl
    def compile(self, partitions):
        begun = threading.Event()

        def work():
            with self.context.span("background"):
                begun.set()
                time.sleep(0.3)

        threading.Thread(target=work).start()
        begun.wait()
        return super().compile(partitions)


class MarksWith(Marking):
    """Has a span with the facts that a test gives it."""

    name = "MarksWithExecutionProvider"
    options = (ProviderOption("facts", str, default="{}", doc="Facts, as JSON."),)

    @hookimpl
    def compile(self, partitions):
        with self.context.span("lower", **json.loads(self.context.options["facts"])):
            return Alpha.compile(self, partitions)


class TellsOfSpans(Marking):
    """Fails if spans would be sent although nobody observes them."""

    name = "TellsOfSpansExecutionProvider"

    @hookimpl
    def compile(self, partitions):
        assert self.context.span.__name__ == "no_span"
        return super().compile(partitions)
