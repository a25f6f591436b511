"""EP that errors and the start page name as an example; imports no plugin."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from importlib_metadata import distribution

from epctx_core.ext import known_ep

if TYPE_CHECKING:
    from epctx_core import PluginRecord


def choose_example() -> str | None:
    """Return the short name of an EP for an example of a command, such as `QNN`; None
    if no usable one is installed.

    A name that onnxruntime knows goes before others, then a package before one that is
    installed from its sources (most likely the user's own), then the alphabet decides.
    EPs that are known to be broken, disabled or unavailable are left out; none is
    imported to find out.
    """
    from epctx_core import plugins

    record = min(
        (each for each in plugins() if each.usable or each.undecided),
        key=lambda each: (known_ep(each.name) is None, _is_editable(each), each.name),
        default=None,
    )
    return record.name.removesuffix("ExecutionProvider") if record else None


def _is_editable(record: PluginRecord) -> bool:
    """Return whether a package is installed from its sources, or is a class without
    one.
    """
    with suppress(Exception):  # metadata of other packages fails in many ways
        text = distribution(str(record.distribution)).read_text("direct_url.json")
        origin = json.loads(text or "{}")
        return bool(origin.get("dir_info", {}).get("editable"))
    return True
