"""Reading of a model of unknown origin in a child, before the host does.

onnx's checker and inference and the engines are native code: a model can end their
process, keep it busy for ever, or fill its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from epctx_core import InferenceSession, Registry, SessionOptions, inspect_model
from epctx_core.errors import EpctxError, InternalError
from epctx_core.ext import SESSION_OPTIONS
from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    ContextNode,
    ExecutionProvider,
    hookimpl,
)
from epctx_isolation.functions import IsolatedFunctions


def try_reading(
    model: str | bytes,
    session: SessionOptions,
    *,
    seconds: float,
    max_bytes: int,
) -> tuple[bool, str]:
    """Have a child load a model without its EPs, see
    `epctx_core.plugin.ProcessIsolation`.
    """
    if not IsolatedFunctions.are_available():
        return True, ""
    options = _leave_out_eps(session)
    with IsolatedFunctions(seconds=seconds, max_bytes=max_bytes) as functions:
        try:
            return functions.call(read, model, options, result=bool), ""
        except InternalError:
            raise
        except EpctxError as error:
            return False, functions.describe_end() or error.message


def _leave_out_eps(session: SessionOptions) -> SessionOptions:
    """Return the options that have nothing to do with EPs, which are not in the
    child.
    """
    config = session.config()
    options = SessionOptions()
    options.input_budget = config.input_budget
    for key, value in config.entries.items():
        if key in SESSION_OPTIONS:
            options.add_session_config_entry(key, value)
    # No payload is asked for.
    options.add_session_config_entry("ep.context_verify", "lazy")
    for library in config.custom_ops_libraries:
        options.register_custom_ops_library(library)
    return options


def read(model: str | bytes, options: SessionOptions) -> bool:
    """Load a model as far as no EP of it is needed, in the process that may end by it;
    return whether it is not refused, which the host finds, too.
    """
    try:
        _load(model, options)
    except InternalError:
        raise
    except EpctxError as error:
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__ from None
        return False
    return True


def _load(model: str | bytes, options: SessionOptions) -> None:
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
