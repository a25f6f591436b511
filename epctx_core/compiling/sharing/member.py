"""A model that was published before its share group ends."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import ModelProto

from epctx_core.compiling.provenance import complete_manifest
from epctx_core.errors import Fail

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from epctx_core.context.manifest import PayloadEntry


@dataclass(frozen=True, kw_only=True)
class PublishedMember:
    """A model that was published before its group's end.

    Attributes:
        path: its file.
        digest: SHA-256 (hex) of what was written.
        to_read: see `ContextModel.to_read`.
    """

    path: Path
    digest: str
    to_read: frozenset[str]

    def completed(self, entries: Mapping[str, PayloadEntry]) -> ModelProto:
        """Return the model with a manifest that says what is in the group's binaries.

        Raises:
            Fail: another file lies there by now.
        """
        proto: ModelProto = ModelProto.FromString(self._read())
        complete_manifest(proto, entries)
        return proto

    @property
    def is_pending(self) -> bool:
        """Whether the file is there as it was written."""
        try:
            self._read()
        except Fail:
            return False
        return True

    def _read(self) -> bytes:
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise self._lost(str(error)) from error
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise self._lost("it is not the file that was written")
        return data

    def _lost(self, why: str) -> Fail:
        return Fail(
            f"the share group's model {str(self.path)!r} cannot be completed: {why}.",
            path=self.path,
            hint=f"Compile the group again, the source of {self.path.name!r} first, which begins a new one; or use "
            "epctx.ShareGroup, which publishes all models together.",
        )
