"""Uses of names, as the program runs them, and results as JSON has them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as native

USES: dict[str, Callable[[], object]] = {}
"""Functions by the name that they use; further ones by `name: case`."""

BUILTINS = (
    ArithmeticError,
    AttributeError,
    FileNotFoundError,
    IndexError,
    KeyError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
CLASSES = (
    *BUILTINS,
    *(
        each
        for each in vars(native).values()
        if isinstance(each, type) and issubclass(each, Exception)
    ),
)
"""What programs write after `except`."""


def uses(*names: str, case: str = "") -> Callable[[Any], Any]:
    """Return a decorator that keeps a function as a use of names.

    Args:
        names: `name`, or `Class.attribute`.
        case: for a further use, such as a wrong one: what is special.
    """

    def keep(function: Callable[[], object]) -> Callable[[], object]:
        for name in names:
            key = f"{name}: {case}" if case else name
            assert key not in USES, f"{key} is used twice"
            USES[key] = function
        return function

    return keep


def caught(action: Callable[..., object], *args: Any, **kwargs: Any) -> object:
    """Return the classes as which a program can catch the error of a call."""
    try:
        action(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - its classes are the result
        return {"caught as": [c.__name__ for c in CLASSES if isinstance(error, c)]}
    return "no error"


def plain(value: Any) -> Any:  # noqa: PLR0911 - a line for each kind
    """Return a value as JSON has it, with the types of arrays."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), value.tolist()]
    if isinstance(value, np.generic):
        return [str(value.dtype), value.item()]
    if hasattr(type(value), "__members__"):
        return value.name
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, (str, enum.Enum)):
        return [plain(each) for each in value]
    return value
