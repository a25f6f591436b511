"""The options of the simulated QNN EP, by the names and values of the real one, and
what follows from them.

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

EP = "QNNExecutionProvider"
ARCHITECTURES = (68, 69, 73, 75, 79, 81)
"""Generations of the Hexagon Tensor Processor."""

NO_DRIVER = "none"
"""Value of `runtime_driver_version` for a runtime without a driver of its own."""

_PERFORMANCE_MODES = (
    "default", "burst", "balanced", "high_performance", "high_power_saver",
    "low_balanced", "low_power_saver", "power_saver", "extreme_power_saver",
    "sustained_high_performance",
)  # fmt: skip

DYNAMIC_OPTIONS = (
    WORKLOAD_TYPE,
    without_effect(
        "ep.dynamic.qnn_htp_performance_mode",
        "default",
        "Clocks and power of the device from now on.",
        _PERFORMANCE_MODES,
    ),
)
_WITHOUT_HARDWARE = (
    "backend_path", "disable_file_mapped_weights", "dump_json_qnn_graph",
    "dump_qnn_ir_dlc", "dump_qnn_ir_dlc_dir", "enable_htp_shared_memory_allocator",
    "enable_vtcm_backup_buffer_sharing", "extended_udma", "htp_bf16_enable",
    "json_qnn_graph_dir", "op_packages", "profiling_file_path", "profiling_level",
    "qnn_context_priority", "qnn_ir_backend_path", "qnn_saver_path",
    "rpc_control_latency", "rpc_polling_time", "skip_qnn_version_check",
)  # fmt: skip

OPTIONS = (
    ProviderOption(
        "backend_type",
        str,
        default="htp",
        choices=("htp",),
        doc="The QNN backend; only HTP is simulated.",
    ),
    ProviderOption(
        "htp_arch",
        int,
        default=73,
        choices=ARCHITECTURES,
        doc=(
            "The HTP architecture to compile for, and when loading that of the "
            "simulated device."
        ),
    ),
    ProviderOption(
        "soc_model",
        int,
        default=0,
        doc="The SoC model number; 0 for unknown, which fits every payload.",
    ),
    without_effect("device_id", 0, "The device to use."),
    ProviderOption(
        "enable_htp_fp16_precision",
        bool,
        default=False,
        doc=(
            "1: float32 weights are stored as float16, which changes results. The "
            "real EP's default is 1."
        ),
    ),
    without_effect(
        "htp_graph_finalization_optimization_mode",
        0,
        "How long the compiler may search.",
        (0, 1, 2, 3),
    ),
    without_effect(
        "htp_performance_mode",
        "default",
        "Clocks and power of the device.",
        _PERFORMANCE_MODES,
    ),
    without_effect("vtcm_mb", 0, "Tightly coupled memory in MB; 0 for not set."),
    ProviderOption(
        "enable_htp_spill_fill_buffer",
        bool,
        default=False,
        doc=(
            "1: the main node's max_size says how much memory the largest graph's "
            "activations need."
        ),
    ),
    ProviderOption(
        "enable_htp_weight_sharing",
        bool,
        default=False,
        doc=(
            "1: graphs of one binary share equal weights. The simulated SDK does so "
            "in any case."
        ),
    ),
    ProviderOption(
        "offload_graph_io_quantization",
        bool,
        default=False,
        doc=(
            "1: QuantizeLinear of graph inputs and DequantizeLinear of graph outputs "
            "are left to the CPU. The real EP's default is 1."
        ),
    ),
    *without_hardware(*_WITHOUT_HARDWARE),
    *runtime_options("sdk", api=1),
    ProviderOption(
        "runtime_driver_version",
        str,
        default="",
        doc=(
            "Simulation only: the driver version that the runtime claims to have, "
            "such as sim-1.8.0; none for a runtime that works without a driver of its "
            "own."
        ),
    ),
    ProviderOption(
        "runtime_htp_arch",
        int,
        default=0,
        choices=(0, *ARCHITECTURES),
        doc=(
            "Simulation only: the architecture of the simulated device when loading; "
            "0 for that of htp_arch."
        ),
    ),
    ProviderOption(
        "runtime_backend",
        str,
        default="",
        choices=("", "cpu", "gpu", "htp"),
        doc=(
            "Simulation only: the QNN backend that the runtime claims to be; empty "
            "for that of backend_type."
        ),
    ),
)

_TARGET = re.compile(r"(?:htp-?)?v?(\d{1,3})", re.IGNORECASE)
_HARDWARE = re.compile(r"htp-v(\d{1,3}) \(simulated\)")


def target_architecture(options: Mapping[str, Any], target: str | None) -> int:
    """Return the architecture to compile for: the host's target if it named one, else
    `htp_arch`.

    Raises:
        InvalidArgument: the target is not an HTP architecture.
    """
    if target is None:
        return int(options["htp_arch"])
    match = _TARGET.fullmatch(target)
    if match is None or int(match[1]) not in ARCHITECTURES:
        targets = ", ".join(f"htp-v{number}" for number in ARCHITECTURES)
        raise InvalidArgument(
            f"{EP} has no target {target!r}.", ep=EP, hint=f"Its targets: {targets}."
        )
    return int(match[1])


def hardware_architecture(architecture: int) -> str:
    """Return the node attribute `hardware_architecture`."""
    return f"htp-v{architecture} (simulated)"


def read_hardware_architecture(text: str) -> str:
    """Return the fact `htp_arch` out of the node attribute, or the text itself if it is
    not ours.
    """
    match = _HARDWARE.fullmatch(text)
    return match[1] if match else text


def compiler_facts(
    options: Mapping[str, Any], target: str | None = None
) -> dict[str, str]:
    """Return what the version rules must know about whatever is compiled with these
    options.
    """
    from epctx_sim_sdk.versions import DRIVER_VERSION, SDK_VERSION, stated_facts

    driver = (
        {}
        if options["runtime_driver_version"] == NO_DRIVER
        else {"driver": DRIVER_VERSION}
    )
    soc_model = {"soc_model": str(options["soc_model"])} if options["soc_model"] else {}
    return {
        **stated_facts(EP, "QNN", options, {"sdk": SDK_VERSION, **driver}),
        "backend": options["runtime_backend"] or options["backend_type"],
        "htp_arch": str(target_architecture(options, target)),
        **soc_model,
    }


def runtime_facts(
    options: Mapping[str, Any], target: str | None = None
) -> dict[str, str]:
    """Return the same about the simulated device that loads."""
    # A payload made by a driver needs one; a payload made without needs none.
    facts = {"driver": NO_DRIVER, **compiler_facts(options, target)}
    return facts | (
        {"htp_arch": str(options["runtime_htp_arch"])}
        if options["runtime_htp_arch"]
        else {}
    )
