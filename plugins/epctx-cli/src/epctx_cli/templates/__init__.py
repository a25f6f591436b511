"""What `epctx plugins new` writes: a complete package with an EP that works.

Owns the names that follow from one word, and the files under `plugin/`. Needs no network, no template
library, and knows nothing of the command line.
"""

from __future__ import annotations

from epctx_cli.templates.creation import NewPlugin, create_plugin
from epctx_cli.templates.names import PluginNames

__all__ = ["NewPlugin", "PluginNames", "create_plugin"]
