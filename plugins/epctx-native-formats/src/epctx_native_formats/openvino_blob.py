"""Blobs that OpenVINO's CPU plugin exports (`CompiledModel.export_model`), also those
inside a container of onnxruntime's EP.

They begin with a text about what made them, since 2026, and with the offsets of three
sections that lie one behind the other: what the host added, weights, and the model. The
package openvino reads the rest, in another process.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from epctx_core.errors import EpctxError, InvalidGraph, NotImplementedByProvider
from epctx_native_formats.binaries import (
    HEAD,
    NativeBinary,
    NativeGraph,
    NativeTensor,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epctx_native_formats.binaries import BinaryReader

_MAGIC = b"RR_UPCVO"
_TEXT = struct.Struct("<8sIII")
"""Magic, version, and length of the text that follows; the last one is 0."""
_SECTIONS = struct.Struct("<6Q")
"""Offset and size of each section."""
_ELEMENT_TYPES = {
    "boolean": "BOOL", "f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT",
    "f64": "DOUBLE", "string": "STRING",
    **{f"i{bits}": f"INT{bits}" for bits in (4, 8, 16, 32, 64)},
    **{f"u{bits}": f"UINT{bits}" for bits in (4, 8, 16, 32, 64)},
}  # fmt: skip
"""Names of OpenVINO's element types, and of ONNX's."""


def matches(head: bytes) -> bool:
    """Return whether a binary begins with such a text, or with three sections, one
    behind the other.
    """
    if head.startswith(_MAGIC) or len(head) < _SECTIONS.size:
        return head.startswith(_MAGIC)
    end = _SECTIONS.size
    numbers = _SECTIONS.unpack_from(head)
    for offset, size in zip(numbers[::2], numbers[1::2], strict=True):
        if offset != end:
            return False
        end += size
    return True


def read(content: memoryview, name: str, reader: BinaryReader) -> NativeBinary:
    """Return the description of a blob; see `NativeFormat.read`. One that the installed
    OpenVINO does not read has no graphs, and the reason among its facts.
    """
    said = _read_text(content)
    facts = {}
    graphs: tuple[NativeGraph, ...] = ()
    try:
        arguments = reader.share(content), name
        graphs = (reader.call(describe, *arguments, name=name, result=NativeGraph),)
    except EpctxError as error:
        facts = {"graphs": f"not read: {error.message}"}
    return NativeBinary(
        format="openvino-blob",
        title="blob of OpenVINO's CPU plugin",
        bytes=len(content),
        sdk=f"OpenVINO {said['ov']}" if "ov" in said else "",
        target=said.get("isa", "CPU"),
        facts=facts,
        graphs=graphs,
    )


def _read_text(content: memoryview) -> dict[str, str]:
    """Return what a blob says of itself, by key; nothing for one without a text."""
    head = bytes(content[:HEAD])
    if not head.startswith(_MAGIC) or len(head) < _TEXT.size:
        return {}
    length = _TEXT.unpack_from(head)[2]
    text = head[_TEXT.size : _TEXT.size + length].decode(errors="replace")
    pairs = (entry.partition("=") for entry in text.split(";"))
    return {key: value for key, _, value in pairs}


def describe(content: memoryview | str, name: str) -> NativeGraph:
    """Return the graph of a blob, in the process that may end by it.

    Args:
        content: the blob, or the path of its file.
        name: what errors call it.

    Raises:
        NotImplementedByProvider: openvino is not installed.
        InvalidGraph: it refused the blob.
    """
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise NotImplementedByProvider(
            "the package openvino, which reads blobs of OpenVINO, is not installed.",
            hint="pip install openvino",
        ) from error
    import numpy as np

    data = np.memmap(content, np.uint8, "r") if isinstance(content, str) else content
    try:
        model = openvino.Core().import_model(bytes(data), "CPU")
    except RuntimeError as error:
        why = str(error).strip().splitlines()[-1]
        raise InvalidGraph(
            f"{name} is damaged, or of another version of OpenVINO: {why}.",
            hint="Fetch it again, or install the version of openvino that made it.",
        ) from error
    return NativeGraph(
        name="",
        inputs=_describe_tensors(model.inputs),
        outputs=_describe_tensors(model.outputs),
    )


def _describe_tensors(ports: Iterable[Any]) -> tuple[NativeTensor, ...]:
    return tuple(
        NativeTensor(
            name=min(port.names, default=""),
            type=port.element_type.get_type_name(),
            element_type=_ELEMENT_TYPES.get(port.element_type.get_type_name(), ""),
            # An open length is -1.
            shape=tuple(
                length.get_length() if length.is_static else -1
                for length in port.partial_shape
            ),
        )
        for port in ports
    )
