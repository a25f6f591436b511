"""Decorator for the dataclasses of the core: the standard library's, in less time.

A load makes some thirty classes, and that takes a tenth of a short process: for each,
the library compiles six methods. Those that follow from the fields alone are closures
here, which take no compiler.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - type checkers know that one
    from typing import TypeAlias

    _Function: TypeAlias = Callable[..., Any]
else:
    from dataclasses import dataclass as _dataclass

    def dataclass(
        *, frozen: bool = False, eq: bool = True, **options: Any
    ) -> _Function:
        """Make a class a dataclass; see `dataclasses.dataclass`."""

        def decorate(cls: type) -> type:
            made = _dataclass(frozen=frozen, eq=False, repr=False, **options)(cls)
            methods = {"__repr__": _make_repr(made)}
            if eq:
                methods["__eq__"] = _make_eq(made)
                methods["__hash__"] = _make_hash(made) if frozen else None

            for name, method in methods.items():
                # What the class defines itself stays.
                if name not in vars(cls):
                    setattr(made, name, method)
            return made

        return decorate


def _make_repr(cls: type) -> _Function:
    shown = [field.name for field in fields(cls) if field.repr]

    def describe(self: Any) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({', '.join(values)})"

    return describe


def _make_eq(cls: type) -> _Function:
    values_of = _make_getter([field.name for field in fields(cls) if field.compare])

    def is_equal(self: Any, other: object) -> Any:
        if type(other) is not type(self):
            return NotImplemented
        return values_of(self) == values_of(other)

    return is_equal


def _make_hash(cls: type) -> _Function:
    values_of = _make_getter(
        [
            field.name
            for field in fields(cls)
            if (field.compare if field.hash is None else field.hash)
        ]
    )

    def compute_hash(self: Any) -> int:
        return hash(values_of(self))

    return compute_hash


def _make_getter(names: list[str]) -> _Function:
    """Return a function that gives attributes as a tuple, the first one twice: of one
    name alone it would give the value.
    """
    return attrgetter(*names, names[0])
