"""Compile cache: each model is compiled once for its EPs and options, and found again
by content.

Owns keys, entries, locks and the size limit of a cache folder.
`epctx_core.ModelCompiler` compiles, and `epctx_core.InferenceSession` loads.
"""

from __future__ import annotations

from epctx_cache.caching import cache_statistics, compile_cached, load_or_compile

__all__ = ["cache_statistics", "compile_cached", "load_or_compile"]
