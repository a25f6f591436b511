"""An EP over a library that takes no bytes, only the path of a payload."""

from __future__ import annotations

from pathlib import Path

from support.engine_eps import Alpha

from epctx_core.plugin import hookimpl


class PathEp(Alpha):
    """Alpha that also opens its payload by a path."""

    name = "PathExecutionProvider"
    binary_suffix = "path"

    @hookimpl
    def load_context(self, nodes, reader):
        content = Path(reader.payload(nodes[0]).as_file()).read_bytes()
        assert content == bytes(reader.payload(nodes[0]).view)
        return super().load_context(nodes, reader)
