"""Session options by their part in the key of a cached model, as the rows say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epctx_core.options.table import SESSION_OPTIONS, CachePart
from epctx_core.options.unsupported import IGNORED_KEYS, OWNED_STARTS

if TYPE_CHECKING:
    from epctx_core.options.session import SessionOptions


@dataclass(frozen=True, kw_only=True)
class CacheEntries:
    """Entries of session options, by key.

    Attributes:
        written: those that change what a compile writes, with their defaults.
        refused: those that were set, and whose result cannot be cached.
        unknown: those that mean nothing to the core, but may to an EP.
        loaded: those to load a cached model with: all that were set but those about its source and its compile.
    """

    written: Mapping[str, str]
    refused: Mapping[str, str]
    unknown: Mapping[str, str]
    loaded: Mapping[str, str]


def cache_entries(options: SessionOptions) -> CacheEntries:
    """Return what a cache has to know about session options."""
    parts = {key: option.cache for key, option in SESSION_OPTIONS.items()}
    said = {key: options.get_session_config_entry(key) for key in parts}
    given = options.config_entries
    return CacheEntries(
        written={key: value for key, value in said.items() if parts[key] is CachePart.WRITTEN},
        refused={
            k: value for k, value in said.items() if parts[k] is CachePart.REFUSED and value not in {"", "0"}
        },
        unknown={k: v for k, v in given.items() if k not in IGNORED_KEYS and not k.startswith(OWNED_STARTS)},
        loaded={key: value for key, value in given.items() if parts.get(key) is not CachePart.SOURCE},
    )
