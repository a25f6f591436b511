"""Entry points of plugins that are no EPs, by name."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from importlib_metadata import distributions

from epctx_core.errors import InvalidArgument, PackageMissing, PluginError, suggestion

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint

ENGINES = "epctx.engines"
TRANSFORMERS = "epctx.graph_transformers"
COMMANDS = "epctx.commands"


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
    entries: dict[str, EntryPoint] = {}
    names: set[str] = set()
    for package in distributions():
        with suppress(Exception):  # metadata of other packages fails in many ways
            owner = package.metadata["Name"]
            for entry in package.entry_points.select(group=group):
                names.add(entry.name)
                if name in (entry.name, f"{owner}:{entry.name}"):
                    entries.setdefault(owner, entry)
    if not entries:
        raise PackageMissing(
            f"the {kind} {name!r} is not installed.{suggestion(name, names)}",
            hint="Install the package that has it. Installed are: "
            f"{', '.join(sorted(names)) or 'none'}.",
        )
    if len(entries) > 1:
        owners = " and ".join(sorted(entries))
        raise InvalidArgument(
            f"the {kind} {name!r} is ambiguous: {owners} have it.",
            hint=f"Name the package, too: {min(entries)}:{name}",
        )
    return next(iter(entries.values()))


def load_entry(group: str, name: str, kind: str) -> Any:
    """Return the object of the one entry of a group that has a name; see `find_entry`.

    Raises:
        PackageMissing, InvalidArgument: see `find_entry`.
        PluginError: it cannot be imported.
    """
    entry = find_entry(group, name, kind)
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"the {kind} {name!r} cannot be imported: {type(error).__name__}: {error}.",
            hint="Fix or reinstall its package; -v shows the traceback.",
        ) from error
