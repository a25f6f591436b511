"""Layout of the container, which is written front to back: blobs at multiples of
`ALIGNMENT`, their table, and a footer that leads to it.
"""

from __future__ import annotations

import struct

ALIGNMENT = 4096
MAGIC = b"EPCTXBL1"
FOOTER = struct.Struct("<Q32s8s")
"""Length of the table in bytes, its SHA-256, and `MAGIC`."""
LONGEST_TABLE = 1 << 24
"""Bytes that a table may have: a load decodes it whole."""
