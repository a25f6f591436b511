"""A host that forks: prints what each child and the parent saw, as JSON.

Runs as a program of its own.
"""

# ruff: noqa: SLF001 - a state that only the inside has

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
from support.engine_eps import Alpha

import epctx_core as epctx
from epctx_core.plugin import hookimpl
from epctx_core.registry import default_registry
from epctx_core.sessions.workspaces import shared_workspaces

SECONDS = 60
"""After which a child that hangs is killed."""
shutdowns: list[int] = []


class Watched(Alpha):
    """Alpha, which says in which process it is shut down, and keeps a folder."""

    def __init__(self, context):
        super().__init__(context)
        self._folders = contextlib.ExitStack()
        self.folder = self._folders.enter_context(context.scratch())

    @hookimpl
    def shutdown(self):
        shutdowns.append(os.getpid())
        self._folders.close()


def in_child(function, *arguments):
    """Return what a function returns in a forked child; None if the child was
    killed.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        try:
            answer = function(*arguments)
        except BaseException as error:  # noqa: BLE001 - the parent prints it
            answer = {"error": type(error).__name__, "text": str(error)}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else None


def options(*, shares=False):
    session_options = epctx.SessionOptions()
    session_options.intra_op_num_threads = 4
    session_options.add_provider("QNN")
    if shares:
        session_options.add_session_config_entry("ep.share_ep_contexts", "1")
    return session_options


def outputs(model, feeds, session_options=None):
    with epctx.InferenceSession(model, session_options or options()) as session:
        return [result.tolist() for result in session.run(None, feeds)]


def close(session):
    """Close an inherited session and drop all that a child can reach."""
    session.close()
    del session
    gc.collect()
    return shutdowns


def compiled(model, folder):
    report = epctx.ModelCompiler(options(), model).compile_to_file(
        folder / "child_ctx.onnx"
    )
    return [file.path for file in report.outputs]


def use_registry():
    epctx.register_execution_provider(
        type("Beta", (Alpha,), {"name": "ChildExecutionProvider"})
    )
    epctx.refresh_plugins()
    return epctx.get_available_providers()


@contextlib.contextmanager
def in_thread(block):
    """Have another thread inside a block while something happens."""
    inside, over = threading.Event(), threading.Event()

    def work():
        with block:
            inside.set()
            over.wait(SECONDS)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    yield
    over.set()
    thread.join()


def locked():
    """Fork while another thread is in the registry."""
    with in_thread(default_registry._lock()):
        return in_child(use_registry)


def by_multiprocessing(method, model, feeds):
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        return pool.apply(outputs, (str(model), feeds))


def main(folder):
    model, feeds = folder / "m.onnx", {"x": np.load(folder / "x.npy")}
    epctx.ModelCompiler(options(), model).compile_to_file(folder / "m_ctx.onnx")
    registry = epctx.Registry(entry_points=False)
    registry.register(Watched)
    watched_options = epctx.SessionOptions()
    watched_options.add_provider(Watched.name)
    session = epctx.InferenceSession(model, options())
    watched = epctx.InferenceSession(model, watched_options, registry=registry)
    sharing = epctx.InferenceSession(folder / "m_ctx.onnx", options(shares=True))
    group = epctx.ShareGroup(folder)
    group.compile(model, options(), name="group")
    before = outputs(model, feeds)
    seen = {
        "parent": before,
        "run": in_child(lambda: len(session.run(None, feeds))),
        "names": in_child(session.get_providers),
        "shutdowns in the child": in_child(close, watched),
        "closed with threads": in_child(close, session),
        "new session": in_child(outputs, model, feeds),
        "new load": in_child(outputs, folder / "m_ctx.onnx", feeds),
        "new compile": in_child(compiled, model, folder),
        "registry": in_child(use_registry),
        "group": in_child(group.finish),
        "group left": in_child(lambda: [group.discard(), gc.collect() >= 0]),
        "workspaces": in_child(
            lambda: [
                outputs(folder / "m_ctx.onnx", feeds, options(shares=True)),
                len(shared_workspaces.get()._found),
            ]
        ),
        "fork": by_multiprocessing("fork", model, feeds),
        "spawn": by_multiprocessing("spawn", model, feeds),
    }
    seen["locked"] = locked()
    seen["parent again"] = [result.tolist() for result in session.run(None, feeds)]
    group.finish()
    for each in (session, watched, sharing):
        each.close()
    seen["shutdowns in the parent"] = [pid == os.getpid() for pid in shutdowns]
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
