"""Parts of two keys in words, and the entry whose key differs least from another.

Knows what `key.ingredients` returns. Entries may have been imported: a part of another
form is shown as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
    parts = {
        "package": " ".join(map(str, value["distribution"])),
        **value["build"],
        "plugin API": value["plugin_api"],
        "class": value["class"],
        "last change of the code": value["code"],
    }
    described = [
        *_describe_named("", parts),
        *_describe_named("option ", value["options"]),
        *_describe_named("option ", value["secrets"], _hidden),
        *_describe_named(
            "environment variable ", value.get("environment", {}), _hidden
        ),
    ]
    for part, text in described:
        yield f"{part} of {value['ep']}", text


def _describe_dimensions(value: Any) -> Described:
    dimensions, denotations = value
    yield from _describe_named("length of the dimension ", dimensions)
    yield from _describe_named("length of the denotation ", denotations)


def _describe_level(value: Any) -> Described:
    name = "folding" if value is None else GraphOptimizationLevel(value).name
    yield "optimisation level", name


def _describe_named(
    words: str, value: Any, show: Callable[[Any], str] | None = None
) -> Described:
    """Describe each value of a mapping: words before its name, and the value."""
    for name, item in value.items():
        yield f"{words}{name}", (show or _as_text)(item)


def _describe_listed(words: str, value: Any) -> Described:
    """Describe a list of pairs of a name and a value."""
    items = [name if item is None else f"{name} {item}" for name, item in value]
    yield words, ", ".join(items) or "none"


def _describe_single(words: str, value: Any) -> Described:
    yield words, _as_text(value)


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
    "version": partial(_describe_single, "form of the key"),
    "core": _describe_core,
    "model": partial(
        _describe_single, "content of the model and its weights (SHA-256)"
    ),
    "eps": _describe_eps,
    "distributions": partial(_describe_named, "distribution "),
    "engine": partial(_describe_single, "session.engine or EPCTX_ENGINE"),
    "session": partial(_describe_named, "session option "),
    "other_entries": partial(_describe_named, "session option ", show=_hidden),
    "dimensions": _describe_dimensions,
    "custom_operators": partial(_describe_listed, "libraries of custom operators"),
    "initializers": partial(_describe_named, "value of the initializer "),
    "host_plugins": partial(_describe_listed, "host plugins, from the outermost"),
    "optimization": _describe_level,
    "target": partial(_describe_single, "operating system and processor"),
}
"""Functions for the ingredients of a key, by their names."""
