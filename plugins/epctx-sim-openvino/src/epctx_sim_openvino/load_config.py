"""The option `load_config`: OpenVINO's properties by device, as JSON.

Checks its form; knows no other option.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from epctx_core.errors import InvalidArgument, suggestion
from epctx_sim_openvino.devices import BASE_DEVICES, EP, MODES

DEEPEST = 8
"""Levels of objects in one another."""

_SECTIONS = (*BASE_DEVICES, *MODES)
_CHECKED = {
    "INFERENCE_PRECISION_HINT": ("f32", "f16", "bf16"),
    "EXECUTION_MODE_HINT": ("ACCURACY", "PERFORMANCE"),
}
_HINT = 'Write it like {"CPU": {"PERFORMANCE_HINT": "LATENCY"}}.'


def parse_load_config(text: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the properties by device; empty for an empty text.

    Raises:
        InvalidArgument: not JSON, not of that form, or values of the checked properties
            that contradict.
    """
    if not text:
        return {}
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _make_error(f"is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise _make_error("is no object")
    for section, properties in config.items():
        if section not in _SECTIONS:
            raise _make_error(
                f"names the device {section!r}.{suggestion(section, _SECTIONS)}"
            )
        if not isinstance(properties, dict):
            raise _make_error(f"gives {section} no object of properties")
        _check(section, properties)
    return config


def _check(section: str, properties: Mapping[str, Any]) -> None:
    if _measure_depth(properties) >= DEEPEST:
        raise _make_error(f"nests more than {DEEPEST} objects under {section}")
    for name, allowed in _CHECKED.items():
        if name in properties and properties[name] not in allowed:
            raise _make_error(
                f"sets {name} of {section} to {properties[name]!r}; allowed: "
                f"{', '.join(allowed)}"
            )
    if _CHECKED.keys() <= properties.keys():
        raise _make_error(
            f"sets both {' and '.join(_CHECKED)} of {section}, of which OpenVINO "
            "takes one"
        )


def _measure_depth(value: Any) -> int:
    """Return how many objects are nested in a value that `json` could read."""
    deepest = 0
    pending = [(value, 0)]
    while pending:
        inner, above = pending.pop()
        if isinstance(inner, dict):
            deepest = max(deepest, above + 1)
            pending += [(v, above + 1) for v in inner.values()]
    return deepest


def _make_error(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{EP}: option 'load_config' {what.rstrip('.')}.", ep=EP, hint=_HINT
    )
