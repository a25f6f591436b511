"""`load_or_compile` and `compile_cached`: the compiled form of a model from the cache,
compiled first if necessary.

Also `cache_statistics`, and the settings of the cache, from arguments, environment
variables and defaults.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from epctx_core import (
    GraphOptimizationLevel,
    Registry,
    SessionOptions,
    default_registry,
)
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.ext import get_user_folder

if TYPE_CHECKING:
    from epctx_cache.counters import CacheStatistics
    from epctx_cache.request import Request
    from epctx_core import InferenceSession

P = ParamSpec("P")
R = TypeVar("R")
Providers: TypeAlias = Sequence[str | tuple[str, Mapping[str, object]]]
Progress: TypeAlias = Callable[[str, int, int], None]

FOLDER_VARIABLE = "EPCTX_CACHE_DIR"
SIZE_VARIABLE = "EPCTX_CACHE_SIZE"
TRUST_VARIABLE = "EPCTX_CACHE_TRUST_STAT"
SHARED_VARIABLE = "EPCTX_CACHE_SHARED"
PUSH_VARIABLE = "EPCTX_CACHE_PUSH"

DEFAULT_SIZE = 10 << 30
"""Limit of all entries together, in bytes."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """Settings of one use of the cache.

    Attributes:
        folder: of the cache.
        size: limit of all entries together, in bytes.
        trust_stat: True to take a file for unchanged if its size, times of change,
            inode and device are.
        shared: address of the cache that machines share; empty for none.
        push: True to put there what this machine compiles.
    """

    folder: Path
    size: int
    trust_stat: bool
    shared: str
    push: bool


def cache_settings(
    folder: str | os.PathLike[str] | None = None,
    size: int | None = None,
    trust_stat: bool | None = None,
    shared: str | None = None,
    push: bool | None = None,
    environment: Mapping[str, str] = os.environ,
) -> CacheSettings:
    """Return the settings; for an argument that is None, those of the environment or
    the default.

    Raises:
        InvalidArgument: a value is not valid.
    """
    if size is not None and (
        isinstance(size, bool) or not isinstance(size, int) or size < 0
    ):
        raise InvalidArgument(
            f"cache_size is {size!r:.80}, not a number of bytes from 0."
        )
    if folder is not None and (
        not isinstance(folder, (str, os.PathLike))
        or not isinstance(os.fspath(folder), str)
    ):
        raise InvalidArgument(f"cache_dir is {folder!r:.80}, not a path.")
    named = (
        os.fspath(folder)
        if folder is not None
        else environment.get(FOLDER_VARIABLE, "")
    )
    if size is None:
        text = environment.get(SIZE_VARIABLE, "")
        size = parse_size(text, SIZE_VARIABLE) if text.strip() else DEFAULT_SIZE
    return CacheSettings(
        folder=_expand(named).absolute()
        if named
        else get_user_folder(sys.platform, environment),
        size=size,
        trust_stat=_choose("trust_stat", trust_stat, TRUST_VARIABLE, environment),
        shared=_choose_address(shared, environment),
        push=_choose("shared_push", push, PUSH_VARIABLE, environment),
    )


def _choose_address(shared: str | None, environment: Mapping[str, str]) -> str:
    """Return the address of the shared cache, of an argument or of its variable.

    Raises:
        InvalidArgument: it is no text, or would be a folder in that of each process.
    """
    if shared is not None and not isinstance(shared, str):
        raise InvalidArgument(f"shared_cache is {shared!r:.80}, not a text.")
    address = environment.get(SHARED_VARIABLE, "") if shared is None else shared
    if re.match(r"(file|local)://[^/]", address) and sys.platform != "win32":
        # Others that have the same address would have another folder.
        raise InvalidArgument(
            f"the shared cache {address!r:.80} is no whole path.",
            hint="Write three slashes before a path: file:///mnt/team/epctx.",
        )

    # fsspec takes any other text for a path, also an address with a typo.
    path = _expand(address.removeprefix("file:"))
    if address and not re.search("://|::", address) and not path.is_absolute():
        named = SHARED_VARIABLE if shared is None else "shared_cache"
        raise InvalidArgument(
            f"{named} is {address!r:.80}, neither an address nor a whole path.",
            hint="Write it as s3://bucket/folder or file:///mnt/team/epctx.",
        )
    return address


def _expand(path: str) -> Path:
    """Return a path in which `~` is the folder of a user.

    Raises:
        InvalidArgument: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidArgument(
            f"{path!r:.80} is in the folder of a user that is not known: {error}",
            hint="Write the whole path.",
        ) from error


def _choose(
    name: str, value: bool | None, variable: str, environment: Mapping[str, str]
) -> bool:
    """Return the value of an argument, of a variable, or True.

    Raises:
        InvalidArgument: it is neither True nor False.
    """
    if value not in (None, False, True):
        raise InvalidArgument(f"{name} is {value!r:.80}, not True or False.")
    if value is not None:
        return bool(value)
    text = environment.get(variable, "")
    if text not in {"", "0", "1"}:
        raise InvalidArgument(f"{variable} is {text!r:.80}, not 0 or 1.")
    return text != "0"


def parse_size(text: str, variable: str = "") -> int:
    """Return the number of bytes of a text such as `1048576`, `512M` or `10G`.

    Args:
        text: number and unit.
        variable: the environment variable that has it, for the error.

    Raises:
        InvalidArgument: the text is not a size.
    """
    match = re.fullmatch(
        r"([0-9]{1,18})\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII
    )
    if match is None:
        raise InvalidArgument(
            f"{variable} is {text!r:.80}, not a size."
            if variable
            else f"{text!r:.80} is not a size.",
            hint="Write a number of bytes, such as 1048576, 512M or 10G.",
        )
    return int(match[1]) * _UNITS[match[2].upper()]


def _make_request(  # noqa: PLR0913 - public: the parameters of InferenceSession and ModelCompiler
    model: str | os.PathLike[str] | bytes,
    sess_options: SessionOptions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    providers: Providers | None = None,
    provider_options: Sequence[Mapping[str, object]] | None = None,
    graph_optimization_level: GraphOptimizationLevel | None = None,
    cache_size: int | None = None,
    trust_stat: bool | None = None,
    shared_cache: str | None = None,
    shared_push: bool | None = None,
    progress: Progress | None = None,
    registry: Registry = default_registry,
) -> Request:
    from epctx_cache.request import Request, cacheable

    return Request(
        model=model,
        options=cacheable(sess_options, providers, provider_options),
        level=graph_optimization_level,
        settings=cache_settings(
            cache_dir, cache_size, trust_stat, shared_cache, shared_push
        ),
        progress=progress,
        registry=registry,
    )


def _copy_parameters(
    make: Callable[P, Request], doing: str
) -> Callable[[Callable[[Request], R]], Callable[P, R]]:
    """Make a function of a request take the parameters that the request is made of."""
    parameters = inspect.signature(make)

    def decorate(function: Callable[[Request], R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            from epctx_core.ext import host_call

            parameters.bind(*args, **kwargs)  # a TypeError here is the caller's
            with host_call(doing):
                return function(make(*args, **kwargs))

        returned = function.__annotations__["return"]
        call.__signature__ = parameters.replace(return_annotation=returned)  # type: ignore[attr-defined]
        return call

    return decorate


@_copy_parameters(_make_request, "loading or compiling the model")
def load_or_compile(request: Request) -> InferenceSession:
    """Return a session for a model, compiled once and found in the cache by content
    from then on.

    Many threads and processes may ask for one model at a time: one compiles, the others
    wait for it. A cache that cannot be used makes no load fail: the model is then
    compiled for this session alone, and the first time a warning is logged. A context
    model is loaded as it is.

    Args:
        model: a path or bytes.
        sess_options: EPs and session options, as for `InferenceSession`.
        cache_dir: the cache's folder; None for EPCTX_CACHE_DIR or the user's cache
            folder.
        providers, provider_options: EPs, as for `InferenceSession`.
        graph_optimization_level: as for `ModelCompiler`.
        cache_size: limit of the cache in bytes; None for EPCTX_CACHE_SIZE or 10 GiB.
            Checked after a compile.
        trust_stat: False to read the model and its weights at every call; None for
            EPCTX_CACHE_TRUST_STAT or True.
        shared_cache: address of a cache that machines share, such as
            `s3://bucket/folder`, asked for what this one does not have; None for
            EPCTX_CACHE_SHARED, empty for none. One that fails is left out, with a
            warning (`pip install 'epctx-cache[shared]'`).
        shared_push: False to put nothing there; None for EPCTX_CACHE_PUSH or True.
        progress: called with (stage, done, total) while a model is compiled; a total of
            0 says that `done` are bytes written. Stages `pull` and `push` count bytes
            from and to the shared cache.
        registry: the registry of EPs.

    Raises:
        InvalidArgument: an argument or option is wrong, or the result cannot be cached.
        ModelLoadCanceled: the load cancellation flag was set, also while another
            process compiled.
        ModelRequiresCompilation: `session.disable_model_compile` is set, and the model
            is not in the cache.
        EpctxError: as `ModelCompiler.compile_to_file` and `InferenceSession`.

    Examples:
        >>> so = SessionOptions()
        >>> so.add_provider("QNN", {"htp_arch": "73"})
        >>> session = load_or_compile("model.onnx", so)
    """
    return request.session()


@_copy_parameters(_make_request, "compiling the model into the cache")
def compile_cached(request: Request) -> Path:
    """Return the context model of a model in the cache, compiled first if it is not
    there.

    The files stay until room is needed, and this entry is the last to be removed; copy
    them to keep them, and do not change them. Arguments as for `load_or_compile`.

    Raises:
        InvalidArgument: see `load_or_compile`; also for a model that is a context model
            already.
        Fail: the cache's folder cannot be used.
        EpctxError: see `load_or_compile`.
    """
    return request.path()


def cache_statistics(
    cache_dir: str | os.PathLike[str] | None = None,
) -> CacheStatistics:
    """Return hits, misses, the time that hits saved, and the size of a cache.

    Args:
        cache_dir: the cache's folder; None for EPCTX_CACHE_DIR or the user's cache
            folder. One that does not exist has no use.

    Raises:
        InvalidArgument: the folder is not a path.
        Fail: the cache's folder cannot be read.

    Examples:
        >>> cache_statistics().seconds_saved
    """
    from epctx_cache.store import EntryStore

    folder = cache_settings(cache_dir).folder
    try:
        return EntryStore(folder).statistics()
    except OSError as error:
        raise Fail(
            f"the cache in {str(folder)!r} cannot be read: {error.strerror or error}.",
            path=folder,
            hint=f"Set cache_dir or {FOLDER_VARIABLE} to a readable folder.",
        ) from error
