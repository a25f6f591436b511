"""Prints every public name of the contract with its signature, one line for each thing
that can go; see README.md.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from epctx_core import plugin
from epctx_core.plugin.hookspecs import HookSpecs


def lines() -> Iterator[str]:
    """Yield the lines, names in alphabetical order."""
    for name in sorted(plugin.__all__):
        yield from described(name, getattr(plugin, name))
    for hook, function in vars(HookSpecs).items():
        if not hook.startswith("_"):
            yield from described_call(f"hook {hook}", function)


def described(name: str, value: Any) -> Iterator[str]:
    """Yield what is public about one name."""
    if isinstance(value, frozenset):
        yield from (f"{name} has {item!r}" for item in sorted(value))
    elif inspect.isclass(value) and issubclass(value, enum.Enum):
        yield from (f"{name}.{member.name} = {member.value!r}" for member in value)
    elif inspect.isclass(value):
        yield from described_class(name, value)
    elif inspect.isfunction(value):
        yield from described_call(name, value)
    elif isinstance(value, int | str) or dataclasses.is_dataclass(value):
        yield f"{name} = {value!r}"
    else:
        yield f"{name}: {type(value).__name__}"


def described_class(name: str, cls: type) -> Iterator[str]:
    """Yield a class's public members: those of its own, in its own order."""
    yield (
        "class "
        f"{name}({', '.join(base.__name__ for base in cls.__bases__ if base is not object)})"
    )
    if not getattr(cls, "_is_protocol", False):
        yield from described_call(name, cls)
    annotations = inspect.get_annotations(cls)
    for member in dict.fromkeys([*annotations, *vars(cls)]):
        value = inspect.getattr_static(cls, member, None)
        if member.startswith("_"):
            continue
        if isinstance(value, classmethod | staticmethod):
            yield from described_call(
                f"{type(value).__name__} {name}.{member}", value.__func__
            )
        elif inspect.isfunction(value):
            yield from described_call(f"{name}.{member}", value)
        elif isinstance(value, property) and value.fget is not None:
            yield (
                f"property {name}.{member} -> "
                f"{inspect.signature(value.fget).return_annotation}"
            )
        else:
            yield f"{name}.{member}: {annotations.get(member, type(value).__name__)}"


def without_address(parameter: inspect.Parameter) -> str:
    """Return a parameter as text; a default that is a function by its name."""
    if inspect.isfunction(parameter.default):
        name = parameter.default.__name__
        return f"{parameter.replace(default=inspect.Parameter.empty)} = {name}"
    return str(parameter)


def described_call(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """Yield a line for each parameter, so that a further one changes no line."""
    signature = inspect.signature(function)
    yield f"{name}() -> {signature.return_annotation}"
    for parameter in signature.parameters.values():
        keyword_only = "*, " if parameter.kind is parameter.KEYWORD_ONLY else ""
        if parameter.name not in {"self", "cls"}:
            yield f"{name}({keyword_only}{without_address(parameter)})"


if __name__ == "__main__":
    print("\n".join(lines()))  # noqa: T201 - this is what it is for
