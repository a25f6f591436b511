"""Decorator for the dataclasses of the core: the standard library's, in half its time.

A load makes some thirty classes, and that takes a tenth of a short process: for each,
the library compiles six methods. Those that follow from the fields alone are closures
here, which take no compiler.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - type checkers know that one
else:
    from dataclasses import dataclass as _dataclass

    def dataclass(
        *, frozen: bool = False, eq: bool = True, **options: Any
    ) -> Callable[[type], type]:
        """Make a class a dataclass; see `dataclasses.dataclass`."""

        def decorate(cls: type) -> type:
            made = _dataclass(frozen=frozen, eq=False, repr=False, **options)(cls)
            # What the class defines itself stays.
            methods = {"__repr__": _make_repr(made)}
            if eq:
                methods["__eq__"] = _make_eq(made)
                methods["__hash__"] = _make_hash(made) if frozen else None
            for name, method in methods.items():
                if name not in vars(cls):
                    setattr(made, name, method)
            return made

        return decorate


def _make_repr(cls: type) -> Callable[[Any], str]:
    shown = [field.name for field in fields(cls) if field.repr]

    def describe(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({values})"

    return describe


def _make_eq(cls: type) -> Callable[[Any, object], Any]:
    values_of = _make_getter(field.name for field in fields(cls) if field.compare)

    def is_equal(self: Any, other: object) -> Any:
        if type(other) is not type(self):
            return NotImplemented
        return values_of(self) == values_of(other)

    return is_equal


def _make_hash(cls: type) -> Callable[[Any], int]:
    values_of = _make_getter(
        field.name
        for field in fields(cls)
        if (field.compare if field.hash is None else field.hash)
    )

    def compute_hash(self: Any) -> int:
        return hash(values_of(self))

    return compute_hash


def _make_getter(names: Iterable[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gives attributes as a tuple."""
    # Of one name alone it would give the value; a name may come twice.
    name, *more = names
    return attrgetter(name, *(more or [name]))
