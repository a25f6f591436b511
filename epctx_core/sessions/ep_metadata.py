"""`get_ep_metadata`: what an EP says about itself before a session exists, by ONNX Runtime's keys."""

from __future__ import annotations

from epctx_core.options import WeightlessMode
from epctx_core.plugin import ExecutionProvider
from epctx_core.registry import Registry, default_registry
from epctx_core.registry.records import means, simulates
from epctx_core.sessions.providers import CPU_EP
from epctx_core.sessions.weightless import weightless_modes_text


def get_ep_metadata(ep: str, *, registry: Registry = default_registry) -> dict[str, str]:
    """Return what an EP declares, so that a host can ask only for what it has.

    Args:
        ep: the EP type, or its short name.
        registry: where the EP is looked up.

    Returns:
        `weightless_supported_modes`: "none", "external_only", "all" or "all_or_external_only";
        `weightless_support`: the same for hosts of ONNX Runtime before 1.31, "all" for both;
        `simulated`: "1" for an EP that computes on this CPU in place of hardware, else "0".

    Raises:
        InvalidArgument: no such EP.
        PluginError: the EP is broken.

    Example:
        >>> get_ep_metadata("OpenVINO")["weightless_support"]
        'all'
    """
    cls = ExecutionProvider if means(ep, CPU_EP) else registry.load(registry.resolve(ep))
    modes = cls.weightless_modes
    most = {WeightlessMode.ALL} if WeightlessMode.ALL in (modes or ()) else modes
    return {
        "weightless_support": weightless_modes_text(most),
        "weightless_supported_modes": weightless_modes_text(modes),
        "simulated": str(int(cls is not ExecutionProvider and simulates(cls))),
    }
