"""Devices of EPs, which hosts or a policy choose, and libraries of EPs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
        ep_name, ep_vendor: the EP.
        ep_metadata: what `epctx_core.get_ep_metadata` says of it, and its version.
        ep_options: the options with which the EP uses this device.
        device: the device.
    """

    ep_name: str
    ep_vendor: str
    ep_metadata: Mapping[str, str] = field(hash=False)
    ep_options: Mapping[str, str] = field(hash=False)
    device: OrtHardwareDevice

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
    def provider(self) -> str:
        """The EP as a provider's name, with the distribution that provides it."""
        distribution = self.ep_metadata.get("distribution")
        return f"{distribution}:{self.ep_name}" if distribution else self.ep_name

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
    why.
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
            facts = {
                "version": record.version or "",
                "distribution": record.distribution or "",
                **get_ep_metadata(name),
            }
            found += [_describe(cls, device, facts) for device in _list_devices(cls)]
        except EpctxError as error:
            _log.info("%s has no devices: %s", name, error)

    return [
        *sorted(found, key=lambda device: device.is_simulated),
        describe_cpu(),
    ]


def _list_choices() -> list[str]:
    """Return the EPs as a host would name them: with the distribution where several
    provide one, none of which is simulated.
    """
    names = [name for name in default_registry.available() if name != CPU_EP]
    undecided = [
        f"{record.distribution}:{record.name}"
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
    cls: type[ExecutionProvider], device: HardwareDevice, facts: Mapping[str, str]
) -> OrtEpDevice:
    return OrtEpDevice(
        ep_name=cls.name,
        ep_vendor=cls.vendor,
        ep_metadata=facts,
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


_REGISTERED: dict[str, list[str]] = {}
"""EPs that were registered with each library, by the host's name for it."""


@with_native_errors
def register_execution_provider_library(
    registration_name: str, library_path: str
) -> None:
    """Make the EPs in a library of a vendor EPs of this process.

    A library for which an adapter is installed (`epctx-onnxruntime[qnn]`) is used by
    that, under the EP's own name; the EPs of any other one by
    `epctx_onnxruntime.providers.register_plugin_ep`.

    Args:
        registration_name: the host's name for the library.
        library_path: its file.

    Raises:
        Fail: onnxruntime cannot load the library, or the name is taken.
    """
    from epctx_onnxruntime.providers import register_plugin_ep

    if registration_name in _REGISTERED:
        raise Fail(f"a library is already registered under {registration_name!r}.")
    before = _count_devices()
    try:
        onnxruntime.register_execution_provider_library(
            registration_name, str(library_path)
        )
    except TypeError:
        raise
    except Exception as error:  # onnxruntime's exceptions have no base of their own
        raise Fail(
            f"onnxruntime cannot load the library {registration_name!r}: "
            f"{' '.join(str(error).split())}.",
            path=library_path,
            hint="Check its path, and that it is for this version of onnxruntime.",
        ) from error
    _REGISTERED[registration_name] = []
    if adapter := _find_adapter(library_path):
        _log.info(
            "the library %s is that of %s, which is used by its own name.",
            registration_name,
            adapter.label,
        )
        return
    # A name that was listed before may be that of a library registered earlier.
    earlier = {ep for eps in _REGISTERED.values() for ep in eps}
    for ep in _count_devices() - before:
        if ep not in earlier:
            register_plugin_ep(ep, library=library_path)
            _REGISTERED[registration_name].append(ep)


def _count_devices() -> Counter[str]:
    return Counter(device.ep_name for device in onnxruntime.get_ep_devices())


def _find_adapter(library_path: str) -> PluginRecord | None:
    """Return the EP of epctx that uses a library, if one is installed."""
    from epctx_onnxruntime.providers import OnnxRuntimeProvider

    for record in default_registry.records():
        if not (record.usable or record.undecided) or record.simulated:
            continue
        try:
            cls = default_registry.load(record)
            if issubclass(cls, OnnxRuntimeProvider) and Path(
                cls.library.find_path()
            ).samefile(library_path):
                return record
        except (EpctxError, OSError) as error:
            _log.debug("%s has no library: %s", record.label, error)
    return None


@with_native_errors
def unregister_execution_provider_library(registration_name: str) -> None:
    """Remove a library and the EPs that were registered with it.

    Raises:
        NotFound: there is none of that name.
        InvalidArgument: a session uses one of its EPs.
    """
    if registration_name not in _REGISTERED:
        raise NotFound(
            f"no library is registered as {registration_name!r}.",
            hint=f"There are: {', '.join(_REGISTERED) or 'none'}.",
        )
    for ep in _REGISTERED[registration_name]:
        default_registry.unregister(ep)
    del _REGISTERED[registration_name]
    onnxruntime.unregister_execution_provider_library(registration_name)
