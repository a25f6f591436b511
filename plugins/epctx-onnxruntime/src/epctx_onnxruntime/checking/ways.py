"""Ways in which a case runs on an EP, and what onnxruntime says that ran there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx

from epctx_core import InferenceSession, ModelCompiler, Registry, SessionOptions
from epctx_onnxruntime.checking.subject import CPU
from epctx_onnxruntime.engine import OnnxRuntimeModel

if TYPE_CHECKING:
    from epctx_onnxruntime.checking.subject import Subject

Run: TypeAlias = "Callable[..., list[Any]]"
"""`run(None, inputs)`, as in onnxruntime."""
KIT = "kit"
NATIVE = "onnxruntime"
WAYS = {
    NATIVE: "a session of onnxruntime with the EP, without epctx",
    "direct": "a session of epctx",
    "file": "a context model in files, compiled and run by epctx",
    "embed": "a context model in bytes, compiled and run by epctx",
}


@dataclass(frozen=True)
class Way:
    """Way in which a case runs; `str` gives it with the fingerprint of the EP that it
    is for.

    Attributes:
        name: one of `WAYS`, or `KIT` for the conformance kit.
        fingerprint: of the subject, so that results of another one are not taken for
            its.
    """

    name: str
    fingerprint: str

    @property
    def host(self) -> str:
        """Name of the host that has the session, `onnxruntime` or `epctx`."""
        return NATIVE if self.name == NATIVE else "epctx"

    @property
    def eps(self) -> str:
        """Part of the name that the ways of one host share."""
        return f"{self.host}-{self.fingerprint}"

    @property
    def through(self) -> str:
        """Part of the name that tells them apart."""
        return "direct" if self.name == NATIVE else self.name

    def __str__(self) -> str:
        return f"{self.eps}.{self.through}"


_RECORD = "session.record_ep_graph_assignment_info"
_SILENT = 4
_NUMBERS = count()


@dataclass(kw_only=True)
class Assignment:
    """Nodes of a model by the EP that took them, and kernels that ran.

    Attributes:
        taken: names of the nodes that the EP took.
        left: names of those that others have.
        ran: kernels that the EP ran, a compiled group of nodes being one; None where
            onnxruntime does not run it.
        elsewhere: kernels that onnxruntime ran on other EPs in sessions for this one's
            nodes: operator to number.
    """

    taken: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    ran: int | None = None
    elsewhere: dict[str, int] = field(default_factory=dict)


@contextmanager
def open_way(
    model: bytes, way: Way, subject: Subject, folder: Path
) -> Iterator[tuple[Run, Assignment]]:
    """Give the run function of a session, and the assignment, which is complete when
    the session is closed.

    Args:
        model: of the case.
        way: the way.
        subject: the EP.
        folder: an empty one.

    Raises:
        EpctxError: epctx or the EP refuses the model.
        Exception: onnxruntime does, by an error of its own.
    """
    assignment = Assignment()
    named = _name_nodes(model)
    if way.name == NATIVE:
        session = _open_native(named, subject, folder, assignment)
        try:
            yield _make_run(session, named), assignment
        finally:
            session.end_profiling()
    else:
        with _open_epctx(named, way.name, subject, folder, assignment) as opened:
            yield opened.run, assignment
    if subject.plugin is not None:
        plugin = subject.plugin
        name = plugin.ep if way.name == NATIVE else None
        _read_profiles(assignment, folder, plugin.get_name(plugin.list_devices(name)))
        if way.name == NATIVE:
            assignment.elsewhere = {}  # nodes that it left ran in the same session


def open_without(model: bytes, way: Way) -> Any:
    """Return a session of the way's host with its CPU EP alone."""
    if way.name != NATIVE:
        return InferenceSession(model, providers=[CPU])
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    return onnxruntime.InferenceSession(model, options, providers=[CPU])


def _name_nodes(model: bytes) -> bytes:
    """Name the nodes that have no name, so that a report can name them."""
    named = onnx.ModelProto.FromString(model)
    names = {node.name for node in named.graph.node}
    for index, node in enumerate(named.graph.node):
        made = f"{node.op_type}_{index}"
        node.name = node.name or (made if made not in names else "")
    written: bytes = named.SerializeToString()
    return written


def _open_native(
    model: bytes, subject: Subject, folder: Path, assignment: Assignment
) -> Any:
    import onnxruntime

    plugin = subject.plugin
    provider = subject.provider
    typed = subject.typed_options()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    # Nodes would be fused and folded before the EP is asked.
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    options.add_session_config_entry(_RECORD, "1")
    devices = provider.select_devices(plugin.list_devices(plugin.ep), typed)  # type: ignore[attr-defined]
    plugin.add_to(options, devices, provider.vendor_options(typed))  # type: ignore[attr-defined]
    _profile(options, folder)
    session = onnxruntime.InferenceSession(model, options, enable_fallback=0)
    _note_assignment(assignment, session, plugin.ep)
    assignment.taken = _keep_names(model, assignment.taken)
    return session


def _keep_names(model: bytes, names: Iterable[str]) -> list[str]:
    """Return names of nodes as the model has them: onnxruntime renames nodes that it
    moves to another layout, and adds some.
    """
    model_names = {node.name for node in onnx.ModelProto.FromString(model).graph.node}
    kept = dict.fromkeys(name.partition("_token_")[0] for name in names)
    return [name for name in kept if name in model_names]


def _make_run(session: Any, model: bytes) -> Run:
    """Return a run function, which passes types that numpy does not have, too.

    Raises:
        NotImplementedByProvider: onnxruntime cannot pass a type to or from Python.
    """
    parsed = onnx.ModelProto.FromString(model)
    names = [value.name for value in parsed.graph.input]
    positional = OnnxRuntimeModel(session, parsed, ())

    def run(_names: None, inputs: Mapping[str, Any]) -> list[Any]:
        if set(inputs) != set(names):  # some have defaults
            return list(session.run(None, inputs))
        return list(positional.run([inputs[name] for name in names]))

    return run


def _open_epctx(
    model: bytes, way: str, subject: Subject, folder: Path, assignment: Assignment
) -> InferenceSession:
    provider = (
        subject.provider if subject.plugin is None else _watch(subject.provider, folder)
    )
    registry = Registry(entry_points=False)
    registry.register(provider)
    options = SessionOptions()
    options.add_provider(provider.name, dict(subject.options))
    options.add_session_config_entry(_RECORD, "1")
    # This process has just written the bytes.
    options.add_session_config_entry("ep.context_trust_unverified", "1")
    # onnxruntime compiles whatever the EP takes.
    options.add_session_config_entry("ep.partition_without_computation", "keep")
    if way == "direct":
        session = InferenceSession(model, options, registry=registry)
        _note_assignment(assignment, session, provider.name)
        return session
    source = folder / "model.onnx"
    source.write_bytes(model)
    compiler = ModelCompiler(options, source, way == "embed", registry=registry)
    written: Path | bytes
    if way == "embed":
        written = compiler.compile_to_bytes()
    else:
        written = folder / "model_ctx.onnx"
        compiler.compile_to_file(written)
    partitions = compiler.report.partitions if compiler.report is not None else ()
    for partition in partitions:
        assignment.taken += partition.node_names
    names = [node.name for node in onnx.ModelProto.FromString(model).graph.node]
    assignment.left = [name for name in names if name not in assignment.taken]
    source.unlink()
    return InferenceSession(written, options, registry=registry)


def _watch(provider: type[Any], folder: Path) -> type[Any]:
    """Return the EP with sessions that write profiles."""

    def session_options(self: Any, threads: int = 1, **more: bool) -> Any:
        options = provider.session_options(self, threads, **more)
        _profile(options, folder)
        return options

    return type(provider.__name__, (provider,), {"session_options": session_options})


def _profile(options: Any, folder: Path) -> None:
    # onnxruntime adds only the time in seconds to the name.
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / f"profile{next(_NUMBERS)}")


def _note_assignment(assignment: Assignment, session: Any, ep: str) -> None:
    for part in session.get_provider_graph_assignment_info():
        nodes = assignment.taken if part.ep_name == ep else assignment.left
        for node in part.get_nodes():
            nodes.append(node.name or node.op_type)


def _read_profiles(assignment: Assignment, folder: Path, ep: str) -> None:
    ran = 0
    others = Counter[str]()
    for path in folder.glob("profile*.json"):
        # A session that could not be made leaves an empty file.
        for event in json.loads(path.read_bytes() or b"[]"):
            if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
                continue
            if event["args"].get("provider") == ep:
                ran += 1
            else:
                others[event["args"].get("op_name", "?")] += 1
    assignment.ran = ran
    assignment.elsewhere = dict(others)
