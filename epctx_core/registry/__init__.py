"""Discovery, loading and calling of Execution Providers."""

from __future__ import annotations

from epctx_core.registry.instances import *
from epctx_core.registry.records import *
from epctx_core.registry.registry import *
