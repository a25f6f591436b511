"""The host of a session or compile: its arguments, checked before anything is read, its
progress callback and cancellation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from epctx_core.errors import InvalidArgument, concealed, convert_errors
from epctx_core.graph.mapping import known_digests
from epctx_core.options import CancellationFlag, SessionOptions
from epctx_core.registry.guard import blame_host
from epctx_core.sessions.providers import Progress, check_progress
from epctx_core.sessions.routing import logged_names

if TYPE_CHECKING:
    from epctx_core.graph.mapping import ModelInput
    from epctx_core.sessions.routing import ProviderRequest

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")
_POLLED_EVERY = 0.05
"""Seconds between two checks of the host's flag while an EP waits."""


def check_model_argument(model: object) -> ModelInput:
    """Return a model that is a path or bytes.

    Raises:
        InvalidArgument: it is neither, or empty.
    """
    if not isinstance(model, (str, os.PathLike, bytes)) or not model:
        changeable = isinstance(model, (bytearray, memoryview))
        description = f"a {type(model).__name__}" if changeable else repr(model)
        raise InvalidArgument(
            f"a model is a path or bytes, not {description:.80}.",
            hint="Give bytes(model)."
            if changeable
            else "Give the path of an ONNX file.",
        )
    return model


def copy_options(options: object) -> SessionOptions:
    """Return a copy of session options.

    Raises:
        InvalidArgument: they are not epctx's.
    """
    return check_class("sess_options", options, SessionOptions).copy()


def check_class(name: str, value: object, expected: type[R]) -> R:
    """Return an argument that is of a class of epctx.

    Raises:
        InvalidArgument: it is not.
    """
    if not isinstance(value, expected):
        type_name = f"{type(value).__module__}.{type(value).__name__}"
        cls = expected.__name__
        raise InvalidArgument(
            f"{name} is an object of type {type_name}, not a {cls}.",
            hint=f"Give an epctx_core.{cls}; that of onnxruntime is another class.",
        )
    return value


def check_function(name: str, function: F) -> F:
    """Return a function of the host, checked.

    Raises:
        InvalidArgument: it cannot be called.
    """
    if not callable(function):
        raise InvalidArgument(
            f"{name} takes a function, not {function!r:.80}.",
            hint="Give something that can be called.",
        )
    return function


def read_request(
    options: SessionOptions | None,
    providers: Sequence[str | ProviderRequest] | None,
    provider_options: Sequence[Mapping[str, object]] | None,
) -> tuple[SessionOptions, Sequence[ProviderRequest] | None]:
    """Return a copy of a host's options, or new ones, and its EPs with theirs; None if
    it named none.

    Raises:
        InvalidArgument: the options are not epctx's; or EPs are given twice, or not in
            a form that `InferenceSession` takes.
    """
    session = SessionOptions() if options is None else copy_options(options)
    if providers is None and provider_options is None:
        return session, list(session.providers) or None
    if isinstance(providers, str):
        raise InvalidArgument(
            f"providers must be a list of EPs, not a string: [{providers!r:.80}]."
        )
    items = _list_of("EPs", "providers", () if providers is None else providers)
    if session.providers:
        raise InvalidArgument(
            "EPs were given both to the session options and as providers.",
            hint=(
                "Use add_provider of the session options, or the argument providers, "
                "not both."
            ),
        )

    further: list[object] = [{}] * len(items)
    if provider_options is not None:
        further = _list_of("mappings", "provider_options", provider_options)
    if len(further) != len(items):
        raise InvalidArgument(
            f"there are {len(items)} providers and {len(further)} provider_options."
        )
    return session, [
        _read_entry(item, more) for item, more in zip(items, further, strict=True)
    ]


def _list_of(items: str, name: str, values: object) -> list[object]:
    if not isinstance(values, Iterable):
        kind = type(values).__name__
        raise InvalidArgument(
            f"{name} must be a list of {items}, not an object of type {kind}."
        )
    return list(values)


def _read_entry(item: object, more: object) -> ProviderRequest:
    """Return an entry of `providers`, and what belongs to it of `provider_options`, as
    name and options.
    """
    name, options = item if isinstance(item, tuple) and len(item) == 2 else (item, {})  # noqa: PLR2004
    if not isinstance(name, str) or not isinstance(options, Mapping):
        # Without its values, which may be secret.
        parts = item if isinstance(item, (tuple, list)) else ()
        types = ", ".join(type(part).__name__ for part in parts[:4])
        raise InvalidArgument(
            "an entry of providers is an object of type "
            f"{type(item).__name__}{types and f' of {types}'}.",
            hint=(
                'Each is an EP name, or a tuple of EP name and options: ("QNN", '
                '{"htp_arch": "73"}).'
            ),
        )
    if not isinstance(more, Mapping):
        raise InvalidArgument(
            f"provider_options of {name} is of type {type(more).__name__}, not a "
            "mapping."
        )
    return name, {**options, **more}


class CompileCancellation(CancellationFlag):
    """Cancellation of one compile, by the host's flag or by Ctrl-C; the host's flag
    itself is never changed.
    """

    def __init__(self, host: CancellationFlag) -> None:
        super().__init__()
        self._host = host

    @property
    def requested(self) -> bool:
        """True once the host cancelled."""
        return self._host.requested or super().requested

    def wait(self, seconds: float) -> bool:
        """Wait for cancellation, at most so long; return whether it was requested."""
        end = time.monotonic() + seconds
        while not self.requested and (left := end - time.monotonic()) > 0:
            super().wait(min(left, _POLLED_EVERY))
        return self.requested

    @contextmanager
    def by_interrupt(self) -> Iterator[None]:
        """Cancel on a Ctrl-C in the block, which then goes on up: EPs are still there
        and may have threads.
        """
        try:
            yield
        except KeyboardInterrupt:
            self.set(True)
            raise


@contextmanager
def host_call(doing: str) -> Iterator[None]:
    """Make the block, or the function that this decorates, one call of a host, whatever
    steps and further calls it takes.

    Each skipped EP is named once, each weight digested once, and only typed errors
    leave it; see `convert_errors`.
    """
    logged = logged_names.set(logged_names.get(set()))
    digests = known_digests.set(known_digests.get({}))
    try:
        with convert_errors(doing):
            yield
    finally:
        logged_names.reset(logged)
        known_digests.reset(digests)


def wrap_progress(progress: Progress | None) -> Progress:
    """Return a host's progress callback as the core and EPs call it, or one that shows
    nothing.

    An exception of the callback becomes Fail.

    Raises:
        InvalidArgument: it cannot be called.
    """
    if progress is None:
        return check_progress
    check_function("progress", progress)

    def report(stage: str, done: int, total: int) -> None:
        check_progress(stage, done, total)
        with blame_host(f"the progress callback raised at stage {stage!r}"):
            progress(concealed(stage), done, total)

    return report


def check_optional(
    check: Callable[[str, Any], R], name: str, value: object
) -> R | None:
    """Return the result of a check of an argument, None for one that was left out."""
    return None if value is None else check(name, value)


def check_path(name: str, path: object) -> str:
    """Return a path as text.

    Raises:
        InvalidArgument: it is not a path.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(
        text := os.fspath(path), str
    ):
        raise InvalidArgument(
            f"{name} is {path!r:.80}, which is not a path.",
            hint="Give a text or a Path.",
        )
    return text
