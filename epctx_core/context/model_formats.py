"""Formats of model files: ONNX, and others that installed packages decode to ONNX."""

from __future__ import annotations

import hashlib
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

from onnx import ModelProto

from epctx_core.context.manifest import find_manifest
from epctx_core.errors import EpctxError
from epctx_core.graph.model_io import describe_path, parse_model, read_model
from epctx_core.options import InputBudget

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_core.context.manifest import Manifest
    from epctx_core.graph.mapping import ModelInput
    from epctx_core.plugin import ModelFormat
    from epctx_core.registry.discovery import EntryPoint

GROUP: Final = "epctx.model_formats"
"""One entry for each format: its name is the format's, its value is a
`epctx_core.plugin.ModelFormat`.
"""
ONNX: Final = "ONNX"
_KIND = "model format"
_FIELDS_SEEN = 256
"""Fields of a file that are looked at until one is a graph: a model has few before."""
_IR_VERSION: Final = b"\x08"
"""The first byte of the field `ir_version`."""
_ORT = "ORT"
_ORT_IDENTIFIER = b"ORTM"
"""The format of ONNX Runtime (`.ort`), and its bytes 4 to 7; known here so that an
error can name the package that decodes it.
"""
_log = logging.getLogger("epctx.context")


def read_with_manifest(
    model: ModelInput, budget: InputBudget | None = None, *, checked: bool = False
) -> tuple[ModelProto, bytes, Path | None, Manifest | None]:
    """Read a model of any format, and nothing that it names.

    Args:
        model: a path or bytes.
        budget: limits of the decoded model; None for the defaults.
        checked: whether a manifest beside the model has to be of this very model.

    Returns:
        The model, the bytes of its file, its path, and its manifest.

    Raises:
        NoSuchFile, InvalidArgument, InvalidProtobuf: see `read_model`, `decode_model`.
        InvalidGraph: it exceeds the budget, or its manifest is damaged.
    """
    data, path = read_model(model)
    budget = budget or InputBudget()
    proto = decode_model(data, path, budget, find_format(data, path, budget))
    digest = (lambda: hashlib.sha256(data).hexdigest()) if checked else None
    manifest = find_manifest(proto, path, digest, budget.manifest_entries)
    return proto, data, path, manifest


def find_format(
    data: bytes,
    path: Path | None,
    budget: InputBudget | None = None,
    named: str | None = None,
    structure: bytes | None = None,
) -> EntryPoint | None:
    """Return the format that a model is in; None for ONNX, also for damaged ONNX.

    The messages of ONNX are counted here, before any of them is decoded.

    Args:
        data: the whole file.
        path: where it was read from, None for bytes.
        budget: limits of the decoded model; None for the defaults.
        named: the format that the host named; the others are not asked.
        structure: the part of a model in ONNX that will be decoded; None for all.

    Raises:
        InvalidGraph: a model in ONNX exceeds the budget.
        PackageMissing: the format that the host named is not installed; or the model is
            in ONNX Runtime's format, and no package that decodes it is installed.
    """
    other = None if _is_onnx(data) else _ask_formats(data, path, named)
    budget = budget or InputBudget()
    # A message, node or text takes two bytes at least. Most models are small, for their
    # weights lie beside them.
    structure = data if structure is None else structure
    if other is None and len(structure) // 2 > budget.free:
        from epctx_core.graph.counting import check_budget

        check_budget(structure, len(data), budget, path)
    return other


def _ask_formats(
    data: bytes, path: Path | None, named: str | None
) -> EntryPoint | None:
    """Return the installed format that recognises a model; see `find_format`."""
    from epctx_core.registry.discovery import list_entries
    from epctx_core.registry.entries import (
        blame_entry,
        find_entry,
        import_entry,
    )

    entries = [entry for _, entry in list_entries(GROUP)]
    if named is not None and named != ONNX:
        entries = [find_entry(GROUP, named, _KIND)]
    for entry in entries:
        try:
            with blame_entry(entry, _KIND):
                if entry.load().recognizes(data):
                    return entry
        except EpctxError as error:
            # A broken package must not hide what is wrong with the file.
            _log.warning("%s", error.message)

    if data[4:8] == _ORT_IDENTIFIER:
        what = f"{describe_path(path)}, which is in ONNX Runtime's own format (.ort),"
        import_entry(GROUP, _ORT, _KIND, needed_by=what)
    return None


def decode_model(
    data: bytes,
    path: Path | None,
    budget: InputBudget | None,
    other: EntryPoint | None,
) -> ModelProto:
    """Decode a model of any format.

    Args:
        data: the whole file.
        path: where it was read from, None for bytes.
        budget: limits of the decoded model; None for the defaults. `find_format` counts
            a model in ONNX.
        other: its format if that is not ONNX; see `find_format`.

    Raises:
        InvalidGraph: it decodes to more than the budget.
        InvalidProtobuf: it is in no format that is installed, damaged, or in an unknown
            version of its format.
        PluginError: the package that decodes the format failed.
    """
    if other is None:
        return parse_model(data, path)

    from epctx_core.graph.counting import make_counter
    from epctx_core.registry.entries import blame_entry, entry_error

    count = make_counter(len(data), budget or InputBudget(), path)
    with blame_entry(other, _KIND):
        model_format: ModelFormat = other.load()
        proto = model_format.decode(data, path, count)
    if not isinstance(proto, ModelProto):
        problem = f"decoded {describe_path(path)} to something else than a model"
        hint = "See epctx_core.plugin.ModelFormat.decode."
        raise entry_error(other, _KIND, problem, hint)

    return proto


def _is_onnx(data: bytes) -> bool:
    """Return whether bytes are fields of a protobuf message, up to a graph."""
    # Nearly every model begins with the version of its format and a further field.
    if data[:1] == _IR_VERSION and 0 not in data[1:3]:
        return True
    from epctx_core.graph.wire import BYTES, walk_fields

    fields = walk_fields(lambda start, size: data[start : start + size], 0, len(data))
    try:
        return any(
            (number, kind) == (ModelProto.GRAPH_FIELD_NUMBER, BYTES)
            for number, kind, _, _ in islice(fields, _FIELDS_SEEN)
        )
    except ValueError:
        return False
