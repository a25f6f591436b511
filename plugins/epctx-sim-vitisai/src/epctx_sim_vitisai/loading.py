"""From EPContext nodes to runnables: which nodes belong to which archive, and whether
all of them are there.

The versions, the graphs and their boundaries are the SDK's loader's business.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from epctx_sim_sdk.container import open_container
from epctx_sim_sdk.loading import refused
from epctx_sim_sdk.versions import RESTORE

from epctx_core.errors import InvalidGraph
from epctx_core.plugin import Purpose
from epctx_sim_vitisai import settings
from epctx_sim_vitisai.archive import Archive, check_belongs_together, open_archive
from epctx_sim_vitisai.sealing import Sealer, UnsealingError, is_sealed
from epctx_sim_vitisai.settings import EP

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epctx_sim_sdk.loading import ContextLoader

    from epctx_core.plugin import (
        CompiledPartition,
        ContextNode,
        ContextReader,
        PayloadView,
        ProviderContext,
        TensorView,
    )

_refused = partial(refused, EP)
_RECOMPILE = (
    "The model lost or mixed up some of its EPContext nodes; compile the source model "
    "again."
)
_ARCHIVE = "epctx_sim_vitisai.archive."
"""Prefix of a workspace's keys for archives."""
_OTHER_KEY = (
    "Give the encryption_key that the model was compiled with; if it is that one, "
    "compile the source model again."
)


class NodeLoader:
    """Loads the nodes of one session; all nodes of an archive come in one call, as the
    real EP demands.

    Args:
        context: the EP instance's context.
        loader: the SDK's, for the containers in archives.
        sealer: for encrypted payloads; None without a key.
    """

    def __init__(
        self, context: ProviderContext, loader: ContextLoader, sealer: Sealer | None
    ) -> None:
        self.loader = loader
        self._sealer = sealer
        self._workspace = context.workspace
        self._gets_all = context.purpose is not Purpose.EXPORT
        self._cache_key = settings.check_cache_key(context.options)
        self._archives: dict[str, Archive] = {}

    def load(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> list[CompiledPartition]:
        """Return one runnable for each node, in order.

        Raises:
            InvalidGraph: a payload that is damaged, foreign, locked or made for another
                runtime; nodes that are not those of their archive.
        """
        members = Members(reader)
        for node in nodes:
            if node.main_context:
                members.archives[node.name] = self.open(node, reader)
        for error in self.misplaced(nodes):
            raise error
        return self.loader.load(nodes, members)

    def open(self, node: ContextNode, reader: ContextReader) -> Archive:
        """Return the archive that a primary carries.

        Raises:
            InvalidGraph: it is damaged, foreign, locked, or not the node's.
        """
        # Of several sessions that share it, one reads it. Whose payload it is comes
        # before what the node says.
        key = f"{_ARCHIVE}{node.attributes.get('cache_file_prefix')}"
        archive = self._workspace.get_or_create(key, lambda: self._read(node, reader))
        prefix = _get_prefix(node)
        if prefix in self._archives:
            raise _refused(node, f"two nodes carry the archive {prefix!r}.", _RECOMPILE)
        self._archives[prefix] = archive
        return archive

    def _read(self, node: ContextNode, reader: ContextReader) -> Archive:
        payload = reader.payload(node)
        archive = open_archive(
            self._unlock(node, payload), node=node.name, name=payload.name
        )
        archive = replace(archive, digest=payload.digest, verified=payload.verified)
        prefix = _get_prefix(node)
        description = archive.description
        if description.prefix != prefix:
            raise _refused(
                node,
                f"its cache_file_prefix is {prefix!r}, that of the payload "
                f"{payload.name} {description.prefix!r}.",
                RESTORE,
            )
        if self._cache_key and description.cache_key != self._cache_key:
            raise _refused(
                node,
                f"the option cache_key is {self._cache_key!r}, and the payload "
                f"{payload.name} was made with {description.cache_key!r}.",
                (
                    "Leave the option out, or give the one that the model was "
                    "compiled with."
                ),
            )
        self._check_container(archive, node)
        return archive

    def _unlock(self, node: ContextNode, payload: PayloadView) -> memoryview:
        """Return the bytes of an archive, decrypted if they are encrypted."""
        switch = node.attributes.get("enable_encryption", 0)
        if not isinstance(switch, int):
            raise _refused(node, "its enable_encryption is no number.", _RECOMPILE)
        stated = switch == 1
        if is_sealed(payload.view):
            if self._sealer is None:
                raise _refused(
                    node,
                    f"the payload {payload.name} is encrypted, and there is no key.",
                    "Give the option encryption_key that the model was compiled with.",
                )
            try:
                return self._sealer.open(payload.view, _get_prefix(node))
            except UnsealingError as error:
                raise _refused(
                    node,
                    f"the payload {payload.name} cannot be decrypted: encryption_key "
                    "is not the one it was encrypted with, or node or payload were "
                    "altered.",
                    _OTHER_KEY,
                ) from error
        # Who asks for encryption asks for its proof of origin, too.
        if stated or self._sealer is not None:
            why = "the node says that it is" if stated else "there is an encryption_key"
            raise _refused(
                node,
                f"the payload {payload.name} is not encrypted, but {why}.",
                RESTORE
                if stated
                else "Leave encryption_key out for models that are not encrypted.",
            )
        return payload.view

    def _check_container(self, archive: Archive, node: ContextNode) -> None:
        container = open_container(
            archive.view,
            ep=EP,
            node=node.name,
            name=archive.name,
            verified=archive.verified,
        )
        check_belongs_together(
            archive, container.tables.made_by, list(container.tables.graphs), node.name
        )

    def misplaced(self, nodes: Sequence[ContextNode]) -> Iterator[InvalidGraph]:
        """Yield why nodes are not those of their archives: each archive's `index` runs
        from 0 without a gap.
        """
        placed: dict[str, dict[int, ContextNode]] = {}
        for node in nodes:
            try:
                prefix, index = self._find_place(node)
            except InvalidGraph as error:
                yield error
                continue
            twin = placed.setdefault(prefix, {}).setdefault(index, node)
            if twin is not node:
                yield _refused(
                    node,
                    f"its index {index} is also that of {twin.name!r}.",
                    _RECOMPILE,
                )
        for prefix, nodes_of_places in placed.items():
            description = self._archives[prefix].description
            missing = description.missing(nodes_of_places)
            # What is read back before it is published are some of the nodes.
            if missing is not None and self._gets_all:
                first = next(iter(nodes_of_places.values()))
                count = len(description.graphs)
                yield _refused(
                    first,
                    f"the model has nodes for {len(nodes_of_places)} of the {count} "
                    f"graphs that the archive {prefix!r} holds; index {missing} is "
                    "missing.",
                    _RECOMPILE,
                )

    def _find_place(self, node: ContextNode) -> tuple[str, int]:
        """Return a node's archive, by its key, and its place in it."""
        prefix = _get_prefix(node)
        archive = self._archives.get(prefix)
        if archive is None:
            raise _refused(
                node,
                f"no node with main_context=1 carries its archive {prefix!r}.",
                _RECOMPILE,
            )
        return prefix, self._get_index(node, archive)

    def _get_index(self, node: ContextNode, archive: Archive) -> int:
        index = node.attributes.get("index")
        graphs = archive.description.graphs
        if not isinstance(index, int):
            raise _refused(node, "it has no index.", _RECOMPILE)
        if not 0 <= index < len(graphs):
            raise _refused(
                node,
                f"its index is {index}, and its archive holds {len(graphs)} graphs.",
                _RECOMPILE,
            )
        if graphs[index] != node.partition_name:
            raise _refused(
                node,
                f"its index is {index}, where its archive holds {graphs[index]!r}, "
                f"not {node.partition_name!r}.",
                _RECOMPILE,
            )
        return index


class Members:
    """Gives the SDK's loader the containers in archives in place of the payloads;
    implements `ContextReader`.
    """

    def __init__(self, reader: ContextReader) -> None:
        self.archives: dict[str, Archive] = {}
        self._reader = reader

    def payload(self, node: ContextNode) -> Archive:
        """Return the archive that a primary carries."""
        return self.archives[node.name]

    def source_tensor(self, name: str) -> TensorView:
        """Return a weight of the source model."""
        return self._reader.source_tensor(name)


def _get_prefix(node: ContextNode) -> str:
    prefix = node.attributes.get("cache_file_prefix")
    if not isinstance(prefix, str) or not prefix:
        raise _refused(
            node,
            "it has no cache_file_prefix, by which it finds its archive.",
            _RECOMPILE,
        )
    return prefix
