"""The Python half of the library that onnxruntime loads.

Each call of onnxruntime enters one of the functions of `_HOOKS` with the key of an
object. Functions and objects live as long as onnxruntime may call them.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import logging
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core import PluginRecord, default_registry
from epctx_core.errors import EpctxError, PluginError
from epctx_core.ext import implemented_hooks
from epctx_core.plugin.protos import AttributeProto, NodeProto
from onnxruntime_ep_epctx.capi import (
    Address,
    Onnxruntime,
    StatusError,
    find_onnxruntime,
    make_texts,
    read_addresses,
    read_texts,
    store_addresses,
)
from onnxruntime_ep_epctx.graph import ATTRIBUTE_TYPES
from onnxruntime_ep_epctx.hosted import HostedEp, drop_frames

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider, HardwareDevice
    from onnxruntime_ep_epctx.runs import Kernel

_log = logging.getLogger("epctx.onnxruntime")

PATH = Path(__file__).with_name("libonnxruntime_ep_epctx.so")
REGISTRATION = "epctx."
"""Beginning of the name under which `register` registers one EP."""
# OrtErrorCode
_FAIL = 1
_RUNTIME_EXCEPTION = 6
_EP_FAIL = 11
_LAST_CODE = 14
"""Last `OrtErrorCode` that onnxruntime's Python API has an exception of its own for; at
a RuntimeError it makes the session again, on the CPU.
"""
_ATTRIBUTES = {ours: theirs for theirs, ours in ATTRIBUTE_TYPES.items()}
"""ONNX's types of attributes to `OrtOpAttrType`."""
_DEVICES = {"CPU": 0, "GPU": 1, "NPU": 2}
_MILLISECONDS = 5000
"""Time that runs get to end when the process does."""


class Bridge:
    """Objects that onnxruntime refers to by their keys.

    Attributes:
        last_error: the last exception that onnxruntime got as a status.
        library: functions of bridge.c; None before a host loads it.
        objects: by key.
    """

    def __init__(self) -> None:
        self.last_error: BaseException | None = None
        # Python's lock is kept in calls of these: they are short.
        self.library: Any = None
        self.objects: dict[int, Any] = {}
        self._keys = itertools.count(1)

    def put(self, made: object) -> int:
        """Keep an object; return its key."""
        key = next(self._keys)
        self.objects[key] = made
        return key


bridge = Bridge()


def attach() -> None:
    """Fill the library's table of functions; further calls do nothing.

    The library calls this when a host loads it.
    """
    if bridge.library is not None:
        return
    library = ctypes.PyDLL(str(PATH))
    library.epctx_make_factory.restype = ctypes.c_void_p
    library.epctx_make_ep.restype = ctypes.c_void_p
    library.epctx_make_kernel.restype = ctypes.c_void_p
    functions = [hook if hook is _run else _guard(hook) for hook in _HOOKS]
    table = (_Function * len(functions))(*map(_Function, functions))
    # For ever: what onnxruntime may call outlives modules.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(table))
    library.epctx_attach(table)
    bridge.library = library
    atexit.register(_detach)


def _detach() -> None:
    # Without Python's lock, so that runs inside can end.
    ctypes.CDLL(str(PATH)).epctx_detach(_MILLISECONDS)


_Function = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_size_t] * 7)


def _guard(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that stores a status: 0, or that of what it raised."""
    in_run = hook in (_start_run, _end_run)

    def call(key: int, *words: int) -> None:
        *arguments, api, place = words
        status = 0
        try:
            hook(find_onnxruntime(api), key, *arguments)
        except BaseException as error:  # noqa: BLE001 - nothing may leave into C
            status = _fail(api, error, in_run=in_run)
        ctypes.c_size_t.from_address(place).value = status

    return call


def _fail(api: Address, error: BaseException, *, in_run: bool = False) -> Address:
    """Return an exception as a status."""
    bridge.last_error = drop_frames(error)
    code = _RUNTIME_EXCEPTION if in_run else _FAIL
    if isinstance(error, (StatusError, EpctxError)):
        code = int(error.code)
    if code > _LAST_CODE:
        code = _EP_FAIL
    # onnxruntime's Python API answers an EP's failure in a run from the CPU.
    if in_run and code == _EP_FAIL:
        code = _RUNTIME_EXCEPTION
    return find_onnxruntime(api).make_status(code, describe_error(error))


def describe_error(error: BaseException) -> str:
    """Return an exception as the text of a status."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - of an EP
        return name
    if isinstance(error, (EpctxError, StatusError)):
        return text
    return f"{name}: {text}".rstrip(": ")


# -- factories and their devices
# -----------------------------------------------------------------------------------


def list_records() -> list[PluginRecord]:
    """Return the EPs that onnxruntime can have: not those that are its own already."""
    return [record for record in _list_known() if record.usable]


def load_records(
    records: Iterable[PluginRecord],
) -> list[tuple[PluginRecord, type[ExecutionProvider]]]:
    """Return EPs and their classes; one that is broken hides no other.

    Raises:
        PluginError: all of them are broken.
    """
    loaded = []
    failure: PluginError | None = None
    for record in records:
        try:
            loaded.append((record, default_registry.load(record)))
        except PluginError as error:
            failure = error
            bridge.last_error = drop_frames(error)
            _log.warning("%s is not offered to onnxruntime: %s", record.name, error)
    if not loaded and failure is not None:
        raise failure
    return loaded


def _list_known() -> list[PluginRecord]:
    return [
        record
        for record in default_registry.records()
        if record.finder is None
        and record.distribution != "epctx-onnxruntime"
        and record.name != "CPUExecutionProvider"
    ]


def _select(registration: str) -> list[PluginRecord]:
    """Return the EPs of a registration: the one that it names, else all.

    One that cannot be used is named, too: others are not registered in its place.
    """
    # onnxruntime's own ending for EPs without hardware.
    asked = registration.removesuffix(".virtual").removeprefix(REGISTRATION)
    if registration.startswith(REGISTRATION):
        default_registry.resolve(asked)
    named = {record.key for record in default_registry.find(asked)}
    known = [record for record in _list_known() if record.key in named]
    return [record for record in known if record.usable] or known or list_records()


def _make_factories(
    ort: Onnxruntime,
    _key: int,
    registration: Address,
    made: Address,
    most: int,
    count: Address,
    *_: int,
) -> None:
    name = ctypes.string_at(registration).decode(errors="replace")
    factories = []
    for record, cls in load_records(_select(name))[:most]:
        factory = _Factory(record, cls)
        factory.make(ort)
        factories.append(factory.address)
    store_addresses(made, factories)
    ctypes.c_size_t.from_address(count).value = len(factories)


class _Factory:
    """EP as onnxruntime finds it.

    Attributes:
        address: the struct that onnxruntime holds.
    """

    def __init__(self, record: PluginRecord, cls: type[ExecutionProvider]) -> None:
        self.record = record
        self.cls = cls
        self.address: Address = 0

    def make(self, ort: Onnxruntime) -> None:
        """Make the struct."""
        self.address = bridge.library.epctx_make_factory(
            ctypes.c_int64(bridge.put(self)),
            ctypes.c_void_p(ort.api),
            self.record.name.encode(),
            (self.cls.vendor or self.record.distribution or "epctx").encode(),
            _make_semver(self.record.version).encode(),
        )

    def make_device(self, ort: Onnxruntime, device: HardwareDevice) -> Address:
        """Return a device of the EP, which onnxruntime owns."""
        facts = {
            "distribution": str(self.record.distribution),
            "simulated": str(int(self.cls.simulated)),
            **device.metadata,
        }
        pairs = ort.make_pairs(facts)
        options = ort.make_pairs({k: str(v) for k, v in device.options.items()})
        try:
            hardware = ort.get(
                "CreateHardwareDevice",
                _DEVICES[device.type],
                device.vendor_id,
                device.device_id,
                (device.vendor or self.cls.vendor or "epctx").encode(),
                pairs,
            )
            made: Address = ort.get(
                "CreateEpDevice", self.address, hardware, pairs, options
            )
        finally:
            ort.call("ReleaseKeyValuePairs", pairs)
            ort.call("ReleaseKeyValuePairs", options)
        return made


def _make_semver(version: str | None) -> str:
    """Return a version in three numbers: onnxruntime refuses others."""
    numbers = re.findall(r"\d+", (version or "0").partition("+")[0])
    return ".".join(str(int(number)) for number in [*numbers, "0", "0"][:3])


def _list_devices(
    ort: Onnxruntime,
    key: int,
    _hardware: Address,
    _hardware_count: int,
    made: Address,
    most: int,
    count: Address,
) -> None:
    factory: _Factory = bridge.objects[key]
    with _blame(factory.record, "devices"):
        offered = [*factory.cls.devices()][:most]
    devices = [factory.make_device(ort, device) for device in offered]
    store_addresses(made, devices)
    ctypes.c_size_t.from_address(count).value = len(devices)


def _validate_compatibility(
    _ort: Onnxruntime,
    key: int,
    text: Address,
    verdict: Address,
    *_: int,
) -> None:
    factory: _Factory = bridge.objects[key]
    options = {option.name: option.default for option in factory.cls.options}
    info = ctypes.string_at(text).decode(errors="replace")
    with _blame(factory.record, "validate_compatibility"):
        found = int(factory.cls.validate_compatibility(info, options))
    ctypes.c_int.from_address(verdict).value = found


@contextmanager
def _blame(record: PluginRecord, method: str) -> Iterator[None]:
    """Attribute an exception of a class method to the EP."""
    try:
        yield
    except EpctxError:
        raise
    except Exception as error:
        message = f"{record.label} failed in {method}: {describe_error(error)}."
        raise PluginError(message, ep=record.name, hook=method) from error


# -- EPs of sessions
# ------------------------------------------------------------------------------------


def _make_ep(
    ort: Onnxruntime,
    key: int,
    options: Address,
    _logger: Address,
    made: Address,
    *_: int,
) -> None:
    factory: _Factory = bridge.objects[key]
    hosted = HostedEp(factory.record, _read_entries(ort, options))
    hooks = implemented_hooks(factory.cls)
    address = bridge.library.epctx_make_ep(
        ctypes.c_int64(bridge.put(hosted)),
        ctypes.c_void_p(ort.api),
        factory.record.name.encode(),
        "set_dynamic_options" in hooks,
        "on_run_start" in hooks,
        "on_run_end" in hooks,
    )
    ctypes.c_void_p.from_address(made).value = address
    hosted.fail_runs = partial(bridge.library.epctx_fail_runs, ctypes.c_void_p(address))


def _read_entries(ort: Onnxruntime, options: Address) -> dict[str, str]:
    """Return the config entries of session options."""
    pairs = ort.get("GetSessionOptionsConfigEntries", options)
    keys = ctypes.c_void_p()
    values = ctypes.c_void_p()
    count = ctypes.c_size_t()
    try:
        out = map(ctypes.byref, (keys, values, count))
        ort.call("GetKeyValuePairs", pairs, *out)
        names = read_texts(keys.value or 0, count.value)
        return dict(zip(names, read_texts(values.value or 0, count.value), strict=True))
    finally:
        ort.call("ReleaseKeyValuePairs", pairs)


def _release(
    _ort: Onnxruntime,
    key: int,
    *_: int,
) -> None:
    released = bridge.objects.pop(key, None)
    if isinstance(released, HostedEp):
        released.close()


def _get_capability(
    ort: Onnxruntime,
    key: int,
    graph: Address,
    info: Address,
    *_: int,
) -> None:
    bridge.objects[key].claim(ort, graph, info)


def _compile(
    ort: Onnxruntime,
    key: int,
    _graphs: Address,
    fused: Address,
    count: int,
    kernels: Address,
    context_nodes: Address,
) -> None:
    hosted: HostedEp = bridge.objects[key]
    compiled = hosted.compile(ort, read_addresses(fused, count))
    store_addresses(kernels, [_make_kernel(ort, kernel) for kernel in compiled])
    if context_nodes:
        nodes = [_make_node(ort, node) for node in hosted.context_nodes]
        store_addresses(context_nodes, nodes)


def _make_kernel(ort: Onnxruntime, kernel: Kernel) -> Address:
    """Return the struct of a kernel, which onnxruntime releases."""
    inputs, outputs = kernel.inputs, kernel.outputs
    sizes: list[int] = []
    lengths: list[int] = []
    ranks: list[int] = []
    if kernel.is_static:
        sizes = [math.prod(each.shape) * each.dtype.itemsize for each in inputs]
        lengths = [length for each in outputs for length in each.shape]
        ranks = [len(each.shape) for each in outputs]
    address: Address = bridge.library.epctx_make_kernel(
        ctypes.c_int64(bridge.put(kernel)),
        ctypes.c_void_p(ort.api),
        kernel.is_static,
        ctypes.c_size_t(len(inputs)),
        (ctypes.c_size_t * len(sizes))(*sizes),
        ctypes.c_size_t(len(outputs)),
        (ctypes.c_size_t * len(ranks))(*ranks),
        (ctypes.c_int64 * len(lengths))(*lengths),
    )
    return address


def _make_node(ort: Onnxruntime, node: NodeProto) -> Address:
    """Return an EPContext node, which onnxruntime owns."""
    attributes: list[Address] = []
    try:
        attributes.extend(_make_attribute(ort, each) for each in node.attribute)
    except BaseException:
        for made in attributes:
            ort.call("ReleaseOpAttr", made)
        raise
    inputs, outputs = make_texts(node.input), make_texts(node.output)
    address: Address = ort.get(
        "CreateNode",
        node.op_type.encode(),
        node.domain.encode(),
        node.name.encode(),
        inputs,
        len(inputs),
        outputs,
        len(outputs),
        # It takes them over.
        (ctypes.c_void_p * len(attributes))(*attributes),
        len(attributes),
    )
    return address


def _make_attribute(ort: Onnxruntime, attribute: AttributeProto) -> Address:
    kind = attribute.type
    length = 1
    if kind == AttributeProto.STRING:
        data = attribute.s
        length = len(data)
    elif kind == AttributeProto.INT:
        data = struct.pack("q", attribute.i)
    else:
        # An EP has no others.
        data = struct.pack("f", attribute.f)
    made: Address = ort.get(
        "CreateOpAttr", attribute.name.encode(), data, length, _ATTRIBUTES[kind]
    )
    return made


def _run(
    key: int,
    context: Address,
    memory: Address,
    _c: int,
    _d: int,
    _e: int,
    api: Address,
    place: Address,
) -> None:
    # Without `_guard`, whose detours would be a third of the way to a small kernel.
    status = 0
    try:
        bridge.objects[key].run(api, context, memory)
    except BaseException as error:  # noqa: BLE001 - nothing may leave into C
        status = _fail(api, error, in_run=True)
    ctypes.c_size_t.from_address(place).value = status


def _set_dynamic_options(
    _ort: Onnxruntime,
    key: int,
    keys: Address,
    values: Address,
    count: int,
    *_: int,
) -> None:
    pairs = zip(read_texts(keys, count), read_texts(values, count), strict=True)
    options = {name.removeprefix("ep.dynamic."): value for name, value in pairs}
    bridge.objects[key].call_hook("set_dynamic_options", options=options)


def _call_run_hook(
    hook: str,
    ort: Onnxruntime,
    key: int,
    options: Address,
    *_: int,
) -> None:
    tag = ort.get_text("RunOptionsGetRunTag", options)
    bridge.objects[key].call_hook(hook, tag=tag)


_start_run = partial(_call_run_hook, "on_run_start")
_end_run = partial(_call_run_hook, "on_run_end")


def _describe_compatibility(
    _ort: Onnxruntime,
    key: int,
    _graph: Address,
    made: Address,
    *_: int,
) -> None:
    hosted: HostedEp = bridge.objects[key]
    # onnxruntime copies it before the EP is released.
    hosted.kept_text = hosted.compatibility_info.encode()
    ctypes.c_char_p.from_address(made).value = hosted.kept_text


_HOOKS: tuple[Any, ...] = (
    _make_factories,
    _list_devices,
    _make_ep,
    _release,
    _get_capability,
    _compile,
    _run,
    _set_dynamic_options,
    _start_run,
    _end_run,
    _describe_compatibility,
    _validate_compatibility,
)
"""In the order of the table in bridge.c."""
