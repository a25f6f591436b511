"""EPs that write compatibility information and validate it as a test says, and the
questions that they were asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from support.engine_eps import Alpha

import epctx_core as epctx
from epctx_core.plugin import Compatibility, ProviderOption, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable


class Validating(Alpha):
    """Alpha with a compatibility text and a verdict; make one with `validating`."""

    name = "ValidatingExecutionProvider"
    binary_suffix = "validating"
    options = (ProviderOption("driver", int, default=1, doc="The driver's version."),)
    info: ClassVar[Any] = "validating;version=0.1.0"
    verdict: ClassVar[Callable[[str], Any]]
    asked: ClassVar[list[str]] = []

    def __init__(self, context):
        super().__init__(context)
        self.asked.append("__init__")

    @classmethod
    def get_compatibility_info(cls, partitions, options):
        return cls.info

    @classmethod
    def validate_compatibility(cls, info, options):
        cls.asked.append(f"validate {info} driver={options['driver']}")
        return cls.verdict(info)

    @hookimpl
    def get_capability(self, graph):
        self.asked.append("get_capability")
        return super().get_capability(graph)

    @hookimpl
    def load_context(self, nodes, reader):
        self.asked.append("load_context")
        return super().load_context(nodes, reader)


def validating(
    verdict: Any = Compatibility.EP_SUPPORTED_OPTIMAL, **attributes: Any
) -> type[Validating]:
    """Return an EP class; a verdict that is an exception is raised."""

    def validate(_info: str) -> Any:
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    return type(
        "OneValidating",
        (Validating,),
        {"asked": [], "verdict": staticmethod(validate), **attributes},
    )


def registry_with(*eps):
    """Return a registry of these EPs alone."""
    registry = epctx.Registry(entry_points=False)
    for ep in eps:
        registry.register(ep)
    return registry


def options_with(*eps, **entries):
    """Return session options with these EPs."""
    options = epctx.SessionOptions()
    for ep in eps:
        options.add_provider(ep.name)
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), str(value))
    return options


def compiled(source, *eps, output=None):
    """Compile with these EPs; return the context model's path."""
    output = output or source.with_name(f"{source.stem}_ctx.onnx")
    epctx.ModelCompiler(
        options_with(*eps), source, registry=registry_with(*eps)
    ).compile_to_file(output)
    return output


def session(model, *eps, **entries):
    """Make a session with these EPs."""
    return epctx.InferenceSession(
        model, options_with(*eps, **entries), registry=registry_with(*eps)
    )
