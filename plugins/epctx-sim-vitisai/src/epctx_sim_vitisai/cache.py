"""Compiled partitions on disk, in the folder that the host named with `cache_dir`.

Unlike the real EP's cache, an entry is found by what was compiled and by the versions
of EP, compiler and runtime, so that an update never meets an old entry. An
entry that cannot be used is compiled again; nothing is written elsewhere, and never
while loading.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from epctx_sim_sdk.compiler import SimGraph
from epctx_sim_sdk.container import open_container
from epctx_sim_sdk.writing import write_container

from epctx_core.errors import InvalidGraph
from epctx_sim_vitisai.recording import Recording
from epctx_sim_vitisai.sealing import UnsealingError, is_sealed
from epctx_sim_vitisai.settings import EP

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator, Mapping

    from epctx_sim_sdk.container import Container, SourceWeight, Weight

    from epctx_core.plugin import Extent, Partition
    from epctx_sim_vitisai.sealing import Sealer

ENTRY_FORMAT = 2
_CHUNK = 16 << 20


class StoredTensor:
    """A weight in an entry; implements `TensorView`."""

    def __init__(
        self, name: str, array: np.ndarray, weight: Weight | SourceWeight
    ) -> None:
        self.name = name
        self.source_name: str | None = None
        self.dtype: np.dtype[Any] = array.dtype
        self.elem_type = weight.elem_type
        self.shape = weight.shape
        self.nbytes = weight.length
        self.digest = weight.digest
        self.extent: Extent | None = None
        self._array = array

    def array(self) -> np.ndarray:
        """Return the read-only values, not copied."""
        return self._array

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces of at most 16 MiB."""
        content = self._array.reshape(-1).view(np.uint8).data
        for start in range(0, self.nbytes, _CHUNK):
            yield content[start : start + _CHUNK]


class CompileCache:
    """The cache of one EP instance.

    Args:
        folder: of one model; made when the first entry is written.
        facts: versions and target, as the version rules know them.
        sealer: encrypts entries; None to leave them readable.
        logger: told of entries that cannot be used or written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        facts: Mapping[str, str],
        sealer: Sealer | None,
        logger: logging.Logger,
    ) -> None:
        self._folder = folder
        self._facts = dict(facts)
        self._sealer = sealer
        self._logger = logger

    def get(self, partition: Partition) -> SimGraph | None:
        """Return a partition as it was compiled before; None if it was not, or the
        entry is damaged.
        """
        key = self._make_key(partition)
        path = self._folder / f"{key}.sim"
        try:
            view = _map_file(path)
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError):
                self._logger.warning(
                    "%s: the cache entry %s cannot be read: %s.", EP, path, error
                )
            return None
        try:
            return self._open_graph(view, key, partition)
        except (InvalidGraph, UnsealingError) as error:
            self._logger.warning(
                "%s: the cache entry %s is compiled again: %s",
                EP,
                path,
                error or "locked.",
            )
            return None

    def put(self, graph: SimGraph) -> None:
        """Keep a compiled partition; a folder that cannot be written is reported to the
        log.
        """
        key = self._make_key(graph.partition)
        container = Recording()
        write_container(container, [graph], self._facts)
        content = container.content(lambda: None)
        try:
            self._publish(
                self._folder / f"{key}.sim",
                self._sealer.seal(content, key) if self._sealer else content,
            )
        except OSError as error:
            self._logger.warning("%s: nothing is kept in cache_dir: %s.", EP, error)

    def _make_key(self, partition: Partition) -> str:
        identity = [
            ENTRY_FORMAT,
            sorted(self._facts.items()),
            partition.digest,
        ]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def _open_graph(self, view: memoryview, key: str, partition: Partition) -> SimGraph:
        if is_sealed(view) != (self._sealer is not None):
            raise UnsealingError
        content = self._sealer.open(view, key) if self._sealer else view
        container = open_container(
            content, ep=EP, node=partition.name, name=f"{key}.sim"
        )
        if len(container.tables.graphs) != 1 or container.damaged_weights():
            raise InvalidGraph(
                "the entry is damaged: its weights do not have their digests."
            )
        return _as_compiled(container, partition)

    def _publish(self, path: Path, content: bytes | bytearray) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(temporary).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(temporary).unlink()
            raise


def _as_compiled(container: Container, partition: Partition) -> SimGraph:
    (name,) = container.tables.graphs
    entry = container.graph(name)
    arrays = container.arrays(entry)
    weights = {
        name: StoredTensor(name, arrays[name], container.tables.weights[place])
        for name, place in entry.weights
    }
    return SimGraph(
        structure=container.structure(entry), weights=weights, partition=partition
    )


def _map_file(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
