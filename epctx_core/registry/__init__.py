"""Finding, loading and calling Execution Providers."""

from __future__ import annotations

from epctx_core.registry.instances import ProviderInstances
from epctx_core.registry.records import PluginRecord, PluginState
from epctx_core.registry.registry import Registry, default_registry

__all__ = ["PluginRecord", "PluginState", "ProviderInstances", "Registry", "default_registry"]
