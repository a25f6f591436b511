"""Functions over a registry, as hosts call them; the process-wide registry is the
default.

Also those of onnxruntime that name the EPs, the device and the version.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from epctx_core._version import __version__
from epctx_core.options.choices import CPU_EP
from epctx_core.registry.registry import Registry, default_registry

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider
    from epctx_core.registry.records import PluginRecord


def get_available_providers(*, registry: Registry = default_registry) -> list[str]:
    """Return the names of the EPs that can be requested, the CPU EP last, simulated
    ones included.

    Imports no installed plugin, unless two distributions provide one EP: those are
    loaded to learn which are simulated. `PluginRecord.simulated` is None where that is
    not known; `get_ep_metadata` loads an EP and tells.
    """
    return registry.available()


def plugins(*, registry: Registry = default_registry) -> list[PluginRecord]:
    """Return a record for every EP, usable or not; import no installed plugin."""
    return registry.records()


def refresh_plugins(*, registry: Registry = default_registry) -> None:
    """Discover installed EPs again, and read the environment again.

    An EP that was installed since can be used at once; one that is gone is REMOVED. An
    imported EP of which another version is installed now stays in use, as
    RESTART_NEEDED.
    """
    registry.refresh()


def register_execution_provider(
    cls: type[ExecutionProvider],
    *,
    sources: Sequence[str] = (),
    registry: Registry = default_registry,
) -> None:
    """Add an EP class without an entry point.

    Args:
        cls: the EP's class.
        sources: further source keys, besides the EP name.
        registry: the registry to add it to.

    Raises:
        PluginError: the class breaks the contract.
        InvalidArgument: its name is taken.
    """
    registry.register(cls, sources=sources)


def unregister_execution_provider(
    name: str, *, registry: Registry = default_registry
) -> None:
    """Remove an EP class that was registered by the host; see `Registry.unregister`.

    Raises:
        NotFound: there is none of that name.
    """
    registry.unregister(name)


def temporary_execution_provider(
    cls: type[ExecutionProvider],
    *,
    sources: Sequence[str] = (),
    registry: Registry = default_registry,
) -> AbstractContextManager[PluginRecord]:
    """Register an EP class for the duration of a block; see `Registry.temporary`."""
    return registry.temporary(cls, sources=sources)


def add_plugin_path(
    path: str | os.PathLike[str], *, registry: Registry = default_registry
) -> list[PluginRecord]:
    """Use the plugins of a folder or a wheel without installing them; see
    `Registry.add_path`.
    """
    return registry.add_path(path)


def get_device() -> str:
    """Return "CPU": EPs choose their devices themselves."""
    return "CPU"


def get_all_providers() -> list[str]:
    """Return the EPs of all installed plugins, usable or not, the CPU EP last; imports
    no plugin.
    """
    return [*dict.fromkeys(record.name for record in plugins()), CPU_EP]


def get_version_string() -> str:
    """Return epctx's version."""
    return __version__
