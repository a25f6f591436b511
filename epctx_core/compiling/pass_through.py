"""EPContext nodes that a model has already, and their payloads.

A compile passes the nodes through unchanged; their payloads stay beside the model, are
copied to its new folder, or move into it or out of it. Their EPs need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from onnx.helper import make_attribute

from epctx_core.compiling.initializers import check_size
from epctx_core.context.digests import PayloadEntry, ReplacedBinaryError
from epctx_core.context.manifest import Manifest, find_manifest
from epctx_core.context.node import ContextNodeRecord, find_wrong_types
from epctx_core.context.paths import ModelFolder
from epctx_core.context.payload_reader import PayloadReader, get_payload_key
from epctx_core.context.payload_writer import make_marker
from epctx_core.errors import Fail, InvalidGraph
from epctx_core.file_names import find_free_name, is_payload_name
from epctx_core.frozen import dataclass
from epctx_core.options import SessionConfig
from epctx_core.plugin.protos import NodeProto
from epctx_core.sessions.load import find_context_folder, make_reading
from epctx_core.sessions.source import require_one_state

if TYPE_CHECKING:
    from epctx_core.compiling.destination import Destination
    from epctx_core.context.manifest import PayloadKey
    from epctx_core.context.payload_files import LoadedPayload
    from epctx_core.graph.walks import SubgraphPath
    from epctx_core.sessions.source import OpenModel


@dataclass(kw_only=True)
class _KeptPayload:
    """Payload of the source model, and its location in the new one.

    Attributes:
        nodes: nodes that carry it; the first primary comes first.
        file: its file, as names are compared; None for an embedded one.
        entry: its entry in the manifest.
        target: name of its file in the new model; None for an embedded one.
        stays: whether the new model finds the very file that the old one names.
    """

    nodes: list[ContextNodeRecord]
    file: str | None
    payload: LoadedPayload
    entry: PayloadEntry | None
    target: str | None = None
    stays: bool = False

    @property
    def forget(self) -> Callable[[int, int], None] | None:
        """Function that releases ranges of the payload from memory; None if it is not
        mapped.
        """
        return self.payload.mapped.forget if self.payload.mapped is not None else None

    def verify(self) -> PayloadEntry | None:
        """Return the entry of the manifest, checked against all bytes."""
        if self.entry is not None:
            try:
                self.entry.check_whole(self.payload.view, self.forget)
            except ReplacedBinaryError as error:
                error.node = self.nodes[0].name
                raise
        return self.entry

    def lies_in(self, folder: Path | None) -> bool:
        """Return whether a model in a folder that names the file finds the very file
        that was read.
        """
        mapped = self.payload.mapped
        if folder is None or mapped is None or self.file is None:
            return False
        try:
            with ModelFolder(folder).open(self.file, what="the context binary") as file:
                return mapped.is_at(Path(file.path))
        except InvalidGraph:
            return False


class PassThrough:
    """EPContext nodes of a model that is compiled again, and their payloads.

    Args:
        model: the model; one without such nodes has nothing that passes through.
        destination: of the new model.
        manifest: that of the model, None without one.
        payloads: those of the nodes, each with its place in the new model.
        embedded: whether payloads are stored in the model.
        folder: that of the new model; None without one, or if payloads go to a callback
            of the host's.

    Attributes:
        records: the nodes.
        nodes: for each graph, a node's index to the node as it is written, where that
            is not as it was.
        entries: of payloads, for the manifest.
        contents: marker of each embedded payload, and the payload.
        written: the entries of files that were written now, a part of `entries`.
        files: names of the files that the nodes name, relative to the new model.
    """

    def __init__(
        self,
        model: OpenModel,
        destination: Destination,
        manifest: Manifest | None,
        payloads: Sequence[_KeptPayload],
        *,
        embedded: bool,
        folder: Path | None,
    ) -> None:
        self._model = model
        self._payloads = payloads
        self._embedded = embedded
        self._folder = folder
        self.destination = destination
        self.manifest = manifest
        self.records: Sequence[ContextNodeRecord] = model.context_nodes
        self.nodes: dict[SubgraphPath, dict[int, NodeProto]] = {}
        self.entries: list[PayloadEntry] = []
        self.contents: dict[bytes, LoadedPayload] = {}
        self.written: list[PayloadEntry] = []
        self.files: list[str] = []

    def keep(self, open_file: Callable[[str], BinaryIO]) -> None:
        """Embed or copy each payload, verified on the way by the manifest's digests.

        Args:
            open_file: opens a file of the new model.

        Raises:
            InvalidGraph: a payload does not match the manifest, or was written to
                meanwhile.
            Fail: a file that was to stay was replaced meanwhile, or the disk is full.
        """
        now = {
            record.name: (record.main_context, record.cache) for record in self.records
        }
        for carried in self._payloads:
            if carried.target is None:
                marker = make_marker()
                self.contents[marker] = carried.payload
                entry = carried.verify()
                first = carried.nodes[0]
                # A record's name is made up where the node has none: the next reader
                # would make another.
                is_named = (
                    self._model.graph_of(first).nodes[first.index].name == first.name
                )
                entry = (
                    replace(entry, name=first.name, embedded=True)
                    if entry and is_named
                    else None
                )
                # One copy of the bytes: the first node carries them, the others refer
                # to it.
                now.update((node.name, (False, None)) for node in carried.nodes)
                now[first.name] = first.main_context, marker
            else:
                entry = self._keep_file(carried, carried.target, open_file)
                self.files.append(carried.target)
                now.update(
                    (n.name, (n.main_context, carried.target.encode()))
                    for n in carried.nodes
                )
            if entry is not None:
                entry = self._add_references(entry, carried)
                self.entries.append(entry)
                if carried.target is not None and not carried.stays:
                    self.written.append(entry)
        for record in self.records:
            main, cache = now[record.name]
            # Rewritten if anything of the core's changed in it.
            if (main, cache, self._embedded) != (
                record.main_context,
                record.cache,
                record.embed_mode,
            ):
                node = self._model.graph_of(record).nodes[record.index]
                self.nodes.setdefault(record.path, {})[record.index] = _rewrite(
                    node,
                    main_context=int(main),
                    embed_mode=int(self._embedded),
                    ep_cache_context=cache,
                )

    def _keep_file(
        self, carried: _KeptPayload, name: str, open_file: Callable[[str], BinaryIO]
    ) -> PayloadEntry | None:
        """Copy a payload into its file, or check that it is still there; return its
        entry.
        """
        if not carried.stays:
            entry = carried.verify() or PayloadEntry.of(
                name, carried.payload.view, carried.forget
            )
            carried.payload.copy_to(open_file(name))
            return replace(entry, name=name, embedded=False)
        if not carried.lies_in(self._folder):
            raise Fail(
                f"the context binary {name!r} was replaced while "
                f"{self._model.source.where} was compiled.",
                node=carried.nodes[0].name,
                hint="Start again.",
            )
        return None if carried.entry is None else replace(carried.entry, name=name)

    def _add_references(
        self, entry: PayloadEntry, carried: _KeptPayload
    ) -> PayloadEntry:
        """Return an entry with the names of the nodes that refer to its payload, as far
        as they are known.
        """
        source = carried.nodes[0].source
        references = set(entry.references)
        only = sum(c.nodes[0].source == source for c in self._payloads) == 1
        names = [
            record.name
            for record in self.records
            if record.name in references
            or (only and record.source == source and record.cache is None)
        ]
        shared = [node.name for node in carried.nodes[1:] if carried.target is None]
        return replace(entry, references=tuple(dict.fromkeys((*names, *shared))))


def find_existing(
    model: OpenModel,
    destination: Destination,
    config: SessionConfig,
    *,
    embedded: bool,
    delivered: bool,
) -> PassThrough:
    """Return the EPContext nodes that a model has already, with their payloads.

    Args:
        model: the model.
        destination: of the new model.
        config: says where the model's binaries lie.
        embedded: whether payloads are stored in the new model.
        delivered: whether those that are not go to a callback of the host's.

    Raises:
        InvalidArgument: a model from bytes names files, and nothing says where they
            lie.
        InvalidGraph: a payload is missing or altered, or the type of a node's output is
            not declared.
        Fail: embedded payloads are more than a model can hold.
        NotImplementedByProvider: a node is in a subgraph that is not rebuilt here.
    """
    manifest: Manifest | None = None
    payloads: list[_KeptPayload] = []
    if model.context_nodes:
        source = model.source
        limit = config.input_budget.manifest_entries
        manifest = find_manifest(
            source.proto,
            source.path,
            lambda: source.digest,
            limit,
            model.context_nodes,
        )
        for record in model.context_nodes:
            # Nobody but the model knows them, and what is written has to verify.
            types = model.graph_of(record).types
            for _, error in find_wrong_types(record, types):
                raise error
        payloads = _find_payloads(model, manifest, config)

    folder = None if delivered else destination.folder
    if embedded:
        check_size(sum(each.payload.nbytes for each in payloads))
    else:
        _place_files(payloads, destination, folder)

    kept = {each.target: each.stays for each in payloads if each.target is not None}
    read = (each.payload.mapped.path for each in payloads if each.payload.mapped)
    copied = (name for name, stays in kept.items() if not stays and not delivered)
    names = replace(
        destination,
        source_files=(*destination.source_files, *read),
        kept=tuple(kept),
        copied=tuple(copied),
    )
    return PassThrough(
        model, names, manifest, payloads, embedded=embedded, folder=folder
    )


def _find_payloads(
    model: OpenModel, manifest: Manifest | None, config: SessionConfig
) -> list[_KeptPayload]:
    """Return the payloads of a model, each with all nodes that carry it."""
    records = {record.name: record for record in model.context_nodes}
    folder = find_context_folder(model, config, compiles=True)
    mapped = replace(
        config, entries={**config.entries, SessionConfig.map_binaries.key: "1"}
    )
    reading = make_reading(model, mapped)
    reader = PayloadReader(
        records,
        folder=folder,
        manifest=manifest,
        scratch=ExitStack(),
        reading=reading,
    )
    by_key: dict[PayloadKey, _KeptPayload] = {}

    # Primaries first, so that one of them carries a payload that several nodes
    # share.
    for record in sorted(model.context_nodes, key=lambda r: not r.main_context):
        if not record.cache and not record.main_context:
            continue
        payload = reader.load(record)
        key = name, is_embedded = get_payload_key(record)
        if key in by_key:
            by_key[key].nodes.append(record)
            continue
        entry = reader.find_entry(record)
        file = None if is_embedded else name
        by_key[key] = _KeptPayload(
            nodes=[record], file=file, payload=payload, entry=entry
        )

    require_one_state(model.opened, model.source.where)
    return list(by_key.values())


def _place_files(
    payloads: Sequence[_KeptPayload], destination: Destination, folder: Path | None
) -> None:
    """Decide the file of each payload: a binary keeps its name, what was embedded gets
    a free one.
    """
    used = {each.file.casefold() for each in payloads if each.file is not None}
    for each in payloads:
        if each.file is not None:
            each.target = each.file
            each.stays = each.lies_in(folder)
            continue
        source = each.nodes[0].source
        suffix = source if is_payload_name(source) else "context"
        make = partial(destination.binary_name, suffix)
        each.target = find_free_name(make, None, used)
        used.add(each.target.casefold())


def _rewrite(node: NodeProto, **values: int | bytes | None) -> NodeProto:
    """Return a copy of a node with other attributes; None takes one away.

    The old payload is not copied.
    """
    copy = NodeProto(
        **{f.name: value for f, value in node.ListFields() if f.name != "attribute"}
    )
    attributes = {n: make_attribute(n, v) for n, v in values.items() if v is not None}
    others = {
        a.name: a
        for a in node.attribute
        if a.name in attributes or a.name not in values
    }
    copy.attribute.extend((others | attributes).values())
    return copy
