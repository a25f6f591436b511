"""Qualcomm's description of a context binary, read from the memory in which
libQnnSystem leaves it.

Runs in a process that may end by it. The structures are those of version 1 of QNN's
System API (QnnSystemContext.h, QnnTypes.h), which are versioned themselves; of others
nothing is known, so they are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import (
    CDLL,
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    byref,
    c_char_p,
    c_float,
    c_int32,
    c_uint32,
    c_uint64,
    c_void_p,
)

import numpy as np

from epctx_core.errors import InvalidGraph, NotImplementedByProvider
from epctx_native_formats.binaries import (
    NativeBinary,
    NativeGraph,
    NativeTensor,
    Quantization,
)

_SYSTEM_API = 1
_BACKENDS = {1: "reference", 3: "CPU", 4: "GPU", 5: "DSP", 6: "HTP", 8: "HTA"}
"""QNN's numbers of its back ends."""
_UNDEFINED = 0x7FFFFFFF
_LATEST = 3
_HIGHEST_VERSION = 100
"""Versions above it are damage rather than versions that are not read."""

# The low byte of a data type has its bits in decimal digits, the next one its family.
_FAMILIES = {
    0x0: ("INT_{}", "INT{}"),
    0x1: ("UINT_{}", "UINT{}"),
    0x2: ("FLOAT_{}", "FLOAT{}"),
    0x3: ("SFIXED_POINT_{}", "INT{}"),
    0x4: ("UFIXED_POINT_{}", "UINT{}"),
    0x5: ("BOOL_{}", "BOOL"),
    0x6: ("STRING", "STRING"),
}
_RENAMED = {"FLOAT32": "FLOAT", "FLOAT64": "DOUBLE"}
_ELEMENT_TYPES = frozenset(
    {"BOOL", "STRING", "FLOAT16", "FLOAT", "DOUBLE"}
    | {f"{sign}INT{bits}" for sign in ("", "U") for bits in (4, 8, 16, 32, 64)}
)


class _Version(Structure):
    _fields_ = (("major", c_uint32), ("minor", c_uint32), ("patch", c_uint32))


class _ScaleOffset(Structure):
    _fields_ = (("scale", c_float), ("offset", c_int32))


class _AxisScaleOffset(Structure):
    _fields_ = (
        ("axis", c_int32),
        ("count", c_uint32),
        ("values", POINTER(_ScaleOffset)),
    )


class _BitsScaleOffset(Structure):
    _fields_ = (("bits", c_uint32), ("scale", c_float), ("offset", c_int32))


class _BitsAxisScaleOffset(Structure):
    _fields_ = (
        ("bits", c_uint32),
        ("axis", c_int32),
        ("count", c_uint32),
        ("scales", POINTER(c_float)),
        ("offsets", POINTER(c_int32)),
    )


class _Encoding(Union):
    _fields_ = (
        ("whole", _ScaleOffset),
        ("axis", _AxisScaleOffset),
        ("bits", _BitsScaleOffset),
        ("bits_axis", _BitsAxisScaleOffset),
    )


class _Quantization(Structure):
    _fields_ = (("defined", c_uint32), ("encoding", c_uint32), ("value", _Encoding))


class _TensorBody(Structure):
    # Version 2 adds to the end of version 1.
    _fields_ = (
        ("id", c_uint32),
        ("name", c_char_p),
        ("type", c_uint32),
        ("format", c_uint32),
        ("data_type", c_uint32),
        ("quantization", _Quantization),
        ("rank", c_uint32),
        ("lengths", POINTER(c_uint32)),
        # Memory, dynamic dimensions and sparsity, which a description does not have.
        ("rest", c_uint64 * 6),
    )


class _Tensor(Structure):
    _fields_ = (("version", c_uint32), ("body", _TensorBody))


class _GraphBody(Structure):
    # Versions 2 and 3 add to the end of version 1.
    _fields_ = (
        ("name", c_char_p),
        ("input_count", c_uint32),
        ("inputs", POINTER(_Tensor)),
        ("output_count", c_uint32),
        ("outputs", POINTER(_Tensor)),
        # Tensors that can be updated, and what the back end says.
        ("rest", c_uint64 * 5),
    )


class _Graph(Structure):
    _fields_ = (("version", c_uint32), ("body", _GraphBody))


_IDENTITY = (
    ("backend", c_uint32),
    ("build", c_char_p),
    ("core_api", _Version),
    ("backend_api", _Version),
    ("soc_version", c_char_p),
)
_CONTENT = (
    ("tensor_count", c_uint32),
    ("tensors", POINTER(_Tensor)),
    ("graph_count", c_uint32),
    ("graphs", POINTER(_Graph)),
)


class _EarlierBody(Structure):
    # Version 1; version 2 adds the platform to its end.
    _fields_ = (
        *_IDENTITY,
        ("hardware_version", _Version),
        ("blob_version", _Version),
        ("hardware_size", c_uint32),
        ("hardware", c_void_p),
        ("blob_size", c_uint64),
        *_CONTENT,
    )


class _BinaryBody(Structure):
    # Version 3.
    _fields_ = (
        *_IDENTITY,
        ("blob_version", _Version),
        ("blob_size", c_uint64),
        *_CONTENT,
        ("platform", c_void_p),
        ("metadata_size", c_uint32),
        ("metadata", c_void_p),
        ("soc_model", c_uint32),
    )


class _BinaryBodies(Union):
    _fields_ = (("earlier", _EarlierBody), ("latest", _BinaryBody))


class _Binary(Structure):
    _fields_ = (("version", c_uint32), ("bodies", _BinaryBodies))


class _Interface(Structure):
    _fields_ = (
        ("backend", c_uint32),
        ("provider", c_char_p),
        ("version", _Version),
        ("create", c_void_p),
        ("get_binary_info", c_void_p),
        ("get_metadata", c_void_p),
    )


def describe(library: str, content: memoryview | str, name: str) -> NativeBinary:
    """Return the description of a context binary.

    Args:
        library: path of libQnnSystem.
        content: the binary, or the path of its file.
        name: what errors call it.

    Raises:
        NotImplementedByProvider: the library, or what it says, has another version than
            those that are read.
        InvalidGraph: the binary is damaged, or not QNN's.
    """
    interface = _find_interface(CDLL(library))
    handle = c_void_p()
    found = POINTER(_Binary)()
    buffer = (
        np.memmap(content, np.uint8, "r")
        if isinstance(content, str)
        else np.frombuffer(content, np.uint8)
    )
    create = CFUNCTYPE(c_uint64, c_void_p)(interface.create)
    get_metadata = CFUNCTYPE(c_uint64, c_void_p, c_void_p, c_uint64, c_void_p)(
        interface.get_metadata
    )
    status = create(byref(handle)) or get_metadata(
        handle, buffer.ctypes.data, buffer.nbytes, byref(found)
    )
    if status or not found:
        raise InvalidGraph(
            f"{name} is damaged, or not a context binary of QNN: libQnnSystem "
            f"refused it with error {status:#x}.",
            hint=(
                "Fetch it again. If a newer SDK made it, upgrade onnxruntime-qnn, "
                "whose library reads it."
            ),
        )
    try:
        return _describe_binary(found.contents, buffer.nbytes)
    except ValueError as error:
        # A name that is missing or not UTF-8, or a list that is not there.
        raise InvalidGraph(
            f"{name} is damaged: libQnnSystem describes it with {error}.",
            hint="Fetch it again.",
        ) from error


def _find_interface(library: CDLL) -> _Interface:
    listed = POINTER(POINTER(_Interface))()
    count = c_uint32()
    library.QnnSystemInterface_getProviders(byref(listed), byref(count))
    for number in range(count.value):
        interface: _Interface = listed[number].contents
        if interface.version.major == _SYSTEM_API:
            return interface
    raise _make_version_error("System API", f"major version {_SYSTEM_API}")


def _make_version_error(part: str, known: str) -> NotImplementedByProvider:
    return NotImplementedByProvider(
        f"the installed libQnnSystem has another version of the {part} than those "
        f"that epctx-native-formats reads ({known}).",
        hint="Upgrade epctx-native-formats, or install an older onnxruntime-qnn.",
    )


def _describe_binary(info: _Binary, size: int) -> NativeBinary:
    _check_version("binary's description", info.version, {1, 2, 3})
    if info.version == _LATEST:
        body = info.bodies.latest
        target = f"SoC {body.soc_model}" if body.soc_model else ""
    else:
        body = info.bodies.earlier
        target = (body.soc_version or b"").decode()
    facts = {
        "back end": _BACKENDS.get(body.backend, str(body.backend)),
        "QNN core API": _join_version(body.core_api),
        "QNN back end API": _join_version(body.backend_api),
        "context blob": _join_version(body.blob_version),
    }
    graphs = (body.graphs[number] for number in range(body.graph_count))
    return NativeBinary(
        format="qnn",
        title="context binary of Qualcomm's QNN",
        bytes=size,
        source="QNN",
        sdk=(body.build or b"").decode(),
        target=target,
        facts=facts,
        graphs=tuple(map(_describe_graph, graphs)),
    )


def _check_version(part: str, version: int, known: set[int]) -> None:
    if not 0 < version <= _HIGHEST_VERSION:
        raise ValueError(f"the version {version} of a {part}")
    if version not in known:
        raise _make_version_error(part, f"{version} is none of {sorted(known)}")


def _read_name(name: bytes | None) -> str:
    if name is None:
        raise ValueError("a graph or tensor without a name")
    return name.decode()


def _join_version(version: _Version) -> str:
    return f"{version.major}.{version.minor}.{version.patch}"


def _describe_graph(graph: _Graph) -> NativeGraph:
    _check_version("graph's description", graph.version, {1, 2, 3})
    body = graph.body
    inputs = (body.inputs[number] for number in range(body.input_count))
    outputs = (body.outputs[number] for number in range(body.output_count))
    return NativeGraph(
        name=_read_name(body.name),
        inputs=tuple(map(_describe_tensor, inputs)),
        outputs=tuple(map(_describe_tensor, outputs)),
    )


def _describe_tensor(tensor: _Tensor) -> NativeTensor:
    _check_version("tensor's description", tensor.version, {1, 2})
    body = tensor.body
    words, element_type = _describe_type(body.data_type)
    quantization, note = _describe_quantization(body.quantization)
    return NativeTensor(
        name=_read_name(body.name),
        type=words,
        element_type=element_type,
        shape=tuple(body.lengths[: body.rank]),
        quantization=quantization,
        note=note,
    )


def _describe_type(number: int) -> tuple[str, str]:
    """Return a data type in QNN's words and in ONNX's, empty if it has none."""
    bits = f"{number & 0xFF:x}"
    family = _FAMILIES.get(number >> 8)
    if family is None:
        return f"{number:#06x}", ""
    words, element_type = (form.format(bits) for form in family)
    element_type = _RENAMED.get(element_type, element_type)
    return words, element_type if element_type in _ELEMENT_TYPES else ""


def _describe_quantization(given: _Quantization) -> tuple[Quantization | None, str]:
    """Return the quantisation; where ONNX's QuantizeLinear has none like it, None and
    its number.
    """
    if given.defined != 1 or given.encoding == _UNDEFINED:
        return None, ""
    read = _ENCODINGS.get(given.encoding)
    if read is None:
        return None, f"quantised in QNN's encoding {given.encoding}"
    quantization = read(given.value)
    if not np.isfinite(quantization.scales).all():
        raise ValueError("a scale that is not a number")
    return quantization, ""


# QNN adds its offset where ONNX subtracts its zero point.
def _read_whole(value: _Encoding) -> Quantization:
    return Quantization(scales=(value.whole.scale,), zero_points=(-value.whole.offset,))


def _read_axis(value: _Encoding) -> Quantization:
    pairs = value.axis.values[: value.axis.count]
    return Quantization(
        scales=tuple(pair.scale for pair in pairs),
        zero_points=tuple(-pair.offset for pair in pairs),
        axis=value.axis.axis,
    )


def _read_bits(value: _Encoding) -> Quantization:
    return Quantization(
        scales=(value.bits.scale,),
        zero_points=(-value.bits.offset,),
        bits=value.bits.bits,
    )


def _read_bits_axis(value: _Encoding) -> Quantization:
    each = value.bits_axis
    # Without offsets all are 0.
    offsets = each.offsets[: each.count] if each.offsets else [0] * each.count
    return Quantization(
        scales=tuple(each.scales[: each.count]),
        zero_points=tuple(-offset for offset in offsets),
        axis=each.axis,
        bits=each.bits,
    )


_ENCODINGS: Mapping[int, Callable[[_Encoding], Quantization]] = {
    0: _read_whole,
    1: _read_axis,
    2: _read_bits,
    3: _read_bits_axis,
}
