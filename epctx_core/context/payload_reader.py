"""Reading of payloads: found, checked against the manifest, mapped; and the nodes that
they belong to.

Implements `ContextReader` and `PayloadView` of `epctx_core.plugin`. Files are opened
through `ModelFolder` only.
"""

from __future__ import annotations

import logging
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.digests import (
    IN_PLACE,
    Content,
    DigestChecks,
    PayloadEntry,
    blame_file,
    find_matching,
)
from epctx_core.context.manifest import NO_MANIFEST
from epctx_core.context.node import make_node_error
from epctx_core.context.paths import find_interrupted_copies
from epctx_core.context.payload_files import LoadedPayload, read_privately
from epctx_core.context.receipts import is_noted, make_file_receipt, make_model_receipt
from epctx_core.errors import Fail, InvalidGraph
from epctx_core.frozen import dataclass
from epctx_core.graph.mapping import MappedFile, OpenedFiles
from epctx_core.options import DataReader, Verification
from epctx_core.plugin import ContextNode, ValueInfo

if TYPE_CHECKING:
    from epctx_core.context.manifest import Manifest, PayloadKey
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder
    from epctx_core.graph.type_table import TypeTable
    from epctx_core.plugin import TensorView

BINARY = "the context binary"
_log = logging.getLogger("epctx.session")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Settings for reading payloads.

    Attributes:
        map_binaries: False to read each binary into memory of its own and verify it
            whole.
        verification: how far payloads are checked against the manifest.
        data_reader: the host's callback, which gives what nodes name instead of files.
        checks: of the load, which run concurrently with it, for payloads that are
            checked once.
        opened: of the model; gets binaries that have no digest, as nothing else says
            that they belong to it.
        early: whether an EP may get a payload before every byte that has a digest was
            compared with it.
        model_digest: SHA-256 (hex) of the model's bytes, for a receipt of what is
            embedded in it; empty for none.
    """

    map_binaries: bool = True
    verification: Verification = Verification.HEAD
    data_reader: DataReader | None = None
    checks: DigestChecks = IN_PLACE
    opened: OpenedFiles = field(default_factory=OpenedFiles)
    early: bool = True
    model_digest: str = ""


class PayloadReader:
    """Reader of the payloads of one EP's nodes.

    Args:
        records: the EP's nodes by name.
        folder: where the model's files lie; may be None if no node names a file.
        manifest: what the model says about its payloads, if it does.
        scratch: lives as long as the session; makes files of payloads for EPs that want
            them.
        source_tensor: finds a weight that payloads left in the source model.
        reading: how they are read and checked.

    Attributes:
        loaded: the payloads that are known so far, by `get_payload_key`.
    """

    def __init__(
        self,
        records: Mapping[str, ContextNodeRecord],
        *,
        folder: ModelFolder | None,
        manifest: Manifest | None,
        scratch: ExitStack,
        source_tensor: Callable[[str], TensorView] | None = None,
        reading: Reading | None = None,
    ) -> None:
        self._records = records
        self._folder = folder
        self._manifest = manifest
        self._scratch = scratch
        self._source_tensor = source_tensor
        self._reading = reading = reading or Reading()
        self._ep: str | None = None
        self._model_receipt = (
            make_model_receipt(reading.model_digest) if reading.model_digest else ""
        )
        self.loaded: dict[PayloadKey, LoadedPayload] = {}

    @property
    def _binaries(self) -> ModelFolder | None:
        """Folder of the binaries; None if the host's callback gives them."""
        return self._folder if self._reading.data_reader is None else None

    def _find_copies(self, entry: PayloadEntry) -> Iterator[Path]:
        """Yield files that may hold a binary as it was before a publication that is
        under way or was killed.
        """
        folder = self._binaries
        if folder is not None and not entry.embedded:
            yield from find_interrupted_copies(folder.folder, entry.name)

    def check_all(self, ep: str) -> None:
        """Check all payloads that the host wants to be checked before any is asked for,
        or begin to.

        Args:
            ep: the EP that loads them, for errors: it has not asked for them yet.

        Raises:
            InvalidGraph: as `payload`.
        """
        self._ep = ep
        if self._reading.verification not in {Verification.FULL, Verification.ONCE}:
            return
        try:
            for record in self._records.values():
                if record.main_context and not self._can_wait(record):
                    self.load(record)
        except InvalidGraph as error:
            error.ep = error.ep or ep
            raise

    def _can_wait(self, record: ContextNodeRecord) -> bool:
        """Return whether a payload was checked before, or need not be until its EP asks
        for it.
        """
        if self._reading.verification is Verification.FULL:
            return False
        entry = self.find_entry(record)
        if entry is None or record.embed_mode:
            return entry is None
        folder = self._binaries
        if folder is None:
            return True
        status = folder.status(entry.name, what=BINARY, node=record.name)
        return status is not None and is_noted(make_file_receipt(status, entry.root))

    def payload(self, node: ContextNode) -> LoadedPayload:
        """Return the payload that holds a node's graph; see `ContextReader.payload`."""
        owner = node if node.main_context else node.primary
        if owner is None:
            raise make_node_error(
                node.name,
                "carries no payload, and more than one primary could hold its graph",
                hint=(
                    "The EP has to look for the node's partition_name in the payloads "
                    "of the primaries."
                ),
            )
        return self.load(self._records[owner.name])

    def load(self, record: ContextNodeRecord) -> LoadedPayload:
        """Return the payload that a node carries itself; see `payload`."""
        key = get_payload_key(record)
        if key not in self.loaded:
            mode = self._reading.verification
            if mode is not Verification.HEAD and self.find_entry(record) is None:
                level = logging.INFO if mode is Verification.ONCE else logging.WARNING
                why = "the payload %r is not checked: no manifest lists it."
                _log.log(level, why, key[0])
            self.read(record)
        return self.loaded[key]

    def check_unchanged(self) -> None:
        """Check that no file was written to since it was mapped.

        Raises:
            InvalidGraph: one was, so that the EP may have read what nobody checked.
        """
        for payload in self.loaded.values():
            if payload.mapped is not None:
                payload.mapped.check_unchanged()

    def find_entry(self, record: ContextNodeRecord) -> PayloadEntry | None:
        """Return the manifest's entry of a node's payload, None without one."""
        return find_entry(record, self._manifest)

    def read(self, record: ContextNodeRecord) -> LoadedPayload:
        """Find the payload that a node carries itself, check it as far as the host
        wants, and keep it for later calls.

        Raises:
            InvalidGraph: it has none, the file is missing or must not be opened, or it
                is another one than the model was written with, and no unfinished
                publication has that one.
            Fail: it cannot be brought into memory, or the host's callback raised.
        """
        node = record.name
        if not record.cache:
            missing = "payload" if record.embed_mode else "file name"
            raise make_node_error(
                node, f"has main_context=1 but no {missing} in ep_cache_context"
            )

        entry = self.find_entry(record)
        payload = self._find(record)
        if not payload.view:
            error = make_node_error(
                node,
                f"names {BINARY} {record.file_name!r}, which is empty",
                hint="Fetch it again, or compile the model again.",
            )
            error.path = payload.mapped.path if payload.mapped else None
            raise error

        if entry is not None:
            payload = find_matching(
                payload,
                self._open_copies(record, entry),
                partial(self._check, record, entry),
            )
        self.loaded[get_payload_key(record)] = payload
        return payload

    def _find(self, record: ContextNodeRecord) -> LoadedPayload:
        """Return the payload in a node or in the file that it names; not checked
        yet.
        """
        name = record.file_name
        if name is None:
            return self._make_payload(record, memoryview(record.cache or b""))
        if self._reading.data_reader is not None:
            from epctx_core.context.callbacks import receive

            return self._make_payload(record, receive(self._reading.data_reader, name))
        assert self._folder is not None  # noqa: S101 - see `check_has_folder`
        with self._folder.open(name, what=BINARY, node=record.name) as file:
            if self.find_entry(record) is None:
                look_up = partial(
                    self._folder.status, name, what=BINARY, node=record.name
                )
                self._reading.opened.add(os.fstat(file.fileno()), look_up)
            return self._open(record, file.fileno(), file.path)

    def _make_payload(
        self, record: ContextNodeRecord, content: Content
    ) -> LoadedPayload:
        entry, (name, embedded) = self.find_entry(record), get_payload_key(record)
        in_memory = self._reading.data_reader is not None and not embedded
        digest = entry.root if entry else None
        return LoadedPayload(
            name, content, digest=digest, scratch=self._scratch, in_memory=in_memory
        )

    def source_tensor(self, name: str) -> TensorView:
        """Return a weight of the source model."""
        if self._source_tensor is None:
            raise InvalidGraph(
                f"the weight {name!r} of the source model was asked for, but this "
                "session has no source model.",
                hint=(
                    "Only context models made in weightless mode refer to their source."
                ),
            )
        return self._source_tensor(name)

    def _check(
        self, record: ContextNodeRecord, entry: PayloadEntry, payload: LoadedPayload
    ) -> None:
        """Check a payload as far as the host wants, and note whether every byte of it
        is known to be right.
        """
        reading = self._reading
        mode = reading.verification
        is_given = payload.mapped is None and not record.embed_mode
        # What was read into memory, and what an EP must not get before it is checked,
        # is checked whole.
        if (
            not (record.embed_mode or reading.map_binaries)
            or (mode is Verification.HEAD and not reading.early)
            or (mode is Verification.ONCE and is_given)
        ):
            mode = Verification.FULL

        folder = None if entry.embedded else self._binaries
        path = None if folder is None else str(folder.folder / entry.name)
        payload.verified = reading.checks.check(
            entry,
            payload.content,
            mode,
            # While files are being replaced, another copy may be the right one, and the
            # EP must not get the wrong one.
            may_wait=lambda: reading.early and not any(self._find_copies(entry)),
            receipt=self._model_receipt if record.embed_mode else "",
            blame=partial(blame_file, path=path, node=record.name, ep=self._ep),
        )

    def _open(
        self, record: ContextNodeRecord, descriptor: int, path: str
    ) -> LoadedPayload:
        """Return a binary's content.

        One of a wrong length is not copied: it may be as large as it likes.
        """
        entry = self.find_entry(record)
        right_size = entry is None or os.fstat(descriptor).st_size == entry.size
        try:
            if self._reading.map_binaries or not right_size:
                return self._make_payload(record, MappedFile(descriptor, path))
            return self._make_payload(record, read_privately(descriptor, path))
        except (OSError, MemoryError) as error:
            raise Fail(
                f"the context binary {path!r} cannot be brought into memory: "
                f"{str(error) or 'not enough memory'}.",
                path=path,
                hint=(
                    "Unless ep.context_file_mapping is 0 it is mapped, which needs "
                    "addresses and no memory."
                ),
            ) from error

    def _open_copies(
        self, record: ContextNodeRecord, entry: PayloadEntry
    ) -> Iterator[LoadedPayload]:
        """Yield the copies of a binary that an unfinished publication has."""
        for path in self._find_copies(entry):
            copy = None
            with suppress(OSError, InvalidGraph), path.open("rb") as file:
                copy = self._open(record, file.fileno(), str(path))
            if copy is not None:
                yield copy


def make_plugin_nodes(
    records: Sequence[ContextNodeRecord],
    types: TypeTable,
    ep: str,
    manifest: Manifest | None = None,
) -> list[ContextNode]:
    """Return the nodes of one EP as it gets them: primaries first, each reference with
    its primary.

    Among several primaries the reference names the file of one, or the manifest says
    which; otherwise the EP looks into their payloads.

    Raises:
        InvalidGraph: references without any primary.
    """
    check_primaries(records, ep)
    holders = [record for record in records if record.main_context]
    primaries = [_make_node(record, types, None) for record in holders]
    for node in primaries:
        # A frozen value cannot name itself when it is made.
        object.__setattr__(node, "primary", node)
    references = [record for record in records if not record.main_context]
    by_payload = dict(zip(map(get_payload_key, holders), primaries, strict=True))
    only = primaries[0] if len(by_payload) == 1 else None
    stated = {
        name: by_payload.get((entry.name, entry.embedded))
        for entry in reversed((manifest or NO_MANIFEST).payloads)
        for name in entry.references
    }

    nodes = [*primaries]
    for record in references:
        primary = (
            only or by_payload.get(get_payload_key(record)) or stated.get(record.name)
        )
        nodes.append(_make_node(record, types, primary))
    return nodes


def find_entry(
    record: ContextNodeRecord, manifest: Manifest | None
) -> PayloadEntry | None:
    """Return a manifest's entry of the payload that a node carries, None without one.

    Raises:
        InvalidGraph: the model's share group has yet to write the payload.
    """
    stated = manifest or NO_MANIFEST
    name, embedded = get_payload_key(record)
    if name in stated.pending and not embedded:
        raise make_node_error(
            record.name,
            f"names {BINARY} {name!r}, which was not written yet: its share group was "
            "never stopped",
            hint=(
                "Compile the group's last model with ep.stop_share_ep_contexts=1, or "
                "use epctx.ShareGroup."
            ),
        )
    return stated.find_entry(name, embedded=embedded)


def check_primaries(records: Sequence[ContextNodeRecord], ep: str) -> None:
    """Check that a node of an EP carries a payload; raise InvalidGraph otherwise."""
    if records and not any(record.main_context for record in records):
        raise InvalidGraph(
            f"no EPContext node of {ep} has main_context=1, so the payload of "
            f"{records[0].name!r} is nowhere.",
            node=records[0].name,
            ep=ep,
            hint="The model lost its primary node; compile it again.",
        )


def get_payload_key(record: ContextNodeRecord) -> PayloadKey:
    """Return the name of a primary's payload in a manifest, and whether it is embedded.

    A file has one key, however the node spells its name (`./a.bin`, `sub/../a.bin`).

    Raises:
        InvalidGraph: the file's name is not text.
    """
    if record.embed_mode:
        return record.name, True
    return posixpath.normpath(record.file_name) if record.file_name else "", False


def _make_node(
    record: ContextNodeRecord, types: TypeTable, primary: ContextNode | None
) -> ContextNode:
    type_of = types.find_subgraph(record.path).get
    return ContextNode(
        name=record.name,
        partition_name=record.partition_name,
        source=record.source,
        main_context=record.main_context,
        primary=primary,
        inputs=tuple([ValueInfo(name, type_of(name)) for name in record.inputs]),
        outputs=tuple([ValueInfo(name, type_of(name)) for name in record.outputs]),
        attributes=record.attributes,
    )
