"""What the process of an EP starts with: finds modules as its host does, then serves.

Run as a script, so that nothing in the folder where the host works is imported by chance. Until it knows
where the host finds modules it imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import struct
import sys


def _take_line() -> tuple[int, int]:
    """Return the line from and to the host; what a plugin reads or prints has nothing to do with it."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink


def _exactly(source: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(source, size - len(data))
        if not piece:
            sys.exit(1)
        data += piece
    return data


def main() -> None:
    """Serve until the host is done."""
    source, sink = _take_line()
    (length,) = struct.unpack("<I", _exactly(source, 4))
    sys.path[:] = json.loads(_exactly(source, length))["path"]
    from epctx_isolation.service import serve

    serve(source, sink)


if __name__ == "__main__":
    main()
