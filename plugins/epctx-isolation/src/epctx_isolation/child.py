"""Script that a process runs: find modules as the host does, then serve an EP, or read
a model that may be fatal.

Not run as a module, so that no module in the working folder is imported by chance.
Before it has the host's `sys.path`, it imports the standard library only.
"""

from __future__ import annotations

import json
import os
import struct
import sys


def _read_exactly(source: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(source, size - len(data))
        if not chunk:
            sys.exit(1)
        data += chunk
    return data


def main() -> None:
    """Do what the host asks for."""
    # Standard input and output are the line from and to the host; those of the plugin
    # are redirected from it.
    source = os.dup(0)
    sink = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    (length,) = struct.unpack("<I", _read_exactly(source, 4))
    order = json.loads(_read_exactly(source, length))
    sys.path[:] = order["path"]
    if (reading := order.get("read")) is not None:
        from epctx_isolation.reading import read

        read(reading, _read_exactly(source, reading["size"]))
        return

    from epctx_isolation.service import serve

    serve(source, sink)


if __name__ == "__main__":
    main()
