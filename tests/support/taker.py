"""An EP that takes whatever it is told to, and the three ways through epctx that
results are compared on.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from support.engine_eps import EngineProvider

import epctx_core as epctx
from epctx_core.plugin import hookimpl, supported_partitions

if TYPE_CHECKING:
    from pathlib import Path

    import onnx


class Taker(EngineProvider):
    """Takes nodes by operator, whatever their types."""

    name = "TakerExecutionProvider"
    binary_suffix = "taker"
    operators: ClassVar[frozenset[str]] = frozenset(
        {"Relu", "Add", "Abs", "Conv", "Neg", "Mul", "Exp"}
    )

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type in self.operators)


def expected(model: onnx.ModelProto | str, feeds: dict[str, Any]) -> list[Any]:
    """Return what onnxruntime gives for a model, or `onnx.reference` where onnxruntime
    does not take it.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    given = model if isinstance(model, str) else model.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(
            given, options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, feeds))
    except Exception:  # noqa: BLE001 - its exceptions have no base of their own
        return list(ReferenceEvaluator(model).run(None, feeds))


def assert_same(one: Any, other: Any) -> None:
    """Hold values of any kind against each other: lists, maps, nothing, text,
    numbers.
    """
    assert type(one) is type(other) or isinstance(one, (np.ndarray, np.generic, list))
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, dict):
        assert one == pytest.approx(other)
    elif one is not None:
        a, b = np.asarray(one), np.asarray(other)
        assert a.shape == b.shape
        if a.dtype.kind in "OUT":
            assert a.tolist() == b.tolist()
            return
        assert a.dtype == b.dtype
        if a.dtype.kind == "V":
            a, b = a.astype(np.float32), b.astype(np.float32)
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


class Outcome(NamedTuple):
    """Results in the model's order: of the source on the CPU EP, compiled in the
    session, loaded again.
    """

    original: list[np.ndarray]
    compiled: list[np.ndarray]
    loaded: list[np.ndarray]
    report: epctx.CompileReport

    @property
    def taken(self) -> int:
        """Number of nodes that the EP took."""
        return sum(partition.nodes for partition in self.report.partitions)


def options_with(
    ep: type[Taker] | None = None, **entries: object
) -> epctx.SessionOptions:
    """Return session options with the EP, and entries with `__` for a dot."""
    options = epctx.SessionOptions()
    if ep is not None:
        options.add_provider(ep.name)
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), str(value))
    return options


def registry_with(ep: type[Taker]) -> epctx.Registry:
    """Return a registry that knows one EP."""
    registry = epctx.Registry(entry_points=False)
    registry.register(ep)
    return registry


def compile_with(
    ep: type[Taker],
    source: Path | bytes,
    output: Path | None = None,
    *,
    embedded: bool = False,
    **entries: object,
) -> epctx.CompileReport:
    """Compile a model by one EP."""
    compiler = epctx.ModelCompiler(
        options_with(ep, **entries), source, embedded, registry=registry_with(ep)
    )
    return compiler.compile_to_file(output)


def run_with(
    ep: type[Taker],
    model: Path | bytes,
    feeds: dict[str, np.ndarray],
    *,
    providers: bool = True,
    **entries: object,
) -> list[np.ndarray]:
    """Run a model in a session that has the EP, or finds it by a context model's
    nodes.
    """
    options = options_with(ep if providers else None, **entries)
    with epctx.InferenceSession(model, options, registry=registry_with(ep)) as session:
        return session.run(None, feeds)


def through_everything(
    source: Path,
    feeds: dict[str, np.ndarray],
    other_folder: Path,
    *,
    ep: type[Taker] = Taker,
    embedded: bool = False,
) -> Outcome:
    """Run a model, compile it, take the source away, run the context model in another
    folder.

    Args:
        source: a model alone in its folder, with its weights; the folder is removed.
        feeds: its inputs.
        other_folder: a folder that does not exist yet.
        ep: who compiles.
        embedded: whether payloads go into the context model.
    """
    original = run_with(ep, source, feeds, providers=False)
    compiled = run_with(ep, source, feeds)
    built = other_folder.with_name(f"{other_folder.name}-built")
    built.mkdir()
    report = compile_with(ep, source, built / "m_ctx.onnx", embedded=embedded)
    built.rename(other_folder)
    shutil.rmtree(source.parent)
    loaded = run_with(ep, other_folder / "m_ctx.onnx", feeds, providers=False)
    return Outcome(original, compiled, loaded, report)
