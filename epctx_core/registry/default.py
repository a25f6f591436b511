"""The functions over a registry, as hosts call them; without one over the process-wide registry."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from epctx_core.registry.registry import Registry, default_registry

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider
    from epctx_core.registry.records import PluginRecord


def get_available_providers(*, registry: Registry = default_registry) -> list[str]:
    """Return the EP types that can be asked for, the CPU EP last; simulated ones are among them.

    Imports no installed plugin, unless two distributions bring one EP type: those are asked whether they are
    simulated. `PluginRecord.simulated` says of which EPs it is known, `get_ep_metadata` loads one and asks it.
    """
    return registry.available()


def plugins(*, registry: Registry = default_registry) -> list[PluginRecord]:
    """Return what is known about every EP, usable or not; imports no installed plugin."""
    return registry.records()


def refresh_plugins(*, registry: Registry = default_registry) -> None:
    """Look for installed EPs again, and read the environment again.

    What was installed since can be used at once. What is gone is REMOVED. Of what was imported and has
    another version now, the imported one goes on, as RESTART_NEEDED.
    """
    registry.refresh()


def register_execution_provider(
    cls: type[ExecutionProvider], *, sources: Sequence[str] = (), registry: Registry = default_registry
) -> None:
    """Add an EP class without an entry point.

    Args:
        cls: the EP's class.
        sources: further source keys, besides the EP type.
        registry: where it is added.

    Raises:
        PluginError: the class breaks the contract.
        InvalidArgument: its name is taken.
    """
    registry.register(cls, sources=sources)


def unregister_execution_provider(name: str, *, registry: Registry = default_registry) -> None:
    """Remove an EP class that was registered by the host.

    Raises:
        NotFound: there is none of that name.
        Fail: a session, a compile or a share group uses it; the message names them.
    """
    registry.unregister(name)


def temporary_execution_provider(
    cls: type[ExecutionProvider], *, sources: Sequence[str] = (), registry: Registry = default_registry
) -> AbstractContextManager[PluginRecord]:
    """Add an EP class while a block lasts; see `Registry.temporary`."""
    return registry.temporary(cls, sources=sources)


def add_plugin_path(
    path: str | os.PathLike[str], *, registry: Registry = default_registry
) -> list[PluginRecord]:
    """Use the plugins of a folder or a wheel without installing them; see `Registry.add_path`."""
    return registry.add_path(path)
