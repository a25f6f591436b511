"""Options of the EP, by the names of onnxruntime's OpenVINO EP where it has them, and
OpenVINO's properties for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidArgument
from epctx_core.plugin import ProviderOption
from epctx_openvino.native import list_devices

if TYPE_CHECKING:
    from epctx_core.plugin import ProviderContext

OPTIONS = (
    ProviderOption(
        "device_type",
        str,
        default="CPU",
        doc=(
            "OpenVINO's name of the device: CPU, GPU, GPU.1, NPU; AUTO, MULTI or "
            "HETERO, also with a list: AUTO:GPU,CPU."
        ),
    ),
    ProviderOption(
        "precision",
        str,
        default="ACCURACY",
        choices=("ACCURACY", "FP32", "FP16", "BF16"),
        doc=(
            "Arithmetic on floats; ACCURACY: that of the model. A payload is loaded "
            "with the precision it was compiled with."
        ),
    ),
    ProviderOption(
        "num_of_threads",
        int,
        default=0,
        doc="Threads on the CPU; 0: the session's, or OpenVINO's choice.",
    ),
    ProviderOption(
        "num_streams",
        int,
        default=1,
        doc="Runs that the device computes at the same time; 0: OpenVINO's choice.",
    ),
    ProviderOption(
        "load_config",
        str,
        default="",
        doc=(
            'OpenVINO\'s properties by device as JSON, such as {"CPU": '
            '{"ENABLE_HYPER_THREADING": "NO"}}; they go first.'
        ),
    ),
    *(
        ProviderOption(
            name,
            str,
            default="",
            doc="An option of onnxruntime's OpenVINO EP.",
            effect=False,
        )
        for name in (
            "cache_dir",
            "enable_opencl_throttling",
            "enable_qdq_optimizer",
            "model_priority",
        )
    ),
)
_HINTS = {"FP32": "f32", "FP16": "f16", "BF16": "bf16"}
_MODES = {"AUTO", "MULTI", "HETERO"}


def choose_device(context: ProviderContext) -> str:
    """Return the device for an instance: the host's target, or the option.

    Raises:
        InvalidArgument: OpenVINO does not find it on this machine.
    """
    device = context.target or context.options["device_type"]
    devices = list_devices()
    missing = [
        name
        for name in _name_devices(device)
        if not any(_is_same(name, device_name) for device_name in devices)
    ]
    if missing:
        raise InvalidArgument(
            f"device_type is {device!r}, but OpenVINO does not find "
            f"{', '.join(missing)} on this machine; it finds "
            f"{', '.join(devices) or 'no device'}.",
            hint="Choose one that it finds, or install the driver of the device.",
        )
    return device


def _name_devices(device: str) -> list[str]:
    """Return the devices in a name such as `AUTO:GPU,CPU`; none for `AUTO`, which
    chooses by itself.
    """
    mode, _, names = device.partition(":")
    if mode in _MODES:
        return names.split(",") if names else []
    return [device]


def _is_same(name: str, device: str) -> bool:
    """Return whether a name means a device: `GPU` means `GPU.0`, and `GPU.0` a single
    `GPU`.
    """
    return name == device or device.startswith(f"{name}.") or name == f"{device}.0"


def make_config(
    context: ProviderContext, device: str, precision: str
) -> dict[str, Any]:
    """Return OpenVINO's properties for a compile or an import.

    Raises:
        InvalidArgument: `load_config` is not a JSON object of objects.
    """
    options = context.options
    config: dict[str, Any] = {}
    if precision in _HINTS:
        config["INFERENCE_PRECISION_HINT"] = _HINTS[precision]
    else:
        config["EXECUTION_MODE_HINT"] = "ACCURACY"
    family = device.partition(".")[0]
    if family in {"CPU", "GPU"} and options["num_streams"]:
        config["NUM_STREAMS"] = options["num_streams"]
    threads = options["num_of_threads"] or context.intra_op_num_threads
    if family == "CPU" and threads:
        config["INFERENCE_NUM_THREADS"] = threads
    return config | parse_load_config(options["load_config"]).get(family, {})


def parse_load_config(text: str) -> Mapping[str, dict[str, Any]]:
    """Return properties by device.

    Raises:
        InvalidArgument: the text is not a JSON object of objects.
    """
    try:
        config = json.loads(text or "{}")
        if isinstance(config, dict) and all(
            isinstance(each, dict) for each in config.values()
        ):
            return config
    except (ValueError, RecursionError):
        pass
    raise InvalidArgument(
        "load_config is not a JSON object with an object of properties for each "
        "device.",
        hint='For example: {"CPU": {"ENABLE_HYPER_THREADING": "NO"}}.',
    )
