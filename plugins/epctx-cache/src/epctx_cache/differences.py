"""Parts of two keys in words, and the entry whose key differs least from another.

Knows what `key.ingredients` returns. Entries may have been imported: a part of another
form is shown as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epctx_cache.results import PartDifference
from epctx_core import GraphOptimizationLevel

if TYPE_CHECKING:
    from epctx_cache.store import EntryRecord, Stored

_SHOWN_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """Entry whose key differs least from another key.

    Attributes:
        entry: in the cache.
        record: of the entry.
        differences: by the order of the parts; none for an entry of the key itself.
    """

    entry: Stored
    record: EntryRecord
    differences: tuple[PartDifference, ...]


def find_nearest(
    parts: Mapping[str, Any], model: str, entries: Iterable[Stored]
) -> Nearest | None:
    """Return the entry whose key differs least from a key; None if no entry records its
    parts.

    An entry of the same model, by its content or its name, precedes all others; of
    equally near ones the last used is taken.

    Args:
        parts: of the key.
        model: file name of the model.
        entries: of the cache.
    """

    def distance(nearest: Nearest) -> tuple[bool, int, float]:
        record = nearest.record
        is_other = (
            record.model != model and record.ingredients.get("model") != parts["model"]
        )
        return is_other, len(nearest.differences), -nearest.entry.last_use

    candidates = (
        Nearest(
            entry=entry,
            record=entry.record,
            differences=_compare(parts, entry.record.ingredients),
        )
        for entry in entries
        if entry.record is not None
    )
    return min(candidates, key=distance, default=None)


def _compare(
    parts: Mapping[str, Any], other_parts: Mapping[str, Any]
) -> tuple[PartDifference, ...]:
    # Of an EP that only one key has, its name says enough.
    common = _list_eps(parts) & _list_eps(other_parts)
    now = _describe_parts(parts, common)
    entry = _describe_parts(other_parts, common)
    return tuple(
        PartDifference(part=part, now=now.get(part), entry=entry.get(part))
        for part in {**now, **entry}
        if now.get(part) != entry.get(part)
    )


def _list_eps(parts: Mapping[str, Any]) -> set[str]:
    return {str(ep["ep"]) for ep in parts["eps"]}


def _describe_parts(parts: Mapping[str, Any], eps: Collection[str]) -> dict[str, str]:
    """Return the parts of a key: words for each, and its value as text.

    Args:
        parts: of the key.
        eps: names of the EPs whose versions and options are included.
    """
    described: dict[str, str] = {}
    for name, value in parts.items():
        try:
            described |= dict(_DESCRIBERS[name](value))
            if name == "eps":
                for ep in value:
                    if ep["ep"] in eps:
                        described |= dict(_describe_ep(ep))
        except (KeyError, ValueError, TypeError, AttributeError, IndexError):
            described[name] = _as_text(value)
    return described


Described = Iterator[tuple[str, str]]


def _describe_core(value: Any) -> Described:
    version, changed, plugin_api = value
    yield "version of epctx-core", _as_text(version)
    yield "last change of epctx-core's sources", _as_text(changed)
    yield "version of the plugin API", _as_text(plugin_api)


def _describe_eps(value: Any) -> Described:
    yield "EPs, in order", ", ".join(str(ep["ep"]) for ep in value) or "none"


def _describe_ep(value: Any) -> Described:
    name = value["ep"]
    distribution, version = value["distribution"]
    yield f"package of {name}", f"{distribution} {version}"
    for field, text in value["build"].items():
        yield f"{field} of {name}", _as_text(text)
    yield f"plugin API of {name}", _as_text(value["plugin_api"])
    yield f"class of {name}", _as_text(value["class"])
    yield f"last change of the code of {name}", _as_text(value["code"])
    for option, text in value["options"].items():
        yield f"option {option} of {name}", _as_text(text)
    for option, digest in value["secrets"].items():
        yield f"option {option} of {name}", _hidden(digest)
    for variable, digest in value.get("environment", {}).items():
        yield f"environment variable {variable} of {name}", _hidden(digest)


def _describe_dimensions(value: Any) -> Described:
    for kind, lengths in zip(("dimension", "denotation"), value, strict=True):
        yield from _describe_named(f"length of the {kind}")(lengths)


def _describe_level(value: Any) -> Described:
    name = "folding" if value is None else GraphOptimizationLevel(value).name
    yield "optimisation level", name


def _describe_named(
    words: str, show: Callable[[Any], str] | None = None
) -> Callable[[Any], Described]:
    """Return a function that describes each value of a mapping."""

    def describe(value: Any) -> Described:
        for name, item in value.items():
            yield f"{words} {name}", (show or _as_text)(item)

    return describe


def _describe_listed(words: str) -> Callable[[Any], Described]:
    """Return a function that describes a list of pairs of a name and a value."""

    def describe(value: Any) -> Described:
        items = [name if item is None else f"{name} {item}" for name, item in value]
        yield words, ", ".join(items) or "none"

    return describe


def _describe_as(words: str) -> Callable[[Any], Described]:
    """Return a function that describes a single value."""

    def describe(value: Any) -> Described:
        yield words, _as_text(value)

    return describe


def _hidden(digest: object) -> str:
    if digest is None:
        return "not set"
    return f"hidden ({str(digest)[:_SHOWN_DIGITS]})"


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    with suppress(ValueError, TypeError):
        return json.dumps(value, sort_keys=True)
    return repr(value)


_DESCRIBERS: Mapping[str, Callable[[Any], Described]] = {
    "version": _describe_as("form of the key"),
    "core": _describe_core,
    "model": _describe_as("content of the model and its weights (SHA-256)"),
    "eps": _describe_eps,
    "distributions": _describe_named("distribution"),
    "engine": _describe_as("session.engine or EPCTX_ENGINE"),
    "session": _describe_named("session option"),
    "other_entries": _describe_named("session option", _hidden),
    "dimensions": _describe_dimensions,
    "custom_operators": _describe_listed("libraries of custom operators"),
    "initializers": _describe_named("value of the initializer"),
    "host_plugins": _describe_listed("host plugins, from the outermost"),
    "optimization": _describe_level,
    "target": _describe_as("operating system and processor"),
}
"""Functions for the ingredients of a key, by their names."""
