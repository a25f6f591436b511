"""What hosts give to `ModelCompiler` and `InferenceSession`: what is wrong is said before anything is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from epctx_core.errors import InvalidArgument
from epctx_core.options import SessionOptions

F = TypeVar("F", bound=Callable[..., object])


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


def requested_providers(
    options: SessionOptions,
    providers: Sequence[str | tuple[str, Mapping[str, object]]] | None,
    provider_options: Sequence[Mapping[str, object]] | None,
) -> list[tuple[str, Mapping[str, object]]] | None:
    """Return the host's EPs with their options; None if it named none.

    Raises:
        InvalidArgument: they are given twice over, or not in a form that `InferenceSession` takes.
    """
    if providers is None:
        if provider_options is not None:
            raise InvalidArgument("provider_options was given without providers.")
        return list(options.providers) or None
    if options.providers:
        raise InvalidArgument(
            "EPs were given both to the session options and as providers.",
            hint="Use add_provider of the session options, or the argument providers, not both.",
        )
    if provider_options is not None and len(provider_options) != len(providers):
        raise InvalidArgument(
            f"there are {len(providers)} providers and {len(provider_options)} provider_options."
        )
    if isinstance(providers, str):
        raise InvalidArgument(f"providers is a list of EPs, not the text {providers!r}.")
    requested: list[tuple[str, Mapping[str, object]]] = []
    for place, item in enumerate(providers):
        name, given = _name_and_options(item)
        further = provider_options[place] if provider_options is not None else {}
        if not isinstance(further, Mapping):
            raise InvalidArgument(f"provider_options of {name} is a {type(further).__name__}, not a mapping.")
        requested.append((name, {**given, **further}))
    return requested


def _name_and_options(item: object) -> tuple[str, Mapping[str, object]]:
    """Return an entry of `providers` as name and options."""
    if isinstance(item, str):
        return item, {}
    if isinstance(item, tuple) and len(item) == 2:  # noqa: PLR2004 - name and options
        name, options = item
        if isinstance(name, str) and isinstance(options, Mapping):
            return name, options
    raise InvalidArgument(
        f"an entry of providers is {_form(item)}.",
        hint='Each is an EP type, or a tuple of EP type and options: ("QNN", {"htp_arch": "73"}).',
    )


def _form(item: object) -> str:
    """Return what an entry is, without its values, which may be secret."""
    if isinstance(item, (tuple, list)):
        return (
            f"a {type(item).__name__} of {', '.join(type(each).__name__ for each in item[:4]) or 'nothing'}"
        )
    return f"an object of type {type(item).__name__}"
