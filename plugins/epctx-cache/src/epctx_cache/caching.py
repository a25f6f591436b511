"""`load_or_compile` and `compile_cached`: the compiled form of a model from the cache,
compiled first if necessary; and `cache_statistics`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from epctx_cache.settings import (
    Progress,
    Providers,
    cache_settings,
    unusable_cache,
)
from epctx_core import (
    GraphOptimizationLevel,
    Registry,
    SessionOptions,
    default_registry,
)

if TYPE_CHECKING:
    from epctx_cache.counters import CacheStatistics
    from epctx_cache.request import Request
    from epctx_core import InferenceSession

P = ParamSpec("P")
R = TypeVar("R")


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
    """Return hits, misses, the time that hits saved against compiling again, and the
    size of a cache.

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
        raise unusable_cache(folder, error.strerror or error) from error
