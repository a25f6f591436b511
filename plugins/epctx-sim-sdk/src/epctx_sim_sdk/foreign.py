"""Recognition of payloads that no simulated SDK wrote: a few leading bytes are read, so
that a refusal can name them.
"""

from __future__ import annotations

import struct

from epctx_sim_sdk.versions import KIND, RESTORE

_ELSEWHERE = (
    "Load the model where the vendor's own EP is installed, or compile the source "
    "model again with this one."
)
_QNN_MAJOR = 2
_QNN_HIGHEST_MINOR = 255
_LONGEST_NAME = 1024

_MAGICS: tuple[tuple[int, bytes, str], ...] = (
    (
        0,
        b"OVEP_BIN",
        "a container of blobs written by the real OpenVINO execution provider (Intel)",
    ),
    (0, b"\x7fELF", "an ELF file, as real vendors' compilers for an NPU write it"),
    (0, b"ptrt", "a TensorRT engine (NVIDIA)"),
    (0, b"ftrt", "a TensorRT engine (NVIDIA)"),
    (0, b"PK\x03\x04", "a ZIP archive, as Qualcomm's DLC files are"),
    (0, b"\x1f\x8b", "a gzip file"),
    (0, b"<?xml", "an XML file, as the models of the real OpenVINO (Intel) are"),
    (
        257,
        b"ustar",
        "a tar archive, as the real VitisAI execution provider (AMD) writes it",
    ),
)


def recognise(view: memoryview, kind: object = None) -> str | None:
    """Return what a payload is, as the object of "this is ...", or None if it is
    nothing known.

    Args:
        view: the payload's bytes, of any length.
        kind: what its node says of it in `KIND`, if it does.
    """
    if isinstance(kind, str) and kind.casefold() == "dlc":
        return (
            f"a payload of kind {KIND}={kind}, a deep learning container (DLC) of "
            "Qualcomm's tools"
        )
    for offset, magic, what in _MAGICS:
        if bytes(view[offset : offset + len(magic)]) == magic:
            return what
    if _is_qnn(view):
        return "a context binary written by the real QNN SDK (Qualcomm)"
    if is_file_name(view):
        return (
            f"the text {bytes(view).decode()!r}, as if a file's name had been "
            "embedded in place of its bytes"
        )
    return None


def suggest_fix(view: memoryview, kind: object = None) -> str:
    """Return what a user can do about a payload that is none of the simulated SDK's, or
    a damaged one.
    """
    return (
        RESTORE if recognise(view, kind) is None or is_file_name(view) else _ELSEWHERE
    )


def _is_qnn(view: memoryview) -> bool:
    """Return whether the bytes begin like a QNN context binary.

    It has no magic, but starts with its format's version as two big-endian numbers,
    followed by a big-endian count of at least one.
    """
    if len(view) < struct.calcsize(">IIQ"):
        return False
    major, minor, parts = struct.unpack_from(">IIQ", view)
    return bool(
        major == _QNN_MAJOR
        and 0 < minor <= _QNN_HIGHEST_MINOR
        and 0 < parts <= _QNN_HIGHEST_MINOR
    )


def is_file_name(view: memoryview) -> bool:
    """Return whether a payload is a file's name: whoever made the model mistook one for
    the other.
    """
    if not 0 < len(view) <= _LONGEST_NAME:
        return False
    try:
        text = bytes(view).decode()
    except UnicodeDecodeError:
        return False
    return text.isprintable() and "." in text
