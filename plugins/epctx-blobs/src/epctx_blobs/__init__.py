"""Container for payloads of several blobs, such as one for each partition: aligned
blobs, followed by their table as JSON with digests, and a footer.

Everything to import is here, and as `epctx_core.plugin.write_blobs` and
`epctx_core.plugin.Blobs`.
"""

from __future__ import annotations

from epctx_blobs.reading import Blobs
from epctx_blobs.writing import write_blobs

__all__ = ["Blobs", "write_blobs"]
