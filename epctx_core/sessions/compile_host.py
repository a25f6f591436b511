"""Host of a compile: its arguments, its progress callback, and its wish to stop, by flag or by Ctrl-C, which EPs poll."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from epctx_core.errors import EpctxError, Fail, InvalidArgument, concealed, errors_typed
from epctx_core.graph.weights import known_digests
from epctx_core.options import CancellationFlag, SessionConfig, SessionOptions
from epctx_core.registry.guard import describe
from epctx_core.sessions.boundary import given_options, requested_providers
from epctx_core.sessions.providers import Progress, no_progress, told_names

R = TypeVar("R")
_POLLED_EVERY = 0.05
"""Seconds between two looks at the host's flag while an EP waits."""


class CompileCancellation(CancellationFlag):
    """Requested once the host asked, by its flag or by Ctrl-C; the host's flag itself is never changed."""

    def __init__(self, host: CancellationFlag) -> None:
        super().__init__()
        self._host = host

    @property
    def requested(self) -> bool:
        """Whether the work shall stop."""
        return self._host.requested or super().requested

    def wait(self, seconds: float) -> bool:
        """Wait until the work shall stop, at most so long; return whether it shall."""
        end = time.monotonic() + seconds
        while not self.requested and (left := end - time.monotonic()) > 0:
            super().wait(min(left, _POLLED_EVERY))
        return self.requested

    @contextmanager
    def by_interrupt(self) -> Iterator[None]:
        """Make a Ctrl-C in the block a wish to stop before it goes on up: EPs are still there and may have threads."""
        try:
            yield
        except KeyboardInterrupt:
            self.set(True)
            raise


@contextmanager
def host_call(doing: str) -> Iterator[None]:
    """Make the block, or the function that this decorates, one call of a host, whatever steps it takes.

    Each skipped EP is named once, each weight digested once, and only typed errors leave it; see `errors_typed`.
    """
    told, digests = told_names.set(set()), known_digests.set({})
    try:
        with errors_typed(doing):
            yield
    finally:
        told_names.reset(told)
        known_digests.reset(digests)


def with_providers(
    options: object,
    providers: Sequence[str | tuple[str, Mapping[str, object]]] | None,
    provider_options: Sequence[Mapping[str, object]] | None,
) -> SessionOptions:
    """Return a copy of session options that has the host's EPs, whichever way it named them.

    Raises:
        InvalidArgument: see `given_options` and `requested_providers`.
    """
    copy = given_options(options)
    requested = requested_providers(copy, providers, provider_options)
    copy.providers = []
    for name, given in requested or ():
        copy.add_provider(name, given)
    return copy


def reported_progress(progress: Progress | None) -> Progress:
    """Return a host's progress callback as the core and EPs call it; what it raises is a Fail of the host's.

    None gives one that shows nothing.
    """
    if progress is None:
        return no_progress

    def report(stage: str, done: int, total: int) -> None:
        try:
            progress(concealed(stage), done, total)
        except EpctxError:
            raise
        except Exception as error:
            raise Fail(
                f"the progress callback raised at stage {stage!r}: {describe(error)}.",
                hint="Fix the callback, or give none.",
            ) from error

    return report


def if_given(check: Callable[[str, Any], R], name: str, value: object) -> R | None:
    """Return what a check of an argument gives, and None for one that was left out."""
    return None if value is None else check(name, value)


def path_of(model: str | os.PathLike[str] | bytes) -> Path | None:
    """Return a model's path, None if it was given as bytes."""
    return None if isinstance(model, bytes) else Path(model)


def given_path(name: str, path: object) -> str:
    """Return a path as text.

    Raises:
        InvalidArgument: it is none.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(text := os.fspath(path), str):
        raise InvalidArgument(f"{name} is {path!r:.80}, which is no path.", hint="Give a text or a Path.")
    return text


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
