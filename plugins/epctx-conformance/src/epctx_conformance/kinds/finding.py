"""Entry points of plugins that are no EPs, by name."""

from __future__ import annotations

from typing import Any

from epctx_core.errors import PluginError
from epctx_core.ext import find_entry

ENGINES = "epctx.engines"
TRANSFORMERS = "epctx.graph_transformers"
COMMANDS = "epctx.commands"


def load_entry(group: str, name: str, kind: str) -> Any:
    """Return the object of the one entry of a group that has a name; see
    `find_entry`.

    Raises:
        PackageMissing: no installed package has it.
        InvalidArgument: several have it.
        PluginError: it cannot be imported.
    """
    entry = find_entry(group, name, kind)
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"the {kind} {name!r} cannot be imported: {type(error).__name__}: {error}.",
            hint="Fix or reinstall its package; --traceback shows the traceback.",
        ) from error
