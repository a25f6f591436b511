"""Script of a child: find modules as the host does, then do its calls.

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
    """Do the calls of the host."""
    line, control, memory = map(int, sys.argv[1:4])
    (length,) = struct.unpack("<I", _read_exactly(line, 4))
    sys.path[:] = json.loads(_read_exactly(line, length))

    from epctx_isolation.service import serve

    serve(line, control, memory)


if __name__ == "__main__":
    main()
