"""The environment variables that begin with EPCTX_: those in effect, and those that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from epctx_cli.doctor.findings import Remark, problem
from epctx_core.errors import suggestion
from epctx_core.registry.explaining import misspelt
from epctx_core.registry.lookup import Selection

if TYPE_CHECKING:
    from epctx_core.registry.records import PluginRecord

PREFIX = "EPCTX_"
VARIABLES = MappingProxyType(
    {
        "EPCTX_PLUGINS": "the only plugins that may be used",
        "EPCTX_DISABLE_PLUGINS": "plugins that are kept out",
        "EPCTX_PREFER": "which distribution brings an EP that several have",
        "EPCTX_PLUGIN": "classes of EPs under development, as module:Class",
        "EPCTX_PLUGIN_PATH": "folders and wheels with plugins that are not installed",
        "EPCTX_CACHE_DIR": "the folder of the compile cache",
        "EPCTX_RECEIPTS": "the folder of receipts of checked files",
        "EPCTX_CACHE_SIZE": "what the compile cache may take, such as 10G",
        "EPCTX_CACHE_TRUST_STAT": "0 to read models and weights at every use of the cache",
        "EPCTX_TRACE": "1 to log every call of a hook",
    }
)
"""Name to what it says."""


def in_effect(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what is set, in order."""
    return {name: environment[name] for name in sorted(environment) if name.startswith(PREFIX)}


def examine(environment: Mapping[str, str], records: Sequence[PluginRecord]) -> Iterator[Remark]:
    """Say which variables nobody reads, and which name a plugin that is not there."""
    for name in in_effect(environment):
        if name not in VARIABLES:
            yield problem(
                f"the environment variable {name} is none of epctx's.{suggestion(name, VARIABLES)}",
                f"Unset it, or use one of {', '.join(VARIABLES)}.",
            )
    for sentence in misspelt(Selection.from_environment(environment), records) if records else ():
        yield problem(f"{sentence}.", "Correct the name, or unset the variable.")
