"""Entry points of other things than EPs: finding one by its name, importing it, and
attributing its faults to its package.
"""

from __future__ import annotations

from typing import Any

from epctx_core.errors import (
    InvalidArgument,
    PackageMissing,
    PluginError,
    suggestion,
)
from epctx_core.forwarding import import_installed, missing_package
from epctx_core.installing import PROVIDED_BY, install_command
from epctx_core.registry.discovery import EntryPoint, list_entries


def find_entry(group: str, name: str, kind: str) -> EntryPoint:
    """Return the one entry of a group that has a name.

    Args:
        group: the group.
        name: the entry's, or `<distribution>:<name>`.
        kind: a noun for what the group has, for messages.

    Raises:
        PackageMissing: no installed package has it.
        InvalidArgument: several have it.
    """
    entries = list_entries(group)
    found = {
        d.name: e
        for d, e in reversed(entries)
        if name in (e.name, f"{d.name}:{e.name}")
    }
    if not found:
        known = sorted({entry.name for _, entry in entries})
        package = PROVIDED_BY.get((group, name))
        raise PackageMissing(
            f"the {kind} {name!r} is not installed.{suggestion(name, known)}",
            hint=install_command(package)
            if package
            else "Install the package that has it. Installed are: "
            f"{', '.join(known) or 'none'}.",
        )

    if len(found) > 1:
        raise InvalidArgument(
            f"the {kind} {name!r} is ambiguous: {' and '.join(sorted(found))} have it.",
            hint=f"Name the package, too: {min(found)}:{name}",
        )

    return next(iter(found.values()))


def import_entry(group: str, name: str, kind: str, *, needed_by: str) -> Any:
    """Return the object of the one entry of a group that has a name; see `find_entry`.

    Args:
        group: the group.
        name: the entry's.
        kind: a noun for what the group has, for messages.
        needed_by: the option or file that needs it.

    Raises:
        PackageMissing: no installed package has it, or a library of its package is
            missing.
        InvalidArgument: several packages have it.
    """
    try:
        entry = find_entry(group, name, kind)
    except PackageMissing as error:
        package = PROVIDED_BY.get((group, name))
        if package is None:
            raise
        raise missing_package(f"the package {package}", needed_by, package) from error
    # For an error that names the package; it is there then.
    import_installed(entry.module, needed_by=needed_by)
    return entry.load()


def entry_error(
    entry: EntryPoint, kind: str, error: Exception, hint: str
) -> PluginError:
    """Return the error that attributes an exception to the package of an entry
    point.
    """
    dist: Any = entry.dist
    return PluginError(
        f"{describe_entry(entry, kind)} failed: {type(error).__name__}: {error}.",
        distribution=dist.name,
        version=dist.version,
        hint=hint,
    )


def describe_entry(entry: EntryPoint, kind: str) -> str:
    """Return kind, name, distribution and version of an entry point, for messages."""
    dist: Any = entry.dist
    return f"the {kind} {entry.name!r} of {dist.name} {dist.version}"
