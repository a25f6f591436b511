"""Discovery of EPs by the entry points of installed distributions, without importing a
plugin.

Reads metadata only, and lets no distribution disturb another.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING, Literal

from importlib_metadata import (
    EntryPoint,
    PackageNotFoundError,
    distribution,
    distributions,
)

from epctx_core.options.choices import CPU_EP
from epctx_core.registry.records import (
    PluginRecord,
    PluginState,
    normalise_name,
    sort_key,
)

if TYPE_CHECKING:
    # The oldest versions of the library do not have it.

    from importlib_metadata import IDistribution

    from epctx_core.plugin import ExecutionProvider

__all__ = ["EntryPoint", "PackageNotFoundError", "distribution", "distributions"]

EP_GROUP = "epctx.execution_providers"
"""One entry for each EP: its name is the EP name, its value `module:Class`, followed by
an extra that is called as the distribution without which the EP is not there.
"""
SOURCE_GROUP = "epctx.ep_sources"
"""One entry for each further source key of an EP: its value is the EP's name, or that
of the EP's own entry.
"""
FINDER_GROUP = "epctx.ep_finders"
"""One entry for each function that finds EPs in packages which know nothing of epctx.

It gets the folders to search, imports no EP, and yields for each EP distribution,
version, EP name, `module:Class` as an entry point of that package would say, and what
keeps it from being used, or an empty text.
"""
SIMULATED_GROUP = "epctx.simulated"
"""One entry for each EP that says before an import whether it is simulated: its name is
the EP name, its value `true` or `false`.
"""
_GROUPS = (EP_GROUP, SOURCE_GROUP, FINDER_GROUP)
_SAID = {"true": True, "false": False}
EP_NAME = re.compile(r"[A-Za-z0-9_.-]+")

_TARGET = re.compile(
    r"\s*(?P<module>[\w.]+)\s*:\s*(?P<attribute>[\w.]+)\s*(\[(?P<extras>.*)\]\s*)?"
)
# METADATA is missing, can't be decoded or lacks the field; versions of the library
# raise differently.
_UNREADABLE = (KeyError, OSError, TypeError, ValueError)


def discover(paths: Sequence[str] | None = None) -> list[PluginRecord]:
    """Return a record for each EP of every distribution, sorted by EP name and
    distribution.

    States are DISCOVERED, or BROKEN where the metadata is wrong. No plugin is imported.
    An EP whose entry point names an extra has no record as long as the distribution of
    that name is not installed.

    Args:
        paths: folders and wheels to search; None for `sys.path`.
    """
    installed = _list_installed() if paths is None else distributions(path=list(paths))
    where = [*sys.path, *(paths or ())]
    records = [
        record
        for dist in installed
        if _mentions(dist, _GROUPS)
        for record in _read_records(dist, where)
    ]
    return sorted(records, key=sort_key)


def list_entries(group: str) -> list[tuple[IDistribution, EntryPoint]]:
    """Return the entries of a group, without those whose metadata cannot be read."""
    entries: list[tuple[IDistribution, EntryPoint]] = []
    for dist in distributions():
        if not _mentions(dist, (group,)):
            # Most distributions have none, and parsing takes longer than reading.
            continue
        with suppress(Exception):
            # Whatever the parser trips over must stay with this distribution.
            entries += [
                (dist, entry)
                for entry in dist.entry_points
                if entry.group == group and dist.name
            ]
    return entries


def explain_hidden(record: PluginRecord, location: str) -> str:
    """Return a sentence on the distribution that Python finds instead of a record's in
    a folder or wheel; empty if there is none.
    """
    try:
        first = distribution(record.distribution or "")
        place = os.path.realpath(str(first.locate_file("")))
    except (PackageNotFoundError, *_UNREADABLE):
        return ""
    if record.finder or place == os.path.realpath(location):
        return ""
    return (
        f"{record.origin} in {location!r} is not used: {first.name} {first.version} in "
        f"{place!r} comes first on sys.path and hides it"
    )


def _list_installed() -> Iterator[IDistribution]:
    """Yield the distributions that have one of our groups; of one found twice, the
    first on sys.path.
    """
    seen: set[str] = set()
    for dist in distributions():
        if not _mentions(dist, _GROUPS):
            continue
        name = _read_field(dist, "name")
        if name is None:
            yield dist
        elif normalise_name(name) not in seen:
            seen.add(normalise_name(name))
            try:
                # the one found here may be hidden by another version, earlier on
                # sys.path, without entry points
                yield distribution(name)
            except PackageNotFoundError:
                # Its folder is not named after it, so only the walk finds it.
                yield dist


def _mentions(dist: IDistribution, groups: Collection[str]) -> bool:
    """Return whether the entry points contain the name of one of some groups; also if
    they can't be decoded.
    """
    try:
        text = dist.read_text("entry_points.txt") or ""
    except UnicodeDecodeError as error:
        text = error.object.decode(errors="replace")
    except OSError:
        return False
    return any(group in text for group in groups)


def _read_field(dist: IDistribution, field: Literal["name", "version"]) -> str | None:
    try:
        return getattr(dist, field) or None
    except _UNREADABLE:
        return None


def _read_records(dist: IDistribution, where: list[str]) -> list[PluginRecord]:
    """Return the records of one distribution; a single broken one if its entry points
    can't be read.

    Args:
        dist: the distribution.
        where: folders that are searched for the distributions that extras name.
    """
    name = _read_field(dist, "name")
    version = _read_field(dist, "version")
    label = name or "unnamed distribution"
    providers: dict[str, list[EntryPoint]] = {}
    try:
        entries = list(dist.entry_points)
    except Exception as error:  # noqa: BLE001 - a parser error must not affect other distributions
        return [
            _make_broken_record(label, label, version, _explain_unreadable(dist, error))
        ]

    for entry in entries:
        if entry.group == EP_GROUP:
            providers.setdefault(entry.name, []).append(entry)
    sources = [entry for entry in entries if entry.group == SOURCE_GROUP]
    simulated = {e.name: e.value for e in entries if e.group == SIMULATED_GROUP}
    records = []
    for ep, mine in providers.items():
        if all(
            any(True for _ in distributions(name=needed, path=where))
            for needed in _list_needed(mine[0].value)
        ):
            record = _make_record(mine, sources, label, version)
            is_simulated = _SAID.get(simulated.get(ep, ""))
            records.append(replace(record, simulated=is_simulated))

    targets = {
        _parse_class_path(entry.value) for mine in providers.values() for entry in mine
    } - {None}
    for entry in sources:
        is_named = entry.value.strip() in providers
        if not is_named and _parse_class_path(entry.value) not in targets:
            reason = (
                f"its group {SOURCE_GROUP} gives the source {entry.name!r} to "
                f"{entry.value!r}, and its group {EP_GROUP} does not have an EP of "
                "that name or class"
            )
            records.append(_make_broken_record(entry.name, label, version, reason))

    if name is not None:
        return [*records, *_ask_finders(entries, name, version, where)]
    reason = (
        "the metadata of the distribution that provides it has no name, so reinstall "
        f"it: {dist}"
    )
    return [_make_broken_record(r.name, label, version, reason) for r in records]


def _ask_finders(
    entries: Iterable[EntryPoint],
    distribution: str,
    version: str | None,
    where: list[str],
) -> Iterator[PluginRecord]:
    """Yield a record for each EP that the finders of a distribution name; a broken one
    for a finder that fails.
    """
    for entry in entries:
        if entry.group != FINDER_GROUP:
            continue
        finder = f"{distribution}:{entry.name}"
        try:
            records = [
                replace(_make_found(*each), finder=finder)
                for each in entry.load()(where)
            ]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - as in an import of a plugin
            reason = f"it failed to find EPs: {type(error).__name__}: {error}"
            records = [_make_broken_record(finder, distribution, version, reason)]
        yield from records


def _make_found(
    package: str, version: str | None, ep: str, target: str, problem: str
) -> PluginRecord:
    if problem:
        return _make_broken_record(ep, package, version, problem)
    entry = EntryPoint(name=ep, value=target, group=EP_GROUP)
    return _make_record([entry], [], package, version)


def _list_needed(value: str) -> list[str]:
    """Return the distributions that an entry point's value names as extras."""
    match = _TARGET.fullmatch(value)
    named = ((match and match["extras"]) or "").split(",")
    return [name.strip() for name in named if name.strip()]


def _explain_unreadable(dist: IDistribution, error: Exception) -> str:
    """Return the reason with the line that is not `name = value`, which the parser's
    own error lacks.
    """
    if isinstance(error, UnicodeDecodeError):
        return "its entry_points.txt is not UTF-8"
    for number, line in enumerate(
        (dist.read_text("entry_points.txt") or "").splitlines(), start=1
    ):
        text = line.strip()
        if text and not text.startswith(("#", "[")) and "=" not in text:
            return (
                f"line {number} of its entry_points.txt is not of the form name = "
                f"module:Class: {text!r}"
            )
    return f"its entry_points.txt cannot be read ({type(error).__name__}: {error})"


def _make_record(
    mine: list[EntryPoint],
    sources: list[EntryPoint],
    distribution: str,
    version: str | None,
) -> PluginRecord:
    """Return the record of one EP, for which `mine` has one entry unless the metadata
    is wrong.
    """
    name = mine[0].name
    value = mine[0].value
    target = _parse_class_path(value)
    problem = ""
    if len(mine) > 1:
        problem = f"its group {EP_GROUP} has {name!r} more than once"
    elif not EP_NAME.fullmatch(name):
        problem = (
            f"the EP name {name!r} may only have letters, digits, '_', '.' and '-'"
        )
    elif name == CPU_EP:
        problem = f"the EP name {CPU_EP} is built in and can't be provided by a plugin"
    elif target is None:
        problem = (
            f"its entry point {name!r} has the value {value!r}, which is not of the "
            "form module:Class"
        )

    if problem or target is None:
        return _make_broken_record(name, distribution, version, problem)
    further = sorted(
        {
            source.name
            for source in sources
            if source.value.strip() == name or _parse_class_path(source.value) == target
        }
        - {name}
    )
    return PluginRecord(
        name=name,
        sources=(name, *further),
        distribution=distribution,
        version=version,
        state=PluginState.DISCOVERED,
        entry_point=target,
    )


def _parse_class_path(text: str) -> str | None:
    """Return `module:Class` without spaces and extras, or None if a text is not of that
    form.
    """
    # Not entry.module and entry.attr: for what does not match, each version of the
    # library fails differently.
    match = _TARGET.fullmatch(text)
    return f"{match['module']}:{match['attribute']}" if match else None


def _make_broken_record(
    name: str, distribution: str, version: str | None, reason: str
) -> PluginRecord:
    """Return a BROKEN record for metadata that describes no usable EP."""
    return PluginRecord(
        name=name,
        sources=(name,),
        distribution=distribution,
        version=version,
        state=PluginState.BROKEN,
        reason=reason,
        entry_point="",
    )


class Entry:
    """One EP: its record before selection, its class once loaded, and the lock held
    while loading.
    """

    def __init__(
        self, record: PluginRecord, cls: type[ExecutionProvider] | None = None
    ) -> None:
        self.record = record
        self.cls = cls
        # Apart from the registry's lock: an import may start threads that call the
        # registry.
        self.loading = RLock()
