"""Reading of a model of unknown origin in a process of its own, before the host does.

onnx's checker and inference and the engines are native code: a model can end their
process, keep it busy for ever, or fill its memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from epctx_core import (
    InferenceSession,
    InputBudget,
    Registry,
    SessionOptions,
    inspect_model,
)
from epctx_core.errors import EpctxError, InternalError
from epctx_core.ext import SESSION_OPTIONS
from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    ContextNode,
    ExecutionProvider,
    hookimpl,
)
from epctx_isolation.process_group import ProcessGroup
from epctx_isolation.service import limit_memory

STARTING_SECONDS = 60.0
"""Seconds that a process may take until it begins to read."""
_ALARM = getattr(signal, "SIGALRM", None)
_LAST_WORDS = 400
_SCRIPT = Path(__file__).with_name("child.py")


def try_reading(
    model: str | bytes,
    session: SessionOptions,
    *,
    seconds: float,
    max_bytes: int,
) -> tuple[bool, str]:
    """Have a process load a model without its EPs, see
    `epctx_core.plugin.ProcessIsolation`.

    Raises:
        OSError: no process could be started.
    """
    config = session.config()
    content = b"" if isinstance(model, str) else model
    # Its last line: an exit code alone may be lost, where the host ignores SIGCHLD.
    token = uuid.uuid4().hex
    order = {
        "path": [os.fspath(path) for path in sys.path],
        "read": {
            "model": model if isinstance(model, str) else None,
            "size": len(content),
            "entries": _select_entries(config.entries),
            "libraries": [os.fspath(path) for path in config.custom_ops_libraries],
            "budget": asdict(config.input_budget),
            "seconds": seconds,
            "max_bytes": max_bytes,
            "token": token,
        },
    }
    head = json.dumps(order).encode()
    with tempfile.TemporaryFile() as printed:
        process = ProcessGroup(
            [sys.executable, "-P", os.fspath(_SCRIPT)],
            stdin=-1,
            stdout=printed,
            stderr=printed,
        )
        sink = process.first.stdin
        assert sink is not None  # noqa: S101 - asked for above
        with contextlib.suppress(OSError), sink:  # it died at once
            sink.write(struct.pack("<I", len(head)) + head + content)
        # The process counts its seconds itself, from when it has started.
        ended = process.wait_and_end(STARTING_SECONDS + seconds)
        length = printed.seek(0, os.SEEK_END)
        printed.seek(max(0, length - _LAST_WORDS))
        lines = printed.read().decode(errors="replace").splitlines()

    answer = lines[-1] if lines else ""
    if answer == f"{token} loaded":
        return True, ""
    if answer == f"{token} refused":
        return False, ""
    if not ended or -process.first.returncode == _ALARM:
        return False, f"it took longer than the {seconds:g} seconds that it had"
    last_line = next((line for line in reversed(lines) if line.strip()), "")
    reason = f"it {process.ending}"
    return False, f"{reason}: {last_line}" if last_line else reason


def _select_entries(entries: Mapping[str, str]) -> dict[str, str]:
    """Return the config entries that have nothing to do with EPs, which are not
    here.
    """
    kept = {key: value for key, value in entries.items() if key in SESSION_OPTIONS}
    # No payload is asked for.
    return {**kept, "ep.context_verify": "lazy"}


def read(order: Mapping[str, Any], content: bytes) -> None:
    """Load a model as far as no EP of it is needed, in the process that may end by it;
    print the outcome.
    """
    if hasattr(signal, "setitimer"):
        # The default action ends the process, whatever native code is doing.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, order["seconds"])
    limit_memory(order["max_bytes"])
    outcome = "refused"
    try:
        _load(content if order["model"] is None else order["model"], order)
        outcome = "loaded"
    except InternalError:
        raise
    except EpctxError:
        # The host finds the same.
        pass
    print(f"\n{order['token']} {outcome}", flush=True)  # noqa: T201 - to the host


def _load(model: str | bytes, order: Mapping[str, Any]) -> None:
    options = SessionOptions()
    options.input_budget = InputBudget(**order["budget"])
    for key, value in order["entries"].items():
        options.add_session_config_entry(key, value)
    for library in order["libraries"]:
        options.register_custom_ops_library(library)

    described = inspect_model(model, budget=options.input_budget)
    registry = Registry(entry_points=False)
    registry.register(
        _StubProvider, sources=sorted({node.source for node in described.ep_contexts})
    )
    InferenceSession(model, options, registry=registry).close()


class _StubProvider(ExecutionProvider):
    """EP that takes the nodes of every source and loads nothing."""

    name = "StubExecutionProvider"
    vendor = "epctx"
    api_version = 1

    @hookimpl
    def get_capability(self) -> list[ComputeCapability]:
        """Claim nothing."""
        return []

    @hookimpl
    def compile(self) -> list[CompiledPartition]:
        """Compile nothing."""
        return []

    @hookimpl
    def load_context(self, nodes: Sequence[ContextNode]) -> list[CompiledPartition]:
        """Return partitions that are never run."""
        return [CompiledPartition(run=_refuse_run) for _ in nodes]


def _refuse_run(_inputs: object, _outputs: object = None) -> Any:
    raise AssertionError("nothing is run here")
