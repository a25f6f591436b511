"""What a class, an object or a module marks with `hookimpl`.

Reads, never judges, and never evaluates a property.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from epctx_core.plugin.hookspecs import PROJECT

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider

_MARK = f"{PROJECT}_impl"


@dataclass(frozen=True, kw_only=True)
class MarkedMethod:
    """An attribute marked with `hookimpl`.

    Attributes:
        attribute: its name in the class.
        hook: the hook it means to implement.
        static: the attribute as it stands in the class, not bound.
        function: the function behind it.
        bound: whether it is given the object or class as its first argument.
        wrapper: whether it is marked as a hook wrapper.
    """

    attribute: str
    hook: str
    static: Any
    function: Callable[..., Any]
    bound: bool
    wrapper: bool

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """What the core has to pass: everything but `self`.

        Raises:
            ValueError, TypeError: the function does not tell.
        """
        parameters = list(inspect.signature(self.function).parameters.values())
        return parameters[1:] if self.bound else parameters


def marked_methods(owner: object) -> Iterator[MarkedMethod]:
    """Yield what a class, an object or a module marks with `hookimpl`; evaluates no property."""
    for attribute, static in _static_attributes(owner):
        function = getattr(static, "__func__", static) if _is_method(static) else static
        mark = _mark(static) or _mark(function)
        if mark is not None and callable(function):
            yield MarkedMethod(
                attribute=attribute,
                hook=mark.get("specname") or attribute,
                static=static,
                function=function,
                bound=_is_bound(owner, attribute, static),
                wrapper=bool(mark.get("wrapper") or mark.get("hookwrapper")),
            )


def _static_attributes(owner: object) -> Iterator[tuple[str, object]]:
    """Yield what stands in a class, an object or a module, by name, as it is written there."""
    if inspect.isclass(owner):
        # The same as below at a tenth of the time, which each new session spends on each EP.
        found = {name: static for cls in reversed(owner.__mro__) for name, static in vars(cls).items()}
        yield from sorted(found.items())
    else:
        yield from ((name, inspect.getattr_static(owner, name, None)) for name in dir(owner))


def _is_method(static: object) -> bool:
    return isinstance(static, (staticmethod, classmethod)) or inspect.ismethod(static)


def _is_bound(owner: object, attribute: str, static: object) -> bool:
    if isinstance(static, staticmethod):
        return False
    own = {} if inspect.isclass(owner) else getattr(owner, "__dict__", {})  # a module's or an instance's
    return inspect.ismethod(static) or attribute not in own


def _mark(static: object) -> Mapping[str, Any] | None:
    if isinstance(static, FunctionType):
        mark = vars(static).get(_MARK)
    elif type(static).__module__ == "builtins" and not (_is_method(static) or inspect.isclass(static)):
        return None
    else:
        # Not getattr: an object with __getattr__, such as a logger proxy, would answer to any name.
        mark = inspect.getattr_static(static, _MARK, None)
    return mark if isinstance(mark, dict) else None


def implemented_hooks(cls: type[ExecutionProvider]) -> dict[str, MarkedMethod]:
    """Return the hooks that a valid class implements."""
    return {method.hook: method for method in marked_methods(cls)}
