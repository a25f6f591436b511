"""Compiles and sessions with isolated EPs, and what is left of their processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from support.small_models import chain, saved

import epctx_core as epctx

OPERATORS = ("Add", "Relu", "Sigmoid", "Add", "Relu")
"""Alpha takes two partitions of these, with a weight each."""


def options_for(*eps, isolate="compile", provider_options=None, **entries):
    options = epctx.SessionOptions()
    for ep in eps:
        options.add_provider(ep if isinstance(ep, str) else ep.name, provider_options)
    options.add_session_config_entry("ep.isolate", isolate)
    for key, value in {"isolate_timeout_seconds": 60, **entries}.items():
        options.add_session_config_entry(f"ep.{key}", str(value))
    return options


def registry_of(*eps):
    registry = epctx.Registry(entry_points=False)
    for ep in eps:
        registry.register(ep)
    return registry


def source(folder, operators=OPERATORS):
    return saved(chain(operators), folder / "m.onnx")


def compiled(folder, model, ep, options, **arguments):
    """Compile into a new folder; return it."""
    folder.mkdir()
    compiler = epctx.ModelCompiler(
        options, model, registry=registry_of(ep), **arguments
    )
    compiler.compile_to_file(folder / "m_ctx.onnx")
    return folder


def children():
    """Return the processes that this one has started, those included that have ended
    and were not waited for.
    """
    lists = [path / "children" for path in Path("/proc/self/task").iterdir()]
    return {
        int(pid) for path in lists if path.exists() for pid in path.read_text().split()
    }


def open_pipes():
    """Return the pipes and sockets that this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(descriptor.readlink().name)
    return {name for name in found if name.startswith(("pipe:", "socket:"))}


def threads():
    """Return the threads that the core has under way in this process."""
    return {
        thread for thread in threading.enumerate() if thread.name.startswith("epctx")
    }


@contextmanager
def nothing_left(temporary):
    """Hold that the block leaves no process, thread, descriptor or temporary folder; as
    the suite's own TMPDIR says.
    """
    before, running = (children(), open_pipes()), threads()
    yield
    assert (children(), open_pipes()) == before
    # Those of earlier tests may end meanwhile.
    assert threads() <= running
    assert list(temporary.iterdir()) == []


def is_alive(pid):
    """Whether a process runs; one that has ended and waits to be asked for does not."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False


def wait_for(condition, seconds=20.0):
    """Wait until a condition holds; return whether it does."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def interrupt_when(condition):
    """Begin a thread that sends this process what Ctrl-C does, once a condition
    holds.
    """

    def interrupt():
        if wait_for(condition):
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()


def turn_bits_over(good, generator):
    """Return bytes with one to four bits of them turned over."""
    data = bytearray(good)
    for _ in range(generator.randint(1, 4)):
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    return bytes(data)
