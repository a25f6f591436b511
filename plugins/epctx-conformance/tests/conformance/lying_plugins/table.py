"""The lies: each EP class that breaks the contract in one way, and the check that has
to notice it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

from epctx_core.plugin import ExecutionProvider

Cls = TypeVar("Cls", bound=type[ExecutionProvider])

THEMES = (
    "cancelling",
    "claiming",
    "describing",
    "hooks",
    "holding_on",
    "side_effects",
    "memory",
    "numbers",
    "order",
    "remembering",
    "trusting",
)
"""The modules; `at_import` is not among them, because importing it already does
harm.
"""


@dataclass(frozen=True, kw_only=True)
class Lie:
    """One lying EP.

    Attributes:
        provider: its class; what it does wrong stands in its docstring.
        check: the name of the check that is there for it; others may fail as well.
        requirements: the abilities that its author declares; mostly all.
    """

    provider: type[ExecutionProvider]
    check: str
    requirements: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.provider.__name__


LIES: dict[str, Lie] = {}


def lie(check: str, **requirements: Any) -> Callable[[Cls], Cls]:
    """Put a class into the table."""

    def add(cls: Cls) -> Cls:
        cls.name = f"{cls.__name__}ExecutionProvider"
        LIES[cls.__name__] = Lie(provider=cls, check=check, requirements=requirements)
        return cls

    return add


def all_lies() -> list[Lie]:
    """Return every lie, by module and as written."""
    for theme in THEMES:
        import_module(f"conformance.lying_plugins.{theme}")
    return list(LIES.values())
