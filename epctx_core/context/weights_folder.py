"""Folder in which a model's external weights lie, and the seal of the file with
initializers that a compile wrote.

The file for the initializers that a compile leaves in the model ends in a seal: a
digest over the digests of all that is in it. The model's metadata has the same, so that
a few bytes distinguish the file from that of another compile. It also has the digest of
each weight, to check the whole file.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.context.manifest import (
    INITIALIZERS,
    PayloadEntry,
    ReplacedBinaryError,
    Segment,
    dump_segments,
    find_damage,
    read_json,
    read_segments,
)
from epctx_core.context.paths import ModelFolder
from epctx_core.context.receipts import (
    IN_PLACE,
    DigestChecks,
    is_noted,
    make_file_receipt,
)
from epctx_core.context.unfinished import find_interrupted_copies
from epctx_core.errors import InvalidArgument, NoSuchFile
from epctx_core.graph.mapping import (
    FileIdentity,
    MappedFile,
    OpenedFile,
    OpenedFiles,
    identify_file,
)
from epctx_core.graph.model_io import decode_name
from epctx_core.options import Verification

if TYPE_CHECKING:
    from onnx import ModelProto

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"


def strip_seal(entry: PayloadEntry) -> PayloadEntry:
    """Return the entry without its seal of a file that ends in one."""
    *segments, seal = entry.segments
    return replace(entry, segments=tuple(segments), size=entry.size - seal.length)


def write_seal(model: ModelProto, entry: PayloadEntry | None) -> None:
    """Write the seal of the file for initializers into a model's metadata; None if it
    has no such file.
    """
    others = [p for p in model.metadata_props if p.key != INITIALIZERS]
    del model.metadata_props[:]
    model.metadata_props.extend(others)
    if entry is not None:
        sealed = strip_seal(entry)
        content = {
            "bytes": entry.size,
            "digest": sealed.root,
            "name": entry.name,
            "segments": dump_segments(sealed.segments),
        }
        model.metadata_props.add(
            key=INITIALIZERS, value=json.dumps(content, separators=(",", ":"))
        )


def read_seal(model: ModelProto) -> PayloadEntry | None:
    """Return the entry without its seal of a model's file for initializers, None
    without such a file.

    Raises:
        InvalidGraph: the metadata is damaged.
    """
    return read_json(model, INITIALIZERS, _read_entry)


def _read_entry(data: Any) -> PayloadEntry:
    segments = read_segments(data["segments"])
    size = sum(segment.length for segment in segments)
    entry = PayloadEntry(
        name=str(data["name"]), embedded=False, size=size, segments=segments
    )
    if (data["bytes"], data["digest"]) != (size + len(make_mark(entry)), entry.root):
        raise ValueError("size and digest are not those of the segments")
    return entry


def make_mark(entry: PayloadEntry) -> bytes:
    """Return the seal of a file with these contents."""
    return f"epctx initializers {entry.root}\n".encode()


class WeightsFolder:
    """Folder of the files of weights that one model names.

    Args:
        model: its path, None for a model from bytes.
        option: the folder that the host named, which replaces the model's.
        seal: what is before the seal in the file that the model's own compile wrote, if
            one did; see `read_seal`.
        verification: how far the sealed file is checked; whole, before it is used, in
            any mode but HEAD and ONCE.
        checks: of a load, which go on beside it.
        opened: the model's own file, which may have weights; gets the others.

    Raises:
        NoSuchFile: the folder does not exist.
    """

    def __init__(
        self,
        model: Path | None,
        option: str | None,
        *,
        seal: PayloadEntry | None = None,
        verification: Verification = Verification.HEAD,
        checks: DigestChecks = IN_PLACE,
        opened: OpenedFiles | None = None,
    ) -> None:
        self._opened = opened or OpenedFiles()
        self._seal = seal
        self._verification = verification
        self._checks = checks
        self._faults: dict[FileIdentity, ReplacedBinaryError | None] = {}
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
            own = self._opened.model
            file = (
                self._own.open(location, what="the model", node=tensor)
                if own is None
                else OpenedFile(os.dup(own.fileno()), os.path.realpath(own.path))
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
        if self._seal is not None and os.path.normpath(location) == self._seal.name:
            # Its seal says which model it belongs to.
            file = self._find_sealed(file, self._seal, self._folder.folder)
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

    def _find_sealed(
        self, file: OpenedFile, seal: PayloadEntry, folder: Path
    ) -> OpenedFile:
        """Return the file of a seal: this one, or one of an unfinished publication."""
        copies = list(find_interrupted_copies(folder, seal.name))
        try:
            return self._check_sealed(file, seal, beside=not copies)
        except ReplacedBinaryError:
            for copy in copies:
                with suppress(OSError, ReplacedBinaryError):
                    kept = os.open(copy, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                    return self._check_sealed(
                        OpenedFile(kept, str(copy)), seal, beside=False
                    )
            raise

    def _check_sealed(
        self, file: OpenedFile, seal: PayloadEntry, *, beside: bool
    ) -> OpenedFile:
        """Return a file that matches its seal; another one is closed, and checked only
        once.
        """
        with ExitStack() as stack:
            stack.enter_context(file)
            state = identify_file(os.fstat(file.fileno()))
            if state not in self._faults:
                self._faults[state] = None
                try:
                    self._verify(file, seal, beside=beside)
                except ReplacedBinaryError as fault:
                    self._faults[state] = fault
            if (known := self._faults[state]) is not None:
                raise known.with_traceback(None)
            stack.pop_all()
        return file

    def _verify(self, file: OpenedFile, seal: PayloadEntry, *, beside: bool) -> None:
        mark = make_mark(seal)
        is_whole = os.fstat(file.fileno()).st_size == seal.size + len(mark)
        if is_whole:
            file.seek(seal.size)
        if not is_whole or file.read(len(mark)) != mark:
            raise _mismatch_error(seal, "its size or its end differs", file.path)
        if self._verification is Verification.HEAD:
            return
        mapped = MappedFile(file.fileno(), file.path)
        path = file.path

        def refuse(segment: Segment) -> ReplacedBinaryError:
            end = segment.offset + segment.length
            return _mismatch_error(
                seal,
                f"its bytes {segment.offset:,} to {end:,} have another digest",
                path,
            )

        if self._verification is not Verification.ONCE:
            for segment in find_damage(mapped.view, seal.segments, mapped.forget):
                raise refuse(segment)
        elif not is_noted(make_file_receipt(mapped.status, seal.root)):
            beside = beside and self._checks.is_beside(seal.size)
            self._checks.check(mapped.view, mapped, seal, refuse, beside=beside)


def _mismatch_error(seal: PayloadEntry, fault: str, path: str) -> ReplacedBinaryError:
    return ReplacedBinaryError(
        f"the weights file {seal.name!r} is not the one that the model was written "
        f"with: {fault}.",
        path=path,
        hint=(
            "The file does not belong to this model or was cut; fetch both again, or "
            "compile again."
        ),
    )
