"""The command `epctx` in this process: what its installed script calls."""

from __future__ import annotations

from importlib.metadata import entry_points

(_script,) = entry_points(group="console_scripts", name="epctx")
main = _script.load()
