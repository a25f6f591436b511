"""Rules for every context model that a test writes: no path of this machine, and
onnxruntime resolves it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import mmap
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from support.folders import ROOT

import epctx_core as epctx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

STAGING = ".epctx-"
NOT_COMPATIBLE = (
    "is not compatible with any execution provider added to the session",
    "Failed to find kernel for com.microsoft.EPContext",
    "Could not find an implementation for EPContext(1)",  # Before 1.31.
)
"""Message of onnxruntime when it understands everything in a model but the EP that an
EPContext node needs.
"""

_seen: set[bytes] = set()


def paths_of_this_machine(basetemp: object = None) -> list[bytes]:
    """Return what no output may hold: temporary folders of tests and EPs, staging, this
    repository.
    """
    temporary = [
        f"{tempfile.gettempdir()}/{start}" for start in ("pytest-", "epctx-", "tmp")
    ]
    more = [str(basetemp)] if basetemp else []
    return [text.encode() for text in (*temporary, *more, str(ROOT), STAGING)]


class Observer:
    """Looks at what epctx's public functions have written, as soon as they return.

    The command line, the cache's own and the conformance kit call the same. What went
    into a host's function is looked at there.

    Args:
        needles: what no output may hold.
        looks: asked before each look whether to look at all.
        resolves: asked whether onnxruntime has to understand the context models.
    """

    def __init__(
        self,
        needles: list[bytes],
        *,
        looks: Callable[[], bool],
        resolves: Callable[[], bool],
    ) -> None:
        self._needles = needles
        self._looks = looks
        self._resolves = resolves

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Wrap the functions until the patch is undone."""
        compiler, cache = (
            epctx.ModelCompiler,
            sys.modules[epctx.load_or_compile.__module__],
        )
        sealing = sys.modules[epctx.seal_model.__module__]
        for owner, name, wrapper in (
            (compiler, "compile_to_file", self._after_file),
            (compiler, "compile_to_bytes", self._after_bytes),
            (compiler, "compile_to_stream", self._around_stream),
            (compiler, "set_ep_context_data_write_func", self._around_payloads),
            (epctx.ShareGroup, "finish", self._after_group),
            (epctx.InferenceSession, "__init__", self._after_session),
            (cache, "load_or_compile", self._after_cache),
            (cache, "compile_cached", self._after_cache),
            (sealing, "seal_model", self._after_seal),
        ):
            honest = getattr(owner, name)
            patch.setattr(owner, name, functools.wraps(honest)(wrapper(honest)))
        for name in ("load_or_compile", "compile_cached"):
            patch.setattr(epctx, name, getattr(cache, name))
        patch.setattr(epctx, "seal_model", sealing.seal_model)

    def _after_file(self, honest: Any) -> Any:
        def compile_to_file(
            compiler: epctx.ModelCompiler, *given: Any, **named: Any
        ) -> Any:
            report = honest(compiler, *given, **named)
            self._look_at(report)
            return report

        return compile_to_file

    def _after_bytes(self, honest: Any) -> Any:
        def compile_to_bytes(compiler: epctx.ModelCompiler) -> Any:
            data = honest(compiler)
            self._look_at(compiler.report)
            self._look_at_model(data, compiler.report.folder)
            return data

        return compile_to_bytes

    def _around_stream(self, honest: Any) -> Any:
        def compile_to_stream(
            compiler: epctx.ModelCompiler, write_function: Any
        ) -> None:
            data = bytearray()

            def write(piece: bytes) -> object:
                data.extend(piece)
                return write_function(piece)

            honest(compiler, write if callable(write_function) else write_function)
            self._look_at(compiler.report)
            self._look_at_model(bytes(data), compiler.report.folder)

        return compile_to_stream

    def _around_payloads(self, honest: Any) -> Any:
        def set_ep_context_data_write_func(
            compiler: epctx.ModelCompiler, function: Any
        ) -> None:
            def write(name: str, data: epctx.OrtEpContextData) -> object:
                if self._looks():
                    assert_without(self._needles, name, data.read())
                return function(name, data)

            honest(compiler, write if callable(function) else function)

        return set_ep_context_data_write_func

    def _after_group(self, honest: Any) -> Any:
        def finish(group: epctx.ShareGroup) -> Any:
            report = honest(group)
            self._look_at_files(report.folder, [file.path for file in report.binaries])
            for member in report.members:
                self._look_at(member)
            return report

        return finish

    def _after_session(self, honest: Any) -> Any:
        def init(session: epctx.InferenceSession, *given: Any, **named: Any) -> None:
            honest(session, *given, **named)
            options = session.get_session_options()
            if options.get_session_config_entry("ep.context_enable") == "1":
                arguments = (
                    inspect.signature(honest).bind(session, *given, **named).arguments
                )
                path = options.get_session_config_entry("ep.context_file_path")
                if not path:
                    source = Path(os.fsdecode(arguments["path_or_bytes"]))
                    path = source.with_name(f"{source.stem}_ctx.onnx")
                self._look_at_written(Path(path))

        return init

    def _after_cache(self, honest: Any) -> Any:
        def from_cache(*given: Any, **named: Any) -> Any:
            arguments = inspect.signature(honest).bind(*given, **named).arguments
            folder = arguments.get("cache_dir") or os.environ.get("EPCTX_CACHE_DIR")
            before = _models_below(folder)
            try:
                return honest(*given, **named)
            finally:  # an entry may be written, and its session be refused
                for path, *_ in _models_below(folder) - before:
                    self._look_at_written(path)

        return from_cache

    def _after_seal(self, honest: Any) -> Any:
        def seal_model(*given: Any, **named: Any) -> Any:
            report = honest(*given, **named)
            self._look_at_written(report.path)
            if report.manifest is not None:
                self._look_at_files(report.manifest.parent, [report.manifest.name])
            return report

        return seal_model

    def _look_at(self, report: epctx.CompileReport) -> None:
        """Look at what a report lists."""
        files = [file.path for file in report.outputs]
        if report.output is not None and self._looks():
            self._look_at_model(report.output.read_bytes(), report.folder)
            files.remove(report.output.name)
        self._look_at_files(report.folder, files)

    def _look_at_written(self, path: Path) -> None:
        """Look at a context model, if it was written, and at the files beside it that
        it names.
        """
        if self._looks() and path.exists():
            model = onnx.load(path, load_external_data=False)
            names = {
                entry.value
                for entry in _external_data(model.graph)
                if entry.key == "location"
            }
            for node in _all_nodes(model.graph):
                given = {attribute.name: attribute for attribute in node.attribute}
                if (
                    node.op_type == "EPContext"
                    and given["embed_mode"].i == 0
                    and "ep_cache_context" in given
                ):
                    names.add(os.fsdecode(given["ep_cache_context"].s))
            self._look_at_files(
                path.parent, [name for name in names if (path.parent / name).is_file()]
            )
            self._look_at_model(path.read_bytes(), path.parent)

    def _look_at_files(self, folder: Path | None, names: Iterable[str]) -> None:
        for name in names if self._looks() else ():
            with (folder / name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                # Mapped: some tests count the bytes that a compile reads.
                content = (
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    if size
                    else b""
                )
                assert_without(self._needles, name, content)

    def _look_at_model(self, data: bytes, folder: Path | None) -> None:
        if self._looks():
            assert_without(self._needles, "the model", data)
            digest = hashlib.sha256(data).digest()
            if self._resolves() and digest not in _seen:
                check_resolved(data, folder)
                _seen.add(digest)


def _models_below(folder: str | os.PathLike[str] | None) -> set[tuple[Path, int, int]]:
    """Return the models in a folder, each with what changes when it is written
    again.
    """
    found = set()
    # Other threads may remove folders and files meanwhile, which os.walk leaves out.
    for parent, _, names in os.walk(folder) if folder is not None else ():
        for path in (Path(parent, name) for name in names if name.endswith(".onnx")):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.add((path, status.st_ino, status.st_mtime_ns))
    return found


def assert_without(needles: list[bytes], name: str, content: bytes | mmap.mmap) -> None:
    """Fail if an output holds one of these."""
    for needle in needles:
        if content.find(needle) >= 0:
            # No Exception: what nobody foresaw leaves epctx as an InternalError.
            pytest.fail(f"{name} holds {needle!r}, a path of the machine that wrote it")


def check_resolved(data: bytes, folder: Path | None) -> None:
    """Fail unless onnxruntime understands everything in a context model but who runs
    its EPContext nodes.
    """
    if not any(
        node.op_type == "EPContext"
        for node in _all_nodes(onnx.load_from_string(data).graph)
    ):
        return
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    if folder is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder)
        )
    try:
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - onnxruntime's have no class in common
        if not any(end in str(error) for end in NOT_COMPATIBLE):
            pytest.fail(f"onnxruntime does not resolve what was written: {error}")
    else:
        pytest.fail("onnxruntime made a session of a model with EPContext nodes")


def _external_data(graph: onnx.GraphProto) -> Iterator[onnx.StringStringEntryProto]:
    for tensor in graph.initializer:
        yield from tensor.external_data


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (
                *attribute.graphs,
                *([attribute.g] if attribute.HasField("g") else []),
            ):
                yield from _all_nodes(body)
