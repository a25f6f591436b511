"""What hosts give to `ModelCompiler` and `InferenceSession`: what is wrong is said before anything is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from epctx_core.errors import InvalidArgument
from epctx_core.options import SessionConfig, SessionOptions

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")


def if_given(check: Callable[[str, Any], R], name: str, value: object) -> R | None:
    """Return what a check of an argument gives, and None for one that was left out."""
    return None if value is None else check(name, value)


def given_model(model: object) -> str | os.PathLike[str] | bytes:
    """Return a model that is a path or bytes.

    Raises:
        InvalidArgument: it is neither, or empty.
    """
    if isinstance(model, (bytearray, memoryview)):
        raise InvalidArgument(
            f"a model is a path or bytes, not a {type(model).__name__}: what is mapped must not change.",
            hint="Give bytes(model), or the path of its file.",
        )
    if not isinstance(model, (str, os.PathLike, bytes)) or not model:
        raise InvalidArgument(
            f"a model is a path or bytes, not {model!r:.80}.", hint="Give the path of an ONNX file."
        )
    return model


def path_of(model: str | os.PathLike[str] | bytes) -> Path | None:
    """Return a model's path, None if it was given as bytes."""
    return None if isinstance(model, bytes) else Path(model)


def given_options(options: object) -> SessionOptions:
    """Return a copy of session options.

    Raises:
        InvalidArgument: they are none of epctx's.
    """
    if not isinstance(options, SessionOptions):
        kind = f"{type(options).__module__}.{type(options).__name__}"
        raise InvalidArgument(
            f"sess_options is a {kind}, not a SessionOptions.",
            hint="Give an epctx_core.SessionOptions; that of onnxruntime is another class.",
        )
    return options.copy()


def given_path(name: str, path: object) -> str:
    """Return a path as text.

    Raises:
        InvalidArgument: it is none.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(text := os.fspath(path), str):
        raise InvalidArgument(f"{name} is {path!r:.80}, which is no path.", hint="Give a text or a Path.")
    return text


def given_function(name: str, function: F) -> F:
    """Return a function of the host's.

    Raises:
        InvalidArgument: it cannot be called.
    """
    if not callable(function):
        raise InvalidArgument(
            f"{name} takes a function, not {function!r:.80}.", hint="Give something that can be called."
        )
    return function


def embeds(argument: object, config: SessionConfig) -> bool:
    """Return whether payloads are stored in the model: the argument, or without one the session option.

    Raises:
        InvalidArgument: the argument is neither true nor false.
    """
    if argument is None:
        return config.embed
    if argument not in (False, True):
        raise InvalidArgument(
            f"embed_compiled_data_into_model is {argument!r:.80}, which is neither True nor False.",
            hint="Leave it out for what ep.context_embed_mode says.",
        )
    return bool(argument)
