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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from epctx_core import InferenceSession, Registry, SessionOptions, inspect_model
from epctx_core.errors import EpctxError, InternalError
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
_ALARM = getattr(signal, "SIGALRM", 0)
_LAST_WORDS = 400
_SCRIPT = Path(__file__).with_name("child.py")


def find_fatal_end(
    model: str | bytes,
    entries: Mapping[str, str],
    *,
    libraries: Sequence[str] = (),
    seconds: float,
    max_bytes: int,
) -> str:
    """Return how a process ended that loaded a model without its EPs; an empty text if
    it survived, whether or not the model is right.

    Args:
        model: its path, or its bytes.
        entries: config entries of the session.
        libraries: paths of libraries of custom operators.
        seconds: most time that it may take.
        max_bytes: most memory for data that the process may take.

    Raises:
        OSError: no process could be started.
    """
    content = b"" if isinstance(model, str) else model
    order = {
        "path": [os.fspath(path) for path in sys.path],
        "read": {
            "model": model if isinstance(model, str) else None,
            "size": len(content),
            "entries": dict(entries),
            "libraries": [os.fspath(path) for path in libraries],
            "seconds": seconds,
            "max_bytes": max_bytes,
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
        if not ended or process.first.returncode == -_ALARM:
            return f"it took longer than the {seconds:g} seconds that it had"
        if process.first.returncode == 0:
            return ""
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - _LAST_WORDS))
        words = printed.read().decode(errors="replace")
    said = "".join(c if c.isprintable() else " " for c in words).strip()
    return f"it {process.ending}" + (f", and printed: {said}" if said else "")


def read(order: Mapping[str, Any], content: bytes) -> None:
    """Load a model as far as no EP of it is needed, in the process that may end by it.

    Raises:
        InternalError: a fault that the host would see, too.
    """
    if hasattr(signal, "setitimer"):
        # The default action ends the process, whatever native code is doing.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, order["seconds"])
    limit_memory(order["max_bytes"])
    model = content if order["model"] is None else order["model"]
    options = SessionOptions()
    for key, value in order["entries"].items():
        options.add_session_config_entry(key, value)
    # No payload is asked for, and those of the host's callback are not here.
    options.add_session_config_entry("ep.context_verify", "lazy")
    for library in order["libraries"]:
        options.register_custom_ops_library(library)
    try:
        sources = {node.source for node in inspect_model(model).ep_contexts}
        registry = Registry(entry_points=False)
        registry.register(_StubProvider, sources=sorted(sources))
        InferenceSession(model, options, registry=registry).close()
    except InternalError:
        raise
    except EpctxError:
        # The host finds the same.
        pass


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
