"""Where a model's external weights are looked for: beside the model, or in the folder that the host named."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.manifest import ReplacedBinaryError, damaged
from epctx_core.context.paths import ModelFolder, OpenedFile
from epctx_core.context.receipts import IN_PLACE, DigestChecks, file_receipt, is_noted, note_checked
from epctx_core.context.unfinished import interrupted_copies
from epctx_core.errors import InvalidArgument, NoSuchFile
from epctx_core.graph.mapping import FileIdentity, MappedFile
from epctx_core.graph.model_io import text_of
from epctx_core.options import Verification

if TYPE_CHECKING:
    from epctx_core.context.initializers_file import Seal
    from epctx_core.context.manifest import Segment

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"


class WeightsFolder:
    """Opens the files of weights that one model names.

    Args:
        model: its path, None for a model from bytes.
        option: the folder that the host named, which replaces the model's.
        seal: how the file is sealed that the model's own compile wrote, if one did.
        verification: how far the sealed file is checked; whole, before it is used, in any mode but HEAD and ONCE.
        checks: of a load, which go on beside it.

    Raises:
        NoSuchFile: the option names no folder.
    """

    def __init__(
        self,
        model: Path | None,
        option: str | None,
        *,
        seal: Seal | None = None,
        verification: Verification = Verification.HEAD,
        checks: DigestChecks = IN_PLACE,
    ) -> None:
        self._seal = seal
        self._verification = verification
        self._checks = checks
        self._faults: dict[FileIdentity, str] = {}
        self._own = None if model is None else ModelFolder(model.parent, model)
        self._own_name = "" if model is None else model.name
        self._folder: ModelFolder | None = None
        if option is not None:
            if not Path(option).is_dir():
                raise NoSuchFile(f"{FOLDER_OPTION} names {option!r}, which is no folder.", path=option)
            self._folder = ModelFolder(Path(option))
        elif model is not None:
            self._folder = self._own

    def open(self, location: str, tensor: str) -> OpenedFile:
        """Open a file of weights; see `epctx_core.graph.weights.OpenExternal`."""
        tensor = text_of(tensor)
        # Weights of an `.ort` file lie in itself, wherever those in other files are.
        if location == self._own_name and self._own is not None:
            return self._own.open(location, what="the model", node=tensor)
        if self._folder is None:
            raise InvalidArgument(
                f"the model given as bytes keeps the weight {tensor!r} in the file {location!r}, "
                "and bytes have no folder.",
                hint=f"Set the session option {FOLDER_OPTION!r}.",
            )
        file = self._folder.open(location, what="the weights file", node=tensor)
        if self._seal is not None and os.path.normpath(location) == self._seal.name:
            return self._sealed(file, self._seal, self._folder.folder)
        return file

    def status(self, location: str) -> os.stat_result | None:
        """Return what the system says of the file that a name means now, without opening it; None if there is none."""
        if location == self._own_name and self._own is not None:
            return self._own.status(location, what="the model")
        return None if self._folder is None else self._folder.status(location, what="the weights file")

    def _sealed(self, file: OpenedFile, seal: Seal, folder: Path) -> OpenedFile:
        """Return the file that a seal means: this one, or what an unfinished publication kept of it."""
        copies = list(interrupted_copies(folder, seal.name))
        fault = self._fault(file, seal, beside=not copies)
        if not fault:
            return file
        for copy in copies:
            with suppress(OSError):
                kept = OpenedFile(os.open(copy, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)), str(copy))
                if not self._fault(kept, seal, beside=False):
                    return kept
        raise _refused(seal, fault, file.path)

    def _fault(self, file: OpenedFile, seal: Seal, *, beside: bool) -> str:
        """Return what of a file is not as its seal says, empty if nothing; the file is closed if something is."""
        with ExitStack() as stack:
            stack.enter_context(file)
            state = FileIdentity.of(os.fstat(file.fileno()))
            if state not in self._faults:
                self._faults[state] = self._compared(file, seal, beside=beside)
            if not self._faults[state]:
                stack.pop_all()
            return self._faults[state]

    def _compared(self, file: OpenedFile, seal: Seal, *, beside: bool) -> str:
        if not seal.is_on(file):
            return ": its size or its end differs"
        if self._verification is Verification.HEAD:
            return ""
        once = self._verification is Verification.ONCE
        mapped, begun = MappedFile(file.fileno(), file.path), time.time_ns()
        if once and is_noted(file_receipt(mapped.status, seal.digest)):
            return ""
        if once and beside and self._checks.is_beside(seal.size):
            path = file.path
            self._checks.begin(
                mapped, seal.segments, seal.digest, lambda segment: _refused(seal, _differing(segment), path)
            )
            return ""
        segment = next(damaged(mapped.view, seal.segments, mapped.forget), None)
        if segment is None and once:
            note_checked(mapped, seal.digest, begun)
        return "" if segment is None else _differing(segment)


def _refused(seal: Seal, fault: str, path: str) -> ReplacedBinaryError:
    return ReplacedBinaryError(
        f"the weights file {seal.name!r} is not the one that the model was written with{fault}.",
        path=path,
        hint="The file does not belong to this model or was cut; fetch both again, or compile again.",
    )


def _differing(segment: Segment) -> str:
    return f": its bytes {segment.offset:,} to {segment.offset + segment.length:,} have another digest"
