"""The options of the simulated OpenVINO EP, by the names and values of the real one,
and what follows from them.

Knows no graph and no payload.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from epctx_sim_sdk.options import (
    WORKLOAD_TYPE,
    runtime_options,
    without_effect,
    without_hardware,
)

from epctx_core.errors import InvalidArgument
from epctx_core.plugin import ProviderOption
from epctx_sim_openvino.devices import EP, DeviceChoice, parse_device
from epctx_sim_openvino.load_config import parse_load_config

DYNAMIC_OPTIONS = (WORKLOAD_TYPE,)
OPTIONS = (
    ProviderOption(
        "device_type",
        str,
        default="CPU",
        doc=(
            "The device to compile for, and when loading the simulated one: CPU, GPU, "
            "GPU.0, NPU, AUTO, or AUTO:, HETERO: or MULTI: with at least two devices."
        ),
    ),
    ProviderOption(
        "precision",
        str,
        default="ACCURACY",
        choices=("FP32", "FP16", "ACCURACY"),
        doc=(
            "FP16 (not on the CPU): float32 weights are stored as float16, which "
            "changes results. The real EP's default is FP16 on GPU and NPU."
        ),
    ),
    ProviderOption(
        "load_config",
        str,
        default="",
        doc=(
            "OpenVINO's properties by device as JSON. INFERENCE_PRECISION_HINT goes "
            "before precision; all others have no effect in the simulation."
        ),
    ),
    ProviderOption(
        "disable_dynamic_shapes",
        bool,
        default=False,
        doc=(
            "1: nodes with open dimensions are left to the CPU. The NPU leaves them "
            "in any case."
        ),
    ),
    without_effect("num_of_threads", 8, "Threads for inference, at least 1."),
    without_effect("num_streams", 1, "Streams for throughput, 1 to 8."),
    without_effect("cache_dir", "", "A folder for OpenVINO's own cache."),
    without_effect(
        "reshape_input",
        "",
        "Bounds of open dimensions for the NPU, such as x[1,3,60..120,80].",
    ),
    without_effect(
        "layout", "", "Layouts of inputs and outputs, such as x[NCHW],y[NC]."
    ),
    without_effect(
        "model_priority",
        "DEFAULT",
        "Which model goes first on a shared device.",
        ("DEFAULT", "LOW", "MEDIUM", "HIGH"),
    ),
    without_effect(
        "enable_qdq_optimizer", False, "1: the NPU drops quantisation it does not need."
    ),
    without_effect(
        "enable_opencl_throttling", False, "1: the GPU's queue is throttled."
    ),
    *without_hardware(
        "context",
        "device_id",
        "device_luid",
        "enable_causallm",
        "enable_dynamic_shapes",
    ),
    *runtime_options("sdk", "driver"),
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


def chosen_device(
    options: Mapping[str, Any], target: str | None = None
) -> DeviceChoice:
    """Return the device to compile for: the host's target if it named one, else
    `device_type`.

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
    for name, highest in (
        ("num_of_threads", _MOST_THREADS),
        ("num_streams", _MOST_STREAMS),
    ):
        if not 1 <= options[name] <= highest:
            raise _make_error(name, options[name], _DOCS[name])
    for name, form in _FORMS.items():
        entries = _BETWEEN_ENTRIES.split(options[name]) if options[name] else []
        if not all(map(form.fullmatch, entries)) or not all(
            map(_bounds_ascend, entries)
        ):
            raise _make_error(name, options[name], _DOCS[name])
    parse_load_config(options["load_config"])
    allowed = _OF_A_MODE if device.mode else _PRECISIONS[device.name]
    if options["precision"] not in allowed:
        raise _make_error(
            "precision",
            options["precision"],
            f"{device.name} computes in: {', '.join(allowed)}.",
        )


def _bounds_ascend(entry: str) -> bool:
    pairs = re.findall(r"(\d+)\.\.(\d+)", entry)
    return all(int(lower) <= int(upper) for lower, upper in pairs)


def _make_error(name: str, value: object, hint: str) -> InvalidArgument:
    return InvalidArgument(
        f"{EP}: option {name!r} cannot be {value!r}.", ep=EP, hint=hint
    )


def is_half_precision(options: Mapping[str, Any], device: DeviceChoice) -> bool:
    """Return whether float32 weights are stored as float16.

    A hint in `load_config` goes before `precision`. The CPU accepts the hint and
    computes in float32.
    """
    section = device.mode or device.name
    hint = (
        parse_load_config(options["load_config"])
        .get(section, {})
        .get("INFERENCE_PRECISION_HINT")
    )
    wished = hint == "f16" if hint else options["precision"] == "FP16"
    return wished and device.name != "CPU"


def facts(options: Mapping[str, Any], target: str | None = None) -> dict[str, str]:
    """Return what the version rules must know: of a compiler with these options, and of
    a runtime.
    """
    from epctx_sim_sdk.versions import DRIVER_VERSION, SDK_VERSION, stated_facts

    device = chosen_device(options, target).name
    versions = stated_facts(
        EP, "OpenVINO", options, {"sdk": SDK_VERSION, "driver": DRIVER_VERSION}
    )
    if device != "NPU":
        del versions["driver"]
    return versions | {"device": device}
