"""OpenVINO's names of devices: one device, or a mode over several.

Knows no option and no operator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from epctx_core.errors import InvalidArgument

EP = "OpenVINOExecutionProvider"
BASE_DEVICES = ("CPU", "GPU", "NPU")
MODES = ("AUTO", "HETERO", "MULTI")

_DEVICE = re.compile(r"(CPU|GPU|NPU)(?:\.\d{1,3})?")
_FEWEST_IN_A_MODE = 2
_HINT = (
    "Name CPU, GPU, GPU.0, NPU, AUTO, or a mode with at least two devices, such as "
    "AUTO:GPU,CPU, HETERO:NPU,CPU or MULTI:GPU,CPU."
)


@dataclass(frozen=True, kw_only=True)
class DeviceChoice:
    """Devices that `device_type` names.

    Attributes:
        mode: AUTO, HETERO or MULTI; empty for one device.
        devices: base devices in the order of preference, without their numbers.
    """

    mode: str
    devices: tuple[str, ...]

    @property
    def name(self) -> str:
        """The device that a payload is compiled for; GPU.0 and GPU.1 run the same
        payloads.
        """
        return "-".join((self.mode, *self.devices)) if self.mode else self.devices[0]

    @property
    def deciding(self) -> tuple[str, ...]:
        """The devices whose tables decide on a node.

        AUTO starts on the CPU while it prepares the others, so the CPU must take every
        node.
        """
        return (
            ("CPU",) if self.mode == "AUTO" and "CPU" in self.devices else self.devices
        )

    @property
    def one_is_enough(self) -> bool:
        """True if one of the deciding devices is enough: HETERO gives each node to one
        that takes it.
        """
        return self.mode == "HETERO"


def parse_device(text: str, *, option: str = "device_type") -> DeviceChoice:
    """Read a name of a device.

    Raises:
        InvalidArgument: no device or mode of OpenVINO's.
    """
    if _DEVICE.fullmatch(text):
        return DeviceChoice(mode="", devices=(_strip_index(text),))
    if text == "AUTO":
        return DeviceChoice(mode="AUTO", devices=BASE_DEVICES)
    mode, colon, rest = text.partition(":")
    listed = rest.split(",")
    if (
        not colon
        or mode not in MODES
        or len(listed) < _FEWEST_IN_A_MODE
        or not all(map(_DEVICE.fullmatch, listed))
    ):
        raise InvalidArgument(
            f"{EP}: {option} {text!r} names no device of OpenVINO's.", ep=EP, hint=_HINT
        )
    return DeviceChoice(
        mode=mode, devices=tuple(dict.fromkeys(map(_strip_index, listed)))
    )


def _strip_index(device: str) -> str:
    return device.partition(".")[0]
