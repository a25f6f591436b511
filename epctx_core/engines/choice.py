"""Choice of the engine: `onnx.reference` is built in, and at most one more is used, by an entry point.

The one of epctx-onnxruntime is used where it is installed, another only if the host names it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from epctx_core.errors import EpctxError, PackageMissing, PluginError, suggestion
from epctx_core.registry.discovery import EntryPoint, PackageNotFoundError, distribution, distributions

if TYPE_CHECKING:
    from epctx_core.plugin import BaseEngine

GROUP = "epctx.engines"
"""One entry for each engine: its value is `module:Class`, a subclass of `epctx_core.plugin.BaseEngine`."""
BUILT_IN = "onnx.reference"
ONNXRUNTIME = "onnxruntime"
"""The engine of epctx-onnxruntime."""
INSTALL = "pip install 'epctx-core[ort]'"

_VARIABLE = "EPCTX_ENGINE"
_PACKAGE = "epctx-onnxruntime"
_log = logging.getLogger("epctx.engines")


@cache
def by_environment() -> str:
    """Return the engine that the environment names; read once."""
    return os.environ.get(_VARIABLE, "")


@cache
def chosen_entry(named: str | None) -> EntryPoint | None:
    """Return the entry point of the engine to use, None for the built-in one; imports nothing of it.

    Args:
        named: by the session option; None for what EPCTX_ENGINE names, else epctx-onnxruntime's.

    Raises:
        PackageMissing: the named engine is not installed.
    """
    name = named or by_environment()
    if name == BUILT_IN:
        return None
    if not name:
        try:
            return next(iter(_entries(distribution(_PACKAGE))), None)
        except PackageNotFoundError:
            return None
    found = {entry.name: entry for dist in reversed(list(distributions())) for entry in _entries(dist)}
    if name not in found:
        known = sorted({*found, BUILT_IN})
        others = f"Install the package that has it, or use one of: {', '.join(known)}."
        raise PackageMissing(
            f"the engine {name!r}, named by {'session.engine' if named else _VARIABLE}, is not installed."
            f"{suggestion(name, known)}",
            hint=INSTALL if name == ONNXRUNTIME else others,
        )
    return found[name]


def _entries(dist: Any) -> list[EntryPoint]:
    try:
        return [entry for entry in dist.entry_points if entry.group == GROUP]
    except Exception:  # noqa: BLE001 - whatever the parser trips over must stay with this distribution
        return []


@cache
def engine_class(named: str | None = None) -> type[BaseEngine]:
    """Return the class of the engine to use, see `chosen_entry`; the built-in one in place of a broken one."""
    entry = chosen_entry(named)
    if entry is not None and (found := _imported(entry)) is not None:
        return found
    from epctx_core.engines.reference_engine import ReferenceEngine

    asked = entry is not None or named or by_environment()
    if not asked and importlib.util.find_spec("onnxruntime") is not None:
        _log.warning(
            "onnxruntime is installed and %s, which runs models on it, is not, so %s is used: %s",
            _PACKAGE,
            ReferenceEngine.name,
            INSTALL,
        )
    return ReferenceEngine


def _imported(entry: EntryPoint) -> type[BaseEngine] | None:
    """Import an engine; None, with a warning, if it is broken."""
    from epctx_core.plugin import BaseEngine, EnginePolicy

    try:
        found = entry.load()
        if isinstance(found, type) and issubclass(found, BaseEngine):
            # One that is abstract, has no name or lacks its library fails here and not in each session.
            found(EnginePolicy())
            _log.debug("the engine %r is %s", entry.name, found.name)
            return found
        why = f"{entry.value} is not a subclass of epctx_core.plugin.BaseEngine"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a broken package must not end the host
        why = f"{type(error).__name__}: {error}"
    _log.warning("%s is broken, so %s is used: %s", _label(entry), BUILT_IN, why)
    return None


@contextmanager
def blame_engine(named: str | None) -> Iterator[None]:
    """Attribute what the chosen engine raises beside typed errors to the package that it is from.

    Raises:
        PluginError: the engine raised something else.
    """
    try:
        yield
    except (EpctxError, MemoryError):
        raise
    except Exception as error:
        entry = chosen_entry(named)
        if entry is None or engine_class(named).name.startswith(BUILT_IN):
            raise
        dist = entry.dist
        raise PluginError(
            f"{_label(entry)} failed: {type(error).__name__}: {error}.",
            distribution=None if dist is None else dist.name,
            version=None if dist is None else dist.version,
            hint="This is a fault of the engine; its own exception is the cause of this error. Without it:"
            f" session.engine={BUILT_IN}",
        ) from error


def _label(entry: EntryPoint) -> str:
    dist = entry.dist
    owner = "an unnamed distribution" if dist is None else f"{dist.name} {dist.version}"
    return f"the engine {entry.name!r} of {owner}"
