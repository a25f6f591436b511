"""Devices of EPs, which hosts or a policy choose, and libraries of EPs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import epctx_core
from epctx_core import default_registry, get_ep_metadata
from epctx_core.errors import EpctxError, Fail, InvalidArgument, NotFound
from epctx_core.plugin import ExecutionProvider, HardwareDevice, Purpose
from epctx_onnxruntime.drop_in.errors import with_native_errors
from epctx_onnxruntime.drop_in.names import REASONS
from epctx_onnxruntime.real import native, onnxruntime
from epctx_onnxruntime.versions import CPU_EP

if TYPE_CHECKING:
    from epctx_core import PluginRecord

_log = logging.getLogger("epctx.devices")
_MOST_SELECTIONS = 8
"""Devices that a delegate may choose; onnxruntime's number."""

_POLICY_TYPES = {
    "DEFAULT": "CPU",
    "PREFER_CPU": "CPU",
    "PREFER_GPU": "GPU",
    "MAX_PERFORMANCE": "GPU",
    "PREFER_NPU": "NPU",
    "MAX_EFFICIENCY": "NPU",
    "MIN_OVERALL_POWER": "NPU",
}
"""Type of device that each policy prefers, as in onnxruntime."""


@dataclass(frozen=True, kw_only=True)
class OrtHardwareDevice:
    """Device; attributes as `onnxruntime.OrtHardwareDevice`.

    Attributes:
        type: a `onnxruntime.OrtHardwareDeviceType`.
        vendor, vendor_id: who makes it; the id is that of PCI, 0 if unknown.
        device_id: the model's id, 0 if unknown.
        metadata: what else the EP says of it; `virtual` is "1" for one of no hardware.
    """

    type: Any
    vendor: str
    vendor_id: int
    device_id: int
    metadata: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, kw_only=True)
class OrtEpDevice:
    """Device with an EP that works on it; attributes as `onnxruntime.OrtEpDevice`.

    Attributes:
        ep_name, ep_vendor: the EP; the name is the host's for its library where the
            library takes that.
        ep_metadata: what `epctx_core.get_ep_metadata` says of it, and its version.
        ep_options: the options with which the EP uses this device.
        device: the device.
        provider: the EP for `add_provider`, with the distribution that provides it.
    """

    ep_name: str
    ep_vendor: str
    ep_metadata: Mapping[str, str] = field(hash=False)
    ep_options: Mapping[str, str] = field(hash=False)
    device: OrtHardwareDevice
    provider: str

    def memory_info(self, _memory_type: Any) -> onnxruntime.OrtMemoryInfo | None:
        """Return the memory in which sessions take and give values: the CPU's; None for
        the CPU EP itself, as onnxruntime does.
        """
        return None if self.ep_name == CPU_EP else make_memory_info()

    def create_sync_stream(self) -> None:
        """Refuse to make a stream.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"OrtEpDevice.create_sync_stream: {REASONS['create_sync_stream']}."
        )

    @property
    def is_simulated(self) -> bool:
        """True if its EP computes on this CPU in place of hardware."""
        return "1" in {
            self.ep_metadata.get("simulated"),
            self.device.metadata.get("virtual"),
        }

    def __str__(self) -> str:
        simulated = ", simulated" if self.is_simulated else ""
        device = self.device
        return f"{self.ep_name} ({device.type.name} of {device.vendor}{simulated})"


Delegate: TypeAlias = Callable[
    [Sequence[OrtEpDevice], Mapping[str, str], Mapping[str, str], int],
    Sequence[OrtEpDevice],
]


def make_memory_info() -> onnxruntime.OrtMemoryInfo:
    """Return the description of CPU memory, where all inputs and outputs are."""
    return onnxruntime.OrtMemoryInfo.create_v2(
        "Cpu",
        onnxruntime.OrtMemoryInfoDeviceType.CPU,
        0,
        0,
        onnxruntime.OrtDeviceMemoryType.DEFAULT,
        0,
        onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
    )


def describe_cpu() -> OrtEpDevice:
    """Return the device of the CPU EP."""
    real = next(d for d in onnxruntime.get_ep_devices() if d.ep_name == CPU_EP)
    return OrtEpDevice(
        ep_name=CPU_EP,
        ep_vendor=real.ep_vendor,
        ep_metadata=dict(real.ep_metadata),
        ep_options={},
        provider=CPU_EP,
        device=OrtHardwareDevice(
            type=real.device.type,
            vendor=real.device.vendor,
            vendor_id=real.device.vendor_id,
            device_id=real.device.device_id,
            metadata=dict(real.device.metadata),
        ),
    )


def get_all_providers() -> list[str]:
    """Return the names of onnxruntime's EPs and of those that are installed here."""
    return list(
        dict.fromkeys(
            [*epctx_core.get_all_providers(), *onnxruntime.get_all_providers()]
        )
    )


@with_native_errors
def get_ep_devices() -> list[OrtEpDevice]:
    """Return the devices of the EPs that can be used on this machine, those of real EPs
    before simulated ones, and the CPU EP's last.

    An EP that cannot be imported, or is not available, has none; `epctx.devices` logs
    why. Those of an EP whose library the host has registered are there again under its
    name for that, where onnxruntime has them so.
    """
    found: list[OrtEpDevice] = []
    for name in _list_choices():
        try:
            record = default_registry.resolve(name)
            cls = default_registry.load(record)
            available = default_registry.availability(record, Purpose.RUN)
            if not available.available:
                _log.info("%s has no devices: %s", record.label, available.reason)
                continue
            found += [_describe(record, cls, each) for each in _list_devices(cls)]
        except EpctxError as error:
            _log.info("%s has no devices: %s", name, error)

    renamed = [
        replace(device, ep_name=library.device_name)
        for library in _REGISTERED.values()
        for device in found
        if library.device_name not in ("", device.ep_name)
        and device.provider == library.provider
    ]
    return [
        *sorted([*found, *renamed], key=lambda device: device.is_simulated),
        describe_cpu(),
    ]


def _list_choices() -> list[str]:
    """Return the EPs as a host would name them: with the distribution where several
    provide one, none of which is simulated.
    """
    names = [name for name in default_registry.available() if name != CPU_EP]
    undecided = [
        record.qualified_name
        for record in default_registry.records()
        if record.undecided and not record.simulated and record.name not in names
    ]
    return [*names, *undecided]


def _list_devices(cls: type[ExecutionProvider]) -> Sequence[HardwareDevice]:
    problem = ""
    listed: list[HardwareDevice] = []
    try:
        listed = list(cls.devices())
    except EpctxError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        problem = f"raised {type(error).__name__}: {error}"
    for device in listed:
        if (
            not isinstance(device, HardwareDevice)
            or device.type not in onnxruntime.OrtHardwareDeviceType.__members__
            or not isinstance(device.options, Mapping)
            or not isinstance(device.metadata, Mapping)
        ):
            problem = f"gave {device!r:.200}, which describes no device"
    if problem:
        _log.warning("%s has no devices: its `devices` %s.", cls.name, problem)
        return []
    return listed


def _describe(
    record: PluginRecord, cls: type[ExecutionProvider], device: HardwareDevice
) -> OrtEpDevice:
    provider = record.qualified_name
    return OrtEpDevice(
        ep_name=cls.name,
        provider=provider,
        ep_vendor=cls.vendor,
        ep_metadata={
            "version": record.version or "",
            "distribution": record.distribution or "",
            **get_ep_metadata(provider),
        },
        ep_options={key: str(value) for key, value in device.options.items()},
        device=OrtHardwareDevice(
            type=onnxruntime.OrtHardwareDeviceType.__members__[device.type],
            vendor=device.vendor or cls.vendor,
            vendor_id=device.vendor_id,
            device_id=device.device_id,
            metadata=dict(device.metadata),
        ),
    )


def join_devices(ep_devices: Sequence[OrtEpDevice]) -> tuple[str, dict[str, str]]:
    """Return the EP of devices, and the options with which it uses them.

    Raises:
        InvalidArgument: no device, devices of several EPs, or several whose options
            differ.
    """
    given = list(ep_devices) if isinstance(ep_devices, Iterable) else []
    if not given or not all(isinstance(device, OrtEpDevice) for device in given):
        raise InvalidArgument(
            "add_provider_for_devices takes a list of one or more devices of one EP.",
            hint="Give some of get_ep_devices() of the same module.",
        )
    names = list(dict.fromkeys(device.provider for device in given))
    if len(names) > 1:
        raise InvalidArgument(
            f"the devices are those of several EPs: {', '.join(names)}.",
            hint="Call add_provider_for_devices once for each EP.",
        )
    options = [dict(device.ep_options) for device in given]
    if any(each != options[0] for each in options):
        raise InvalidArgument(
            f"{names[0]} uses one of these devices at a time: their options are "
            f"{'; '.join(map(str, options))}.",
            hint="Give one device, or choose several by an option of the EP.",
        )
    return names[0], options[0]


def choose_by_policy(
    policy: native.OrtExecutionProviderDevicePolicy,
) -> dict[str, list[OrtEpDevice]]:
    """Return the EPs that a policy chooses, with their devices: that of the first
    device of the preferred type; none where there is no such device, which leaves all
    to the CPU EP.
    """
    wanted = _POLICY_TYPES[policy.name]
    others = [device for device in get_ep_devices() if device.ep_name != CPU_EP]
    fitting = [
        device
        for device in others
        # The CPU EP goes before a simulated CPU, as real EPs do before simulated ones.
        if device.device.type.name == wanted
        and not (wanted == "CPU" and device.is_simulated)
    ]
    if not fitting:
        _log.info(
            "%s chose the CPU EP: no other EP has a %s; there are: %s.",
            policy.name,
            wanted,
            ", ".join(map(str, others)) or "none",
        )
        return {}
    first = fitting[0]
    _log.info(
        "%s chose %s: the first %s; after it: %s.",
        policy.name,
        first,
        wanted,
        ", ".join(map(str, fitting[1:])) or "none",
    )
    return {first.provider: [first]}


def choose_by_delegate(
    delegate: Delegate, metadata: Mapping[str, str]
) -> dict[str, list[OrtEpDevice]]:
    """Return the EPs whose devices a host's function chooses, in its order.

    Raises:
        InvalidArgument: it chose none, too many, or something else than a device.
        Fail: it raised an error.
    """
    try:
        told: Any = delegate(get_ep_devices(), dict(metadata), {}, _MOST_SELECTIONS)
    except Exception as error:
        raise Fail(f"the policy's delegate raised {error!r:.200}.") from error
    chosen = list(told) if isinstance(told, Iterable) else [told]
    if not 0 < len(chosen) <= _MOST_SELECTIONS or not all(
        isinstance(device, OrtEpDevice) for device in chosen
    ):
        raise InvalidArgument(
            f"the policy's delegate chose {chosen!r:.80}.",
            hint=f"Return 1 to {_MOST_SELECTIONS} of the devices that it is given.",
        )
    _log.info("the delegate chose %s.", ", ".join(map(str, chosen)))
    groups: dict[str, list[OrtEpDevice]] = {}
    for device in chosen:
        groups.setdefault(device.provider, []).append(device)
    groups.pop(CPU_EP, None)
    return groups


@dataclass(frozen=True, kw_only=True)
class _Library:
    """Library of EPs that the host registered.

    Attributes:
        eps: the EPs of this process that it provides.
        provider: the EP of an installed distribution that uses it; empty where none
            does.
        device_name: the EP's name in onnxruntime under this registration.
    """

    eps: frozenset[str] = frozenset()
    provider: str = ""
    device_name: str = ""


_REGISTERED: dict[str, _Library] = {}
"""Libraries by the host's names for them."""


@with_native_errors
def register_execution_provider_library(
    registration_name: str, library_path: str
) -> None:
    """Make the EPs in a library of a vendor EPs of this process.

    A library for which an adapter is installed (`epctx-onnxruntime[qnn]`) is used by
    that, under the EP's own name and the host's; the EPs of any other one by
    `epctx_onnxruntime.providers.register_plugin_ep`.

    Args:
        registration_name: the host's name for the library.
        library_path: its file.

    Raises:
        Fail: onnxruntime cannot load the library, or the name is taken.
    """
    from epctx_onnxruntime.providers.library import register_library
    from epctx_onnxruntime.providers.registration import (
        find_adapter,
        register_plugin_ep,
    )

    if registration_name in _REGISTERED:
        raise Fail(f"a library is already registered under {registration_name!r}.")
    try:
        listed = register_library(registration_name, str(library_path))
    except TypeError:
        raise
    except Exception as error:  # onnxruntime's exceptions have no base of their own
        raise Fail(
            f"onnxruntime cannot load the library {registration_name!r}: "
            f"{' '.join(str(error).split())}.",
            path=library_path,
            hint="Check its path, and that it is for this version of onnxruntime.",
        ) from error

    names = frozenset(device.ep_name for device in listed)
    adapter = find_adapter(library_path, default_registry)
    if adapter and adapter.name not in _list_registered_eps():
        _log.info(
            "the library %s is that of %s, which is used by its own name, too.",
            registration_name,
            adapter.label,
        )
        _REGISTERED[registration_name] = _Library(
            provider=adapter.qualified_name,
            device_name=registration_name if registration_name in names else "",
        )
        return
    for ep in names - _list_registered_eps():
        register_plugin_ep(ep, library=library_path)
    _REGISTERED[registration_name] = _Library(eps=names)


def _list_registered_eps() -> frozenset[str]:
    """Return the EPs of libraries without an adapter."""
    return frozenset().union(*(library.eps for library in _REGISTERED.values()))


@with_native_errors
def unregister_execution_provider_library(registration_name: str) -> None:
    """Remove a library, and the EPs of this process that no other one provides.

    Raises:
        NotFound: there is none of that name.
        Fail: a session uses one of its EPs.
    """
    if registration_name not in _REGISTERED:
        raise NotFound(
            f"no library is registered as {registration_name!r}.",
            hint=f"There are: {', '.join(_REGISTERED) or 'none'}.",
        )
    removed = _REGISTERED.pop(registration_name)
    try:
        for ep in removed.eps - _list_registered_eps():
            default_registry.unregister(ep)
    except EpctxError:
        _REGISTERED[registration_name] = removed
        raise
    onnxruntime.unregister_execution_provider_library(registration_name)
