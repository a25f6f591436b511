"""Options that vendors' EPs have alike, and those that have nothing to act on in a
simulation.
"""

from __future__ import annotations

from typing import Any

from epctx_core.plugin import ProviderOption


def without_effect(
    name: str, default: Any, doc: str, choices: tuple[Any, ...] = ()
) -> ProviderOption:
    """Return an option whose values are checked and make no difference."""
    doc = (
        f"{doc} Accepted and checked; the simulation behaves the same for every value."
    )
    return ProviderOption(
        name, type(default), default=default, choices=choices, doc=doc
    )


def without_hardware(*names: str) -> tuple[ProviderOption, ...]:
    """Return options that are accepted, and said to be without effect."""
    doc = (
        "The simulation has none of the libraries, files and devices that it is about."
    )
    return tuple(
        ProviderOption(name, str, default="", doc=doc, effect=False) for name in names
    )


def runtime_options(*components: str, api: int = 0) -> tuple[ProviderOption, ...]:
    """Return options by which the simulated runtime claims to have other versions; see
    `versions.stated_facts`.

    Args:
        components: such as `sdk`; each has a version of its own.
        api: the default of `runtime_api_version`; another one is another digest of the
            options.
    """
    claims = "that the runtime claims to have"
    versions = [
        ProviderOption(
            f"runtime_{component}_version",
            str,
            default="",
            doc=f"Simulation only: the version of the {component} {claims}, such as "
            "sim-2.51.0.",
        )
        for component in components
    ]
    numbers = [
        ProviderOption(
            f"runtime_{part}_version",
            int,
            default=default,
            doc=f"Simulation only: the version of the payloads' {what} {claims}; 0 "
            "for the real one.",
        )
        for part, what, default in (("api", "interface", api), ("blob", "format", 0))
    ]
    return (*versions, *numbers)


WORKLOAD_TYPE = without_effect(
    "ep.dynamic.workload_type",
    "Default",
    "Efficient: the device may be slower and use less power.",
    ("Default", "Efficient"),
)
