"""Ingredients of a compile's result, the state of installed code among them, and their
key; listed in docs/how-to/applications/cache.md.

Two installations whose EPs may compile differently have different states. Knows no
entries, and imports no plugin.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import epctx_core
from epctx_core.ext import SESSION_OPTIONS, list_distributions
from epctx_core.plugin import PLUGIN_API

if TYPE_CHECKING:
    import numpy as np

    from epctx_core import GraphOptimizationLevel, SessionOptions
    from epctx_core.ext import ProviderChoice

VERSION = 1
"""Part of every key: raised to give new entries for the same ingredients."""

_LIBRARIES = ("onnx", "numpy")
"""Libraries that infer types for the core."""

_NOT_FOR_EPS = ("ep.", "memory.", "mlas.", "optimization.", "session.")
"""Prefixes of the keys of epctx and onnxruntime."""

_REQUIREMENT = re.compile(r"(?im)^Requires-Dist: *(([\w.-]+).*)")
_found: dict[str, tuple[str, list[tuple[str, bool]]]] = {}
"""State and requirements of each distribution that was asked for; kept, since imported
code does not change either.
"""
_CODE = (".py", ".so", ".pyd", ".dll", ".dylib")


def ingredients(
    content: str,
    choices: Sequence[ProviderChoice],
    options: SessionOptions,
    level: GraphOptimizationLevel | None,
    secret: Callable[[], bytes],
    host_plugins: Iterable[tuple[str, object]] = (),
) -> dict[str, Any]:
    """Return all ingredients of a compile's result, as JSON can hold them, without any
    secret.

    Args:
        content: the digest of model and weights.
        choices: the EPs in order.
        options: of the session.
        level: of the optimisation before EPs see the model.
        secret: returns the bytes that hide secret values; called only if there are any.
        host_plugins: names and objects of those of the compile. Most watch only, so one
            counts if it has a `version`.
    """

    def seal(value: bytes) -> str:
        """Return a keyed digest of a value that must not be guessed from a record."""
        # Most keys have none.
        import hmac

        return hmac.new(secret(), value, hashlib.sha256).hexdigest()

    distributions = [
        c.record.distribution for c in choices if c.record.distribution is not None
    ]
    overrides = options.model_overrides
    entries = options.config_entries
    written, _, _ = cache_entries(entries)
    libraries = map(Path, options.config().custom_ops_libraries)
    return {
        "version": VERSION,
        "core": [epctx_core.__version__, _find_core_state(), PLUGIN_API],
        "model": content,
        "eps": [_describe_provider(choice, seal) for choice in choices],
        "distributions": installed_states(
            [*distributions, *_LIBRARIES],
            group="epctx.engines",
            besides=["epctx-core"],
        ),
        "engine": options.get_session_config_entry("session.engine")
        or os.environ.get("EPCTX_ENGINE", ""),
        "session": written,
        # EPs see these, so they may matter.
        "other_entries": {
            key: seal(value.encode("utf-8", "surrogatepass"))
            for key, value in entries.items()
            if not key.startswith(_NOT_FOR_EPS)
        },
        "dimensions": [dict(overrides.dimensions), dict(overrides.denotations)],
        "custom_operators": [
            [path.name, _digest_library(path, path.stat().st_mtime_ns)]
            for path in libraries
        ],
        "initializers": {
            name: _digest_array(array) for name, array in overrides.initializers.items()
        },
        "host_plugins": [
            [name, version]
            for name, plugin in host_plugins
            if isinstance(version := getattr(plugin, "version", None), str)
        ],
        "optimization": None if level is None else int(level),
        "target": f"{sys.platform}-{platform.machine()}",
    }


def _find_core_state() -> str:
    """Return the state of the core's code."""
    package = Path(epctx_core.__file__).parent
    # Installed code has the state of its distribution, and here none of its own.
    if not (package.parent / "pyproject.toml").is_file():
        return ""
    return newest_change(package)


def cache_entries(
    entries: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Sort the entries that a host set by their part in a cache.

    Returns:
        The entries that change what a compile writes, with their defaults; those that
        forbid a cache; and those to load a cached model with: all but the ones about
        its source and its compile.
    """
    written: dict[str, str] = {}
    refused: dict[str, str] = {}
    loaded = dict(entries)
    for key, option in SESSION_OPTIONS.items():
        value = entries.get(key, option.default)
        if option.cache.name == "WRITTEN":
            written[key] = value
        elif option.cache.name == "REFUSED" and value not in {"", "0"}:
            refused[key] = value
        elif option.cache.name == "SOURCE":
            loaded.pop(key, None)
    return written, refused, loaded


def key_of(parts: Mapping[str, Any]) -> str:
    """Return the key (64 hex digits) of ingredients."""
    return hashlib.sha256(
        json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def _describe_provider(
    choice: ProviderChoice, seal: Callable[[bytes], str]
) -> dict[str, Any]:
    public = choice.public_options()
    # A secret that nobody set hides nothing, and any machine has it.
    defaults = {option.name: option.default for option in choice.cls.options}
    hidden = {
        name: value
        for name, value in choice.options.items()
        if name not in public and value != defaults.get(name)
    }
    file = getattr(sys.modules.get(choice.cls.__module__), "__file__", None)
    return {
        "ep": choice.name,
        "distribution": [choice.record.distribution, choice.record.version],
        "build": asdict(choice.build_info()),
        "plugin_api": choice.cls.api_version,
        "class": f"{choice.cls.__module__}:{choice.cls.__qualname__}",
        # Installed code has the state of its distribution.
        "code": newest_change(Path(file))
        if file and choice.record.distribution is None
        else "",
        **_describe_environment(choice, seal),
        "options": {name: repr(value) for name, value in public.items()},
        "secrets": {
            name: seal(f"{choice.name}.{name}={value!r}".encode())
            for name, value in hidden.items()
        },
    }


def _describe_environment(
    choice: ProviderChoice, seal: Callable[[bytes], str]
) -> dict[str, Any]:
    """Return the environment variables that an EP reads; nothing if it names none, so
    that the keys of such EPs stay.

    A value may be secret: it is hidden.
    """
    sealed = {
        name: seal(os.fsencode(f"{name}={os.environ[name]}"))
        if name in os.environ
        else None
        for name in sorted(map(str, choice.cls.environment))
    }
    return {"environment": sealed} if sealed else {}


def _digest_array(array: np.ndarray) -> str:
    sha = hashlib.sha256(f"{array.dtype} {list(array.shape)} ".encode())
    sha.update(array.reshape(-1).view("u1").data if array.size else b"")
    return sha.hexdigest()


@cache
def _digest_library(path: Path, _changed: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def installed_states(
    distributions: Iterable[str],
    *,
    group: str = "",
    besides: Collection[str] = (),
) -> dict[str, str]:
    """Return the states of distributions and of their installed requirements.

    Requirements of their own extras are included: an EP's compiler often is one. A name
    that is not installed is left out.

    Args:
        distributions: their names.
        group: a group of entry points; distributions that have it are included.
        besides: normalised names to leave out, with requirements of theirs alone.

    Returns:
        The states by normalised name: the version, and a digest of the list of
        installed files, if there is one; for an editable installation instead of that
        the time of the newest change to its code and its packages' data.
    """
    installed = {package.key: package for package in list_distributions()}
    named = [_normalise(name) for name in distributions]
    if group:
        named += [
            name
            for name, package in installed.items()
            if f"[{group}]".encode() in package.read("entry_points.txt")
        ]

    states: dict[str, str] = {}
    waiting = [(name, True) for name in named]
    while waiting:
        name, with_extras = waiting.pop()
        # None for one that is not installed, or that has its state already.
        package = installed.pop(name, None)
        if package is None or name in besides:
            continue
        if name not in _found:
            try:
                _found[name] = (
                    _describe_files(package.version, package.read),
                    _list_requirements(name, package.read),
                )
            except (OSError, TypeError, ValueError):
                # Versions of the library that reads old formats raise differently.
                _found[name] = "unreadable metadata", []
        states[name], required = _found[name]
        waiting += [
            (other, False)
            for other, of_extra in required
            if with_extras or not of_extra
        ]
    return states


def _describe_files(version: str | None, read: Callable[[str], bytes]) -> str:
    """Return the state of a distribution by its version and its files of metadata.

    Raises:
        ValueError: it has no version.
    """
    if version is None:
        raise ValueError("it has no version")
    folder = _find_editable_folder(read("direct_url.json"))
    if folder is not None:
        return f"{version}, edited {newest_change(folder)}"
    # The list of installed files has their digests: nightly builds of a vendor share a
    # version. pip ends its lines as on Windows, and others do not.
    listed = read("RECORD").replace(b"\r\n", b"\n")
    return (
        f"{version}, files {hashlib.sha256(listed).hexdigest()[:16]}"
        if listed
        else version
    )


def _list_requirements(
    name: str, read: Callable[[str], bytes]
) -> list[tuple[str, bool]]:
    """Return the distributions that one requires, by normalised name; for each, whether
    an extra does.
    """
    data = (read("METADATA") or read("PKG-INFO")).replace(b"\r\n", b"\n")
    # The description follows.
    head = data.partition(b"\n\n")[0].decode()
    if not _REQUIREMENT.search(head) and read("requires.txt"):
        # A format from before wheels, whose conditions the library knows.
        from importlib_metadata import requires

        head = "\n".join(f"Requires-Dist: {text}" for text in requires(name) or ())
    return [
        (_normalise(other), "extra" in text)
        for text, other in _REQUIREMENT.findall(head)
    ]


def _normalise(name: str) -> str:
    """Return the name of a distribution as packages are compared (PEP 503)."""
    return re.sub("[-_.]+", "-", name).lower()


def _find_editable_folder(origin: bytes) -> Path | None:
    """Return the folder of an editable installation's code, or None.

    Args:
        origin: its `direct_url.json` (PEP 610); empty if it has none.
    """
    if not origin:
        return None
    # Few packages have it. `url2pathname` would import HTTP, and systems with drives
    # have no locks that a cache could use.
    from urllib.parse import unquote, urlsplit

    try:
        fields = json.loads(origin)
        url = urlsplit(fields["url"])
        is_editable = url.scheme == "file" and fields["dir_info"]["editable"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not is_editable:
        return None
    folder = Path(unquote(url.path))
    return folder / "src" if (folder / "src").is_dir() else folder


@cache
def newest_change(path: Path) -> str:
    """Return the newest time of change and the number of files of packages: code and
    data.

    Cached, since imported code does not change either.

    Args:
        path: a module, or a folder; hidden folders and virtual environments in it are
            left out.
    """
    times = [os.stat(path).st_mtime_ns] if path.is_file() else []  # noqa: PTH116 - one call
    packages: set[str] = set()
    for folder, folders, files in os.walk(path):
        folders[:] = [f for f in folders if f[0] != "." and f != "__pycache__"]
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        if "__init__.py" in files or os.path.dirname(folder) in packages:  # noqa: PTH120 - as walk gives it
            packages.add(folder)
        # Other files in a package are its data: rules, tables, binaries of a compiler.
        counted = [name for name in files if folder in packages or name.endswith(_CODE)]
        times += [os.lstat(f"{folder}{os.sep}{name}").st_mtime_ns for name in counted]
    return f"{max(times, default=0)}/{len(times)}"
