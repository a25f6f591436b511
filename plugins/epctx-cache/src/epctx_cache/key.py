"""Ingredients of a compile's result, and their key. docs/cache.md lists the same.

Knows no entries.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import epctx_core
from epctx_cache.installation import installed_states, newest_change
from epctx_core.ext import cache_entries
from epctx_core.plugin import PLUGIN_API

if TYPE_CHECKING:
    import numpy as np

    from epctx_core import GraphOptimizationLevel, SessionOptions
    from epctx_core.ext import ProviderChoice

VERSION = 1
"""Part of every key: raised to give new entries for the same ingredients."""

_LIBRARIES = ("onnx", "numpy")
"""Libraries that infer types for the core."""

Sealed = Callable[[bytes], str]
"""Return a keyed digest (hex) of a value that must not be guessed from a record."""

_NOT_FOR_EPS = ("ep.", "memory.", "mlas.", "optimization.", "session.")
"""Prefixes of the keys of epctx and onnxruntime."""


def ingredients(
    content: str,
    choices: Sequence[ProviderChoice],
    options: SessionOptions,
    level: GraphOptimizationLevel,
    secret: Callable[[], bytes],
) -> dict[str, Any]:
    """Return all ingredients of a compile's result, as JSON can hold them, without any secret.

    Args:
        content: the digest of model and weights.
        choices: the EPs in order.
        options: of the session.
        level: of the optimisation before EPs see the model.
        secret: returns the bytes that hide secret values; called only if there are any.
    """

    def seal(value: bytes) -> str:
        return hmac.new(secret(), value, hashlib.sha256).hexdigest()

    distributions = [c.record.distribution for c in choices if c.record.distribution is not None]
    overrides, entries = options.model_overrides, options.config_entries
    written, _, _ = cache_entries(entries)
    return {
        "version": VERSION,
        "core": [epctx_core.__version__, _core_state(), PLUGIN_API],
        "model": content,
        "eps": [_provider(choice, seal) for choice in choices],
        "distributions": installed_states([*distributions, *_LIBRARIES, *_engines()], besides=["epctx-core"]),
        "engine": options.get_session_config_entry("session.engine") or os.environ.get("EPCTX_ENGINE", ""),
        "session": written,
        # EPs see these, so they may matter.
        "other_entries": {
            key: seal(value.encode("utf-8", "surrogatepass"))
            for key, value in entries.items()
            if not key.startswith(_NOT_FOR_EPS)
        },
        "dimensions": [dict(overrides.dimensions), dict(overrides.denotations)],
        "initializers": {name: _array_digest(array) for name, array in overrides.initializers.items()},
        "optimization": int(level),
        "target": f"{sys.platform}-{platform.machine()}",
    }


def _engines() -> set[str]:
    """Return the distributions of the installed engines, which optimise models and run nodes for EPs."""
    return {entry.dist.name for entry in entry_points(group="epctx.engines") if entry.dist is not None}


def key_of(parts: Mapping[str, Any]) -> str:
    """Return the key (64 hex digits) of ingredients."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _provider(choice: ProviderChoice, seal: Sealed) -> dict[str, Any]:
    public = choice.public_options()
    hidden = {name: value for name, value in choice.options.items() if name not in public}
    return {
        "ep": choice.name,
        "distribution": [choice.record.distribution, choice.record.version],
        "build": asdict(choice.build_info()),
        "plugin_api": choice.cls.api_version,
        "class": f"{choice.cls.__module__}:{choice.cls.__qualname__}",
        "code": _code_state(choice),
        "options": {name: repr(value) for name, value in public.items()},
        "secrets": {name: seal(f"{choice.name}.{name}={value!r}".encode()) for name, value in hidden.items()},
    }


def _code_state(choice: ProviderChoice) -> str:
    """Return the state of code that the host registered; installed code has the state of its distribution."""
    if choice.record.distribution is not None:
        return ""
    file = getattr(sys.modules.get(choice.cls.__module__), "__file__", None)
    return newest_change(Path(file)) if file else ""


def _core_state() -> str:
    """Return the state of the core's code, if it is run from its source."""
    package = Path(epctx_core.__file__).parent
    return newest_change(package) if (package.parent / "pyproject.toml").is_file() else ""


def _array_digest(array: np.ndarray) -> str:
    sha = hashlib.sha256(f"{array.dtype} {list(array.shape)} ".encode())
    sha.update(array.reshape(-1).view("u1").data if array.size else b"")
    return sha.hexdigest()
