"""The options of the simulated OpenVINO EP, by the names and values of the real one, and what follows from them.

Knows no graph and no payload.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from epctx_sim_sdk.options import without_hardware

from epctx_core.errors import InvalidArgument
from epctx_core.plugin import ProviderOption
from epctx_sim_openvino.devices import EP, DeviceChoice, parse_device
from epctx_sim_openvino.load_config import parse_load_config

CONTEXT_API = "1"
"""The interface between this EP and the payloads it writes; a change that old EPs cannot read raises it."""

_NO_EFFECT = "Accepted and checked; the simulation behaves the same for every value."

DYNAMIC_OPTIONS = (
    ProviderOption(
        "ep.dynamic.workload_type",
        str,
        default="Default",
        choices=("Default", "Efficient"),
        doc=f"Efficient: the device may be slower and use less power. {_NO_EFFECT}",
    ),
)
OPTIONS = (
    ProviderOption(
        "device_type",
        str,
        default="CPU",
        doc="The device to compile for, and when loading the simulated one: CPU, GPU, GPU.0, NPU, AUTO, or AUTO:,"
        " HETERO: or MULTI: with at least two devices.",
    ),
    ProviderOption(
        "precision",
        str,
        default="ACCURACY",
        choices=("FP32", "FP16", "ACCURACY"),
        doc="FP16 (not on the CPU): float32 weights are stored as float16, which changes results."
        " The real EP's default is FP16 on GPU and NPU.",
    ),
    ProviderOption(
        "load_config",
        str,
        default="",
        doc="OpenVINO's properties by device as JSON. INFERENCE_PRECISION_HINT goes before precision;"
        " all others have no effect in the simulation.",
    ),
    ProviderOption(
        "disable_dynamic_shapes",
        bool,
        default=False,
        doc="1: nodes with open dimensions are left to the CPU. The NPU leaves them in any case.",
    ),
    ProviderOption("num_of_threads", int, default=8, doc=f"Threads for inference, at least 1. {_NO_EFFECT}"),
    ProviderOption("num_streams", int, default=1, doc=f"Streams for throughput, 1 to 8. {_NO_EFFECT}"),
    ProviderOption("cache_dir", str, default="", doc=f"A folder for OpenVINO's own cache. {_NO_EFFECT}"),
    ProviderOption(
        "reshape_input",
        str,
        default="",
        doc=f"Bounds of open dimensions for the NPU, such as x[1,3,60..120,80]. {_NO_EFFECT}",
    ),
    ProviderOption(
        "layout",
        str,
        default="",
        doc=f"Layouts of inputs and outputs, such as x[NCHW],y[NC]. {_NO_EFFECT}",
    ),
    ProviderOption(
        "model_priority",
        str,
        default="DEFAULT",
        choices=("DEFAULT", "LOW", "MEDIUM", "HIGH"),
        doc=f"Which model goes first on a shared device. {_NO_EFFECT}",
    ),
    ProviderOption(
        "enable_qdq_optimizer",
        bool,
        default=False,
        doc=f"1: the NPU drops quantisation it does not need. {_NO_EFFECT}",
    ),
    ProviderOption(
        "enable_opencl_throttling",
        bool,
        default=False,
        doc=f"1: the GPU's queue is throttled. {_NO_EFFECT}",
    ),
    *without_hardware("context", "device_id", "device_luid", "enable_causallm", "enable_dynamic_shapes"),
    ProviderOption(
        "runtime_sdk_version",
        str,
        default="",
        doc="Simulation only: the SDK version that the runtime claims to have, such as sim-2.51.0.",
    ),
    ProviderOption(
        "runtime_driver_version",
        str,
        default="",
        doc="Simulation only: the NPU driver's version that the runtime claims to have, such as sim-1.8.0.",
    ),
    ProviderOption(
        "runtime_api_version",
        int,
        default=0,
        doc="Simulation only: the version of the payloads' interface that the runtime claims to have; 0 for the real one.",
    ),
    ProviderOption(
        "runtime_blob_version",
        int,
        default=0,
        doc="Simulation only: the version of the payloads' format that the runtime claims to have; 0 for the real one.",
    ),
)

_PRECISIONS = {
    "CPU": ("FP32", "ACCURACY"),
    "GPU": ("FP16", "FP32", "ACCURACY"),
    "NPU": ("FP16", "ACCURACY"),
}
_OF_A_MODE = ("FP16", "FP32", "ACCURACY")
_DOCS = {option.name: option.doc for option in OPTIONS}
_MOST_THREADS = 1 << 16
_MOST_STREAMS = 8
_BOUND = r"\d{1,9}(?:\.\.\d{1,9})?"
_FORMS = {
    "reshape_input": re.compile(rf"[^\[\],]+\[{_BOUND}(?:,{_BOUND})*\]"),
    "layout": re.compile(r"[^\[\],]+\[[NCHWDT?]+\]"),
}
_BETWEEN_ENTRIES = re.compile(r",(?=[^\[\]]*\[)")
"""The commas between entries, not those inside brackets."""


def chosen_device(options: Mapping[str, Any], target: str | None = None) -> DeviceChoice:
    """Return the device to compile for: the host's target if it named one, else `device_type`.

    Raises:
        InvalidArgument: not a device of OpenVINO's.
    """
    if target is not None:
        return parse_device(target, option="the target")
    return parse_device(options["device_type"])


def check(options: Mapping[str, Any], device: DeviceChoice) -> None:
    """Check what a schema of single options cannot.

    Raises:
        InvalidArgument: naming the option.
    """
    for name, highest in (("num_of_threads", _MOST_THREADS), ("num_streams", _MOST_STREAMS)):
        if not 1 <= options[name] <= highest:
            raise _bad(name, options[name], _DOCS[name])
    for name, form in _FORMS.items():
        entries = _BETWEEN_ENTRIES.split(options[name]) if options[name] else []
        if not all(map(form.fullmatch, entries)) or not all(map(_bounds_ascend, entries)):
            raise _bad(name, options[name], _DOCS[name])
    parse_load_config(options["load_config"])
    allowed = _OF_A_MODE if device.mode else _PRECISIONS[device.name]
    if options["precision"] not in allowed:
        raise _bad("precision", options["precision"], f"{device.name} computes in: {', '.join(allowed)}.")


def _bounds_ascend(entry: str) -> bool:
    pairs = re.findall(r"(\d+)\.\.(\d+)", entry)
    return all(int(lower) <= int(upper) for lower, upper in pairs)


def _bad(name: str, value: object, hint: str) -> InvalidArgument:
    return InvalidArgument(f"{EP}: option {name!r} cannot be {value!r}.", ep=EP, hint=hint)


def is_half_precision(options: Mapping[str, Any], device: DeviceChoice) -> bool:
    """Whether float32 weights are stored as float16.

    A hint in `load_config` goes before `precision`. The CPU accepts the hint and computes in float32.
    """
    section = device.mode or device.name
    hint = parse_load_config(options["load_config"]).get(section, {}).get("INFERENCE_PRECISION_HINT")
    wished = hint == "f16" if hint else options["precision"] == "FP16"
    return wished and device.name != "CPU"


def facts(options: Mapping[str, Any], target: str | None = None) -> dict[str, str]:
    """Return what the version rules must know: of a compiler with these options, and of a runtime."""
    from epctx_sim_sdk.versions import BLOB_VERSION, DRIVER_VERSION, SDK_VERSION, runtime_version

    device = chosen_device(options, target)
    sdk, driver = (
        runtime_version(options[option], default, option=option, ep=EP)
        for option, default in (
            ("runtime_sdk_version", SDK_VERSION),
            ("runtime_driver_version", DRIVER_VERSION),
        )
    )
    known = {
        "vendor": "OpenVINO",
        "device": device.name,
        "api": str(options["runtime_api_version"] or CONTEXT_API),
        "blob": str(options["runtime_blob_version"] or BLOB_VERSION),
        "sdk": sdk,
    }
    return known | ({"driver": driver} if device.name == "NPU" else {})
