"""A payload as an EP writes it, kept in memory."""

from __future__ import annotations

from pathlib import Path


class WrittenPayload:
    """Implements `epctx_core.plugin.Payload`; `content` is what was written."""

    def __init__(self):
        self._parts, self._stored = [], {}
        self.size = 0

    @property
    def content(self):
        return b"".join(self._parts)

    def write(self, buffer):
        offset, data = self.size, memoryview(buffer).tobytes()
        self._parts.append(data)
        self.size += len(data)
        return offset

    def align(self, alignment):
        self.write(bytes(-self.size % alignment))
        return self.size

    def write_tensor(self, view):
        if view.digest not in self._stored:
            self._stored[view.digest] = self.write(b"".join(view.chunks()))
        return self._stored[view.digest]

    def add_file(self, path):
        return self.write(Path(path).read_bytes())
