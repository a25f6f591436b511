"""What must be true of every context model that a test writes: no path of this machine, and onnxruntime resolves it."""

from __future__ import annotations

import functools
import hashlib
import mmap
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from epctx_core.compiling.writing.outputs import Outputs
    from epctx_core.context.embedding import SerializedModel

ROOT = Path(__file__).parents[1]
STAGING = ".epctx-"
NOT_COMPATIBLE = (
    "is not compatible with any execution provider added to the session",
    "Failed to find kernel for com.microsoft.EPContext",
)
"""How onnxruntime ends when everything in a model is understood but the EP that an EPContext node needs."""

_seen: set[bytes] = set()


def paths_of_this_machine(basetemp: object = None) -> list[bytes]:
    """Return what no output may hold: temporary folders of tests and EPs, staging, this repository."""
    temporary = [f"{tempfile.gettempdir()}/{start}" for start in ("pytest-", "epctx-", "tmp")]
    more = [str(basetemp)] if basetemp else []
    return [text.encode() for text in (*temporary, *more, str(ROOT), STAGING)]


def checked(
    finish: Callable[..., object], needles: list[bytes], *, resolved: Callable[[], bool]
) -> Callable[..., object]:
    """Return `Outputs.finish` that looks at what it has written."""

    @functools.wraps(finish)
    def finish_and_look(self: Outputs, model: SerializedModel, *arguments: object) -> object:
        for sink in self._delivered:
            assert_without(needles, sink.name, sink.getvalue())
        result = finish(self, model, *arguments)
        data = b"".join(model.chunks())
        assert_without(needles, "the model", data)
        folder, files = self.destination.folder, list(self._files)
        if self._is_lent:
            # A share group's files, binaries among them, are brought to their names when all are staged.
            folder = self._publication.staged_path(self.destination.model).parent
            files = [path.name for path in folder.iterdir() if path.is_file()]
        for name in files:
            with (folder / name).open("rb") as file:
                # Mapped: some tests count the bytes that a compile reads.
                content = (
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    if os.fstat(file.fileno()).st_size
                    else b""
                )
                assert_without(needles, name, content)
        digest = hashlib.sha256(data).digest()
        if resolved() and digest not in _seen:
            check_resolved(data, folder)
            _seen.add(digest)
        return result

    return finish_and_look


def assert_without(needles: list[bytes], name: str, content: bytes | mmap.mmap) -> None:
    """Fail if an output holds one of these."""
    for needle in needles:
        if content.find(needle) >= 0:
            # No Exception: what nobody foresaw leaves epctx as an InternalError.
            pytest.fail(f"{name} holds {needle!r}, a path of the machine that wrote it")


def check_resolved(data: bytes, folder: Path | None) -> None:
    """Fail unless onnxruntime understands everything in a context model but who runs its EPContext nodes."""
    if not any(node.op_type == "EPContext" for node in _all_nodes(onnx.load_from_string(data).graph)):
        return
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    try:
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - onnxruntime's have no class in common
        if not any(end in str(error) for end in NOT_COMPATIBLE):
            pytest.fail(f"onnxruntime does not resolve what was written: {error}")
    else:
        pytest.fail("onnxruntime made a session of a model with EPContext nodes")


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _all_nodes(body)
