"""A payload that is kept in memory, so that its size is known before it is written.

A tar member's size stands before its content, and what is to be encrypted must be
complete. Knows neither.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.plugin import Payload, TensorView


class Recording:
    """Notes what is written instead of writing it; weights are noted as views, so that
    none is read.

    Attributes:
        size: bytes so far.
    """

    def __init__(self) -> None:
        self.size = 0
        self._steps: list[bytes | TensorView] = []
        self._stored: dict[tuple[str, int], int] = {}

    def write(self, buffer: Buffer) -> int:
        """Note bytes; return the offset of the first."""
        content = bytes(buffer)
        offset = self.size
        self.size = self.size + len(content)
        self._steps.append(content)
        return offset

    def align(self, alignment: int) -> int:
        """Note zero bytes up to a multiple of `alignment`; return the new offset."""
        self.write(bytes(-self.size % alignment))
        return self.size

    def write_tensor(self, view: TensorView) -> int:
        """Note a weight; of equal content, only the first."""
        key = (view.digest, view.nbytes)
        if key not in self._stored:
            self._stored[key] = self.size
            self._steps.append(view)
            self.size += view.nbytes
        return self._stored[key]

    def add_file(self, path: str | os.PathLike[str]) -> int:
        """Note the content of a file."""
        return self.write(Path(path).read_bytes())

    def replay(self, payload: Payload, before_step: Callable[[], None]) -> None:
        """Write everything, in order.

        Args:
            payload: anything may have been written to it.
            before_step: called before each piece; may raise.
        """
        for step in self._steps:
            before_step()
            if isinstance(step, bytes):
                payload.write(step)
            else:
                payload.write_tensor(step)

    def content(self, before_step: Callable[[], None]) -> bytearray:
        """Return everything as bytes; weights are read now.

        Args:
            before_step: called before each piece; may raise.
        """
        whole = bytearray()
        for step in self._steps:
            before_step()
            for chunk in [step] if isinstance(step, bytes) else step.chunks():
                whole += chunk
        return whole
