"""`load_or_compile` and `compile_cached`: a model's compiled form out of the cache, compiled first if need be."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from epctx_cache.settings import cache_settings
from epctx_core import GraphOptimizationLevel, Registry, SessionOptions, default_registry

if TYPE_CHECKING:
    from epctx_core import InferenceSession

Providers: TypeAlias = Sequence[str | tuple[str, Mapping[str, object]]]
Progress: TypeAlias = Callable[[str, int, int], None]


def load_or_compile(  # noqa: PLR0913 - public: what InferenceSession and ModelCompiler take
    model: str | os.PathLike[str] | bytes,
    sess_options: SessionOptions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    providers: Providers | None = None,
    provider_options: Sequence[Mapping[str, object]] | None = None,
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
    cache_size: int | None = None,
    trust_stat: bool | None = None,
    progress: Progress | None = None,
    registry: Registry = default_registry,
) -> InferenceSession:
    """Return a session for a model; what EPs compile for it is kept, and found again by content.

    Many threads and processes may ask for one model at a time: one compiles, the others wait for it. A cache
    that cannot be used makes no load fail: the model is then compiled for this session alone, and the first
    time a warning is logged. A context model is loaded as it is.

    Args:
        model: a path or bytes.
        sess_options: EPs and session options, as for `InferenceSession`.
        cache_dir: the cache's folder; None for EPCTX_CACHE_DIR or the user's cache folder.
        providers, provider_options: EPs, as for `InferenceSession`.
        graph_optimization_level: as for `ModelCompiler`.
        cache_size: bytes that the cache may take; None for EPCTX_CACHE_SIZE or 10 GiB. Looked at after a compile.
        trust_stat: False to read the model and its weights at every call; None for EPCTX_CACHE_TRUST_STAT or True.
        progress: called with (stage, done, total) while a model is compiled.
        registry: where EPs are looked up.

    Raises:
        InvalidArgument: an argument or option that is wrong, or that cannot be cached.
        ModelLoadCanceled: the load cancellation flag was set, also while another process compiled.
        ModelRequiresCompilation: `session.disable_model_compile` is set, and the model is not in the cache.
        EpctxError: as `ModelCompiler.compile_to_file` and `InferenceSession`.

    Example:
        >>> so = SessionOptions()
        >>> so.add_provider("QNN", {"htp_arch": "73"})
        >>> session = load_or_compile("model.onnx", so)
    """
    from epctx_cache.request import Request, cacheable
    from epctx_core.ext import host_call

    with host_call("loading or compiling the model"):
        return Request(
            model=model,
            options=cacheable(sess_options, providers, provider_options),
            level=graph_optimization_level,
            settings=cache_settings(cache_dir, cache_size, trust_stat),
            progress=progress,
            registry=registry,
        ).session()


def compile_cached(  # noqa: PLR0913 - public: what InferenceSession and ModelCompiler take
    model: str | os.PathLike[str] | bytes,
    sess_options: SessionOptions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    providers: Providers | None = None,
    provider_options: Sequence[Mapping[str, object]] | None = None,
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
    cache_size: int | None = None,
    trust_stat: bool | None = None,
    progress: Progress | None = None,
    registry: Registry = default_registry,
) -> Path:
    """Return the context model of a model in the cache, compiled first if it is not there.

    The files stay until room is needed, and this one is the last to go; copy them to keep them. They must not be
    changed. Arguments as for `load_or_compile`.

    Raises:
        InvalidArgument: see `load_or_compile`; also for a model that is a context model already.
        Fail: the cache's folder cannot be used.
        EpctxError: see `load_or_compile`.
    """
    from epctx_cache.request import Request, cacheable
    from epctx_core.ext import host_call

    with host_call("compiling the model into the cache"):
        return Request(
            model=model,
            options=cacheable(sess_options, providers, provider_options),
            level=graph_optimization_level,
            settings=cache_settings(cache_dir, cache_size, trust_stat),
            progress=progress,
            registry=registry,
        ).path()
