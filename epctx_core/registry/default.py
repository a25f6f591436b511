"""The functions over the process-wide registry, as hosts call them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.registry.registry import default_registry

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider
    from epctx_core.registry.records import PluginRecord


def get_available_providers() -> list[str]:
    """Return the EP types that can be asked for, the CPU EP last; imports no plugin."""
    return default_registry.available()


def plugins() -> list[PluginRecord]:
    """Return what is known about every EP, usable or not; imports no plugin."""
    return default_registry.records()


def refresh_plugins() -> None:
    """Look for installed EPs again."""
    default_registry.refresh()


def register_execution_provider(cls: type[ExecutionProvider]) -> None:
    """Add an EP class without an entry point.

    Raises:
        PluginError: the class breaks the contract.
        InvalidArgument: its name is taken.
    """
    default_registry.register(cls)


def unregister_execution_provider(name: str) -> None:
    """Remove an EP class that was registered by the host.

    Raises:
        NotFound: there is none of that name.
    """
    default_registry.unregister(name)
