"""Routing: a node's source finds its EP by exact name; only names that differ by case are asked."""

from __future__ import annotations

import sys

import pytest
from conftest import ANY_CASE

from epctx_core.errors import PluginError
from epctx_core.registry import PluginState, Registry
