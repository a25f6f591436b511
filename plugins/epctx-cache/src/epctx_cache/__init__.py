"""Compile cache: each model is compiled once for its EPs and options, whoever asks and however often.

Owns keys, entries, locks and the size limit of a cache folder. Compiling is `epctx_core.ModelCompiler`'s, loading
`epctx_core.InferenceSession`'s.
"""

from __future__ import annotations

from epctx_cache.caching import compile_cached, load_or_compile

__all__ = ["compile_cached", "load_or_compile"]
