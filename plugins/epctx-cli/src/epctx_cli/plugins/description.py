"""What an EP's class says of itself, in a form that JSON holds. Runs where the plugin is tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_core.plugin import Availability, ExecutionProvider, ProviderOption


def describe(cls: type[ExecutionProvider]) -> dict[str, Any]:
    """Return a valid class's attributes, options, and the hooks and class methods that it implements."""
    from epctx_core.plugin import ExecutionProvider
    from epctx_core.plugin.hookspecs import CLASS_METHODS
    from epctx_core.registry.loading import implemented_hooks
    from epctx_core.registry.records import simulates

    return {
        "vendor": cls.vendor,
        "simulated": simulates(cls),
        "api_version": cls.api_version,
        "binary_suffix": cls.binary_suffix or cls.name,
        "options": _options(cls.options),
        "dynamic_options": _options(cls.dynamic_options),
        "hooks": sorted(implemented_hooks(cls)),
        "class_methods": [
            name
            for name in CLASS_METHODS
            if getattr(cls, name).__func__ is not getattr(ExecutionProvider, name).__func__
        ],
        "keeps_functions": sorted("::".join(filter(None, function)) for function in cls.keeps_functions),
        "weightless_modes": sorted(mode.name for mode in cls.weightless_modes or ()),
    }


def _options(schema: Sequence[ProviderOption]) -> list[dict[str, Any]]:
    return [
        {
            "name": option.name,
            "type": option.type.__name__,
            "default": None if option.secret else option.default,
            "choices": list(option.choices),
            "doc": option.doc,
            "secret": option.secret,
        }
        for option in schema
    ]


def described(answer: Availability) -> dict[str, Any]:
    """Return an answer about one purpose."""
    return {"available": answer.available, "reason": answer.reason, "hint": answer.hint}
