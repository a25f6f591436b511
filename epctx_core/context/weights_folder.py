"""Folder in which a model's external weights lie, and the checksum of the file with
initializers that a compile wrote.

The file for the initializers that a compile leaves in the model ends in a checksum: a
digest over the digests of all that is in it. The model's metadata has the same, so that
a few bytes distinguish the file from that of another compile. It also has the digest of
each weight, to check the whole file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.context.digests import (
    IN_PLACE,
    DigestChecks,
    PayloadEntry,
    ReplacedBinaryError,
    Segment,
    blame_file,
    dump_segments,
    find_matching,
    read_segments,
)
from epctx_core.context.metadata import INITIALIZERS, read_json, remove_metadata
from epctx_core.context.paths import ModelFolder, find_interrupted_copies
from epctx_core.errors import InvalidArgument, NoSuchFile
from epctx_core.graph.mapping import (
    READ_ONLY,
    FileIdentity,
    MappedFile,
    OpenedFile,
    OpenedFiles,
    identify_file,
)
from epctx_core.graph.wire import decode_name
from epctx_core.options import Verification

if TYPE_CHECKING:
    from onnx import ModelProto

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"


def write_checksum(model: ModelProto, entry: PayloadEntry | None) -> None:
    """Write the checksum of the file for initializers into a model's metadata.

    Args:
        model: gets it, and loses an earlier one.
        entry: the file's, with its last line; None if the model has no such file.
    """
    remove_metadata(model, {INITIALIZERS})
    if entry is not None:
        weights = entry.segments[:-1]
        content = {
            "bytes": entry.size,
            "digest": _describe_weights(entry.name, weights).root,
            "name": entry.name,
            "segments": dump_segments(weights),
        }
        model.metadata_props.add(
            key=INITIALIZERS, value=json.dumps(content, separators=(",", ":"))
        )


def read_checksum(model: ModelProto | Mapping[str, str]) -> PayloadEntry | None:
    """Return the entry of a model's file for initializers, None without such a file.

    Raises:
        InvalidGraph: the metadata is damaged.
    """
    return read_json(model, INITIALIZERS, _read_entry)


def _read_entry(data: Any) -> PayloadEntry:
    weights = _describe_weights(str(data["name"]), read_segments(data["segments"]))
    line = make_checksum_line(weights)
    last = Segment(weights.size, len(line), hashlib.sha256(line).hexdigest())
    entry = replace(
        weights, size=weights.size + len(line), segments=(*weights.segments, last)
    )
    if (data["bytes"], data["digest"]) != (entry.size, weights.root):
        raise ValueError("size and digest are not those of the segments")
    return entry


def _describe_weights(name: str, segments: Sequence[Segment]) -> PayloadEntry:
    """Return the entry of a file for initializers without its last line."""
    return PayloadEntry(
        name=name,
        embedded=False,
        size=sum(segment.length for segment in segments),
        segments=tuple(segments),
        is_weights_file=True,
    )


def make_checksum_line(weights: PayloadEntry) -> bytes:
    """Return the last line of a file with these weights, which tells it from that of
    another compile.
    """
    return f"epctx initializers {weights.root}\n".encode()


class WeightsFolder:
    """Folder of the files of weights that one model names.

    Args:
        model: its path, None for a model from bytes.
        option: the folder that the host named, which replaces the model's.
        checksum: that of the file that the model's own compile wrote, if one did; see
            `read_checksum`.
        verification: how far that file is checked; whole, before it is used, in any
            mode but HEAD and ONCE.
        checks: of a load, which run concurrently with it.
        opened: the model's own file, which may have weights; gets the others.

    Raises:
        NoSuchFile: the folder does not exist.
    """

    def __init__(
        self,
        model: Path | None,
        option: str | None,
        *,
        checksum: PayloadEntry | None = None,
        verification: Verification = Verification.HEAD,
        checks: DigestChecks = IN_PLACE,
        opened: OpenedFiles | None = None,
    ) -> None:
        self._opened = opened or OpenedFiles()
        self._checksum = checksum
        self._verification = verification
        self._checks = checks
        self._faults: dict[FileIdentity, tuple[str, str | None] | None] = {}
        self._own = None if model is None else ModelFolder(model.parent, model)
        self._own_name = "" if model is None else model.name
        self._folder: ModelFolder | None = None
        if option is not None:
            if not Path(option).is_dir():
                raise NoSuchFile(
                    f"{FOLDER_OPTION} names {option!r}, which is not a folder.",
                    path=option,
                )
            self._folder = ModelFolder(Path(option))
        elif model is not None:
            self._folder = self._own

    def open(self, location: str, tensor: str) -> OpenedFile:
        """Open a file of weights; see `epctx_core.graph.weights.OpenExternal`."""
        tensor = decode_name(tensor)

        # Weights of an `.ort` file lie in itself, wherever those in other files are;
        # at its path another file may lie by now.
        if location == self._own_name and self._own is not None:
            model = self._opened.model
            file = (
                self._own.open(location, what="the model", node=tensor)
                if model is None
                else OpenedFile(os.dup(model.fileno()), os.path.realpath(model.path))
            )
            self._opened.locations.setdefault(file.path, location)
            return file

        if self._folder is None:
            raise InvalidArgument(
                f"the model given as bytes keeps the weight {tensor!r} in the file "
                f"{location!r}, and bytes have no folder.",
                hint=f"Set the session option {FOLDER_OPTION!r}.",
            )

        file = self._folder.open(location, what="the weights file", node=tensor)
        checksum = self._checksum
        if checksum is not None and os.path.normpath(location) == checksum.name:
            # Its checksum says which model it belongs to.
            file = self._find_matching(file, checksum, self._folder.folder)
        else:
            with ExitStack() as stack:
                stack.enter_context(file)
                status = os.fstat(file.fileno())
                stack.pop_all()
            self._opened.add(status, partial(self.status, location))

        self._opened.locations.setdefault(file.path, location)
        return file

    def status(self, location: str) -> os.stat_result | None:
        """Return the status of the file that a name leads to now, without opening it;
        None if there is none.
        """
        if location == self._own_name and self._own is not None:
            return self._own.status(location, what="the model")
        return (
            None
            if self._folder is None
            else self._folder.status(location, what="the weights file")
        )

    def _find_matching(
        self, file: OpenedFile, checksum: PayloadEntry, folder: Path
    ) -> OpenedFile:
        """Return the file of a checksum: this one, or one of an unfinished
        publication.
        """
        copies = list(find_interrupted_copies(folder, checksum.name))

        def open_copies() -> Iterator[OpenedFile]:
            for copy in copies:
                with suppress(OSError):
                    yield OpenedFile(os.open(copy, READ_ONLY), str(copy))

        def check(file: OpenedFile) -> None:
            with ExitStack() as stack:
                stack.enter_context(file)
                self._check(file, checksum, may_wait=not copies)
                stack.pop_all()

        return find_matching(file, open_copies(), check)

    def _check(
        self, file: OpenedFile, checksum: PayloadEntry, *, may_wait: bool
    ) -> None:
        """Check a file against its checksum, once for each state of it."""
        state = identify_file(os.fstat(file.fileno()))
        path = file.path
        if state in self._faults:
            if (fault := self._faults[state]) is not None:
                message, hint = fault
                raise ReplacedBinaryError(message, path=path, hint=hint)
            return

        self._faults[state] = None
        try:
            self._checks.check(
                checksum,
                MappedFile(file.fileno(), path),
                self._verification,
                may_wait=lambda: may_wait,
                blame=partial(blame_file, path=path),
            )
        except ReplacedBinaryError as error:
            # The error itself would hold the file by its frames.
            self._faults[state] = error.message, error.hint
            raise
