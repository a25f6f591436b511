"""Formats of model files: ONNX, and others that installed packages decode to ONNX."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from onnx import ModelProto

from epctx_core.errors import EpctxError
from epctx_core.graph.model_io import describe_path, parse_model
from epctx_core.options import InputBudget

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_core.plugin import ModelFormat
    from epctx_core.registry.discovery import EntryPoint

GROUP: Final = "epctx.model_formats"
"""One entry for each format: its name is the format's, its value is a
`epctx_core.plugin.ModelFormat`.
"""
ONNX: Final = "ONNX"
_IR_VERSION: Final = b"\x08"
"""The first byte of the field `ir_version`."""
_ORT = "ORT"
_ORT_IDENTIFIER = b"ORTM"
"""The format of ONNX Runtime (`.ort`), and its bytes 4 to 7; known here so that an
error can name the package that decodes it.
"""
_log = logging.getLogger("epctx.context")


def find_format(
    data: bytes, path: Path | None, budget: InputBudget | None = None
) -> EntryPoint | None:
    """Return the format that a model is in; None for ONNX, also for damaged ONNX.

    The messages of ONNX are counted here, before any of them is decoded.

    Args:
        data: the whole file.
        path: where it was read from, None for bytes.
        budget: limits of the decoded model; None for the defaults.

    Raises:
        InvalidGraph: a model in ONNX exceeds the budget.
        PackageMissing: it is in ONNX Runtime's format, and no package that decodes it
            is installed.
    """
    if not _is_onnx(data):
        from epctx_core.registry.discovery import list_entries
        from epctx_core.registry.entries import describe_entry, import_entry

        for _, entry in list_entries(GROUP):
            try:
                if entry.load().recognizes(data):
                    return entry
            except Exception as error:  # noqa: BLE001 - a broken package must not hide what is wrong with the file
                _log.warning(
                    "%s is broken: %s: %s",
                    describe_entry(entry, "model format"),
                    type(error).__name__,
                    error,
                )
        if data[4:8] == _ORT_IDENTIFIER:
            what = f"{describe_path(path)}, which is in ONNX Runtime's own format"
            import_entry(GROUP, _ORT, "model format", needed_by=f"{what} (.ort),")

    budget = budget or InputBudget()
    # A message, node or text takes two bytes at least. Most models are small, for their
    # weights lie beside them.
    if len(data) // 2 > budget.free:
        from epctx_core.graph.counting import check_budget

        check_budget(data, budget, path)
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

    count = make_counter(len(data), budget or InputBudget(), path)
    try:
        model_format: ModelFormat = other.load()
        proto, operators = model_format.decode(data, path, count)
    except (EpctxError, MemoryError):
        raise
    except Exception as error:
        from epctx_core.registry.entries import entry_error

        hint = "This is a fault of the package that decodes the format."
        raise entry_error(other, "model format", error, hint) from error

    if operators:
        from epctx_core.context.kernel_types import write_kernel_types

        write_kernel_types(proto, operators)
    return proto


def _is_onnx(data: bytes) -> bool:
    """Return whether bytes are fields of a protobuf message, up to a graph."""
    # Nearly every model begins with the version of its format and a further field.
    if data[:1] == _IR_VERSION and 0 not in data[1:3]:
        return True
    from epctx_core.graph.wire import BYTES, walk_fields

    try:
        return any(
            (number, kind) == (ModelProto.GRAPH_FIELD_NUMBER, BYTES)
            for number, kind, _, _ in walk_fields(
                lambda offset, length: data[offset : offset + length], 0, len(data)
            )
        )
    except ValueError:
        return False
