"""Formats of model files: ONNX, and others that installed packages decode to ONNX."""

from __future__ import annotations

import hashlib
from itertools import islice
from typing import TYPE_CHECKING, Final

from epctx_core.context.manifest import find_manifest
from epctx_core.errors import InvalidProtobuf
from epctx_core.graph.model_io import describe_path, parse_model, read_model
from epctx_core.options import InputBudget
from epctx_core.plugin.protos import ModelProto

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_core.context.manifest import Manifest
    from epctx_core.graph.mapping import ModelInput
    from epctx_core.plugin import ModelFormat
    from epctx_core.registry.installed import EntryPoint

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
"""The format of ONNX Runtime (`.ort`), and its bytes 4 to 7: the one format that bytes
lead to without a word of the host, and only to epctx's own package.
"""


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

    A format is imported only if the host named it, as an option or as the suffix of the
    file: no model's bytes choose which installed package is imported. The messages of
    ONNX are counted here, before any of them is decoded.

    Args:
        data: the whole file.
        path: where it was read from, None for bytes.
        budget: limits of the decoded model; None for the defaults.
        named: the format that the host named; the others are not asked.
        structure: the part of a model in ONNX that will be decoded; None for all.

    Raises:
        InvalidGraph: a model in ONNX exceeds the budget.
        InvalidProtobuf: it is not in the format that the host named.
        InvalidArgument: several packages have the format.
        PackageMissing: the format that the host named is not installed; or the model is
            in ONNX Runtime's format, and no package that decodes it is installed.
        PluginError: the package of the format failed.
    """
    told = other = None
    if not _is_onnx(data):
        told = _name_format(data, path)
        if named != ONNX and (name := named or told):
            other = _ask_format(name, data, path)
    is_refused = told if named == ONNX else named and other is None
    if is_refused:
        raise InvalidProtobuf(
            f"session.load_model_format is {named}, and {describe_path(path)} is not "
            "in that format.",
            path=path,
            hint="Leave the option out, or name the format that the model is in.",
        )

    budget = budget or InputBudget()
    # A message, node or text takes two bytes at least. Most models are small, for their
    # weights lie beside them.
    structure = data if structure is None else structure
    if other is None and len(structure) // 2 > budget.free:
        from epctx_core.graph.counting import check_budget

        check_budget(structure, len(data), budget, path)
    return other


def _name_format(data: bytes, path: Path | None) -> str | None:
    """Return the installed format that a file's suffix names, or ONNX Runtime's if
    these are its bytes.
    """
    if data[4:8] == _ORT_IDENTIFIER:
        from epctx_core.installing import PROVIDED_BY

        return f"{PROVIDED_BY[GROUP, _ORT]}:{_ORT}"
    from epctx_core.registry.installed import list_entries

    suffix = "" if path is None else path.suffix[1:].lower()
    names = {entry.name.lower(): entry.name for entry in list_entries(GROUP)}
    return names.get(suffix) if suffix != ONNX.lower() else None


def _ask_format(name: str, data: bytes, path: Path | None) -> EntryPoint | None:
    """Return an installed format if it recognises a model; see `find_format`."""
    from epctx_core.registry.entries import blame_entry, import_entry

    what = f"the format {name} of {describe_path(path)}"
    if data[4:8] == _ORT_IDENTIFIER:
        what = f"{describe_path(path)}, which is in ONNX Runtime's own format (.ort),"
    entry, model_format = import_entry(GROUP, name, _KIND, needed_by=what)
    with blame_entry(entry, _KIND):
        return entry if model_format.recognizes(data) else None


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
