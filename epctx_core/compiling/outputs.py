"""Everything that one compile writes, from the first payload to the last rename.

A payload is embedded, goes into a file, or to the host's write callback; the model goes into a file, or to a
function that gets its bytes. Files appear all or none, after all that the host hears of. Knows no EP and no ONNX.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, BinaryIO, Self, TypeAlias

from epctx_core.compiling.report import OutputFile
from epctx_core.errors import EpctxError, Fail, InvalidArgument
from epctx_core.publish import Publication
from epctx_core.registry.guard import describe

if TYPE_CHECKING:
    from types import TracebackType

    from epctx_core.compiling.compile import CompileRequest
    from epctx_core.compiling.destination import Destination
    from epctx_core.context.callbacks import CallbackSink
    from epctx_core.context.node_writer import SerializedModel
    from epctx_core.options import CancellationFlag

STREAM_CHUNK = 64 << 10
"""Bytes that a stream gets at once; the last piece has what is left."""


OpenDelivered: TypeAlias = "Callable[[str], CallbackSink]"
"""`open_delivered(name)` opens where a payload goes that the host's write callback shall get."""

ModelSink: TypeAlias = Callable[[Iterator[memoryview]], None]
"""Takes the bytes of a context model, piece by piece."""


class Outputs:
    """Context manager: the outputs of one compile. What is not finished leaves no file.

    Args:
        destination: where files go.
        request: whether payloads are embedded, and what gets the model and the payloads in place of files.
        cancel: the wish to stop, looked at between pieces.
        final: False for a member of a share group: its binaries are written when the group ends.
        publication: an open one that brings the files to their names together with others, by whoever
            lends it; None for one of its own.

    Attributes:
        files: the names of those that were opened so far, but for the model.
        states: what the system says of the files that were published, but for the model; see `Publication.commit`.
    """

    def __init__(
        self,
        destination: Destination,
        request: CompileRequest,
        cancel: CancellationFlag,
        *,
        final: bool = True,
        publication: Publication | None = None,
    ) -> None:
        self.destination = destination
        self.final = final
        self.embedded = request.embedded
        self._cancel = cancel
        self._request = request
        self._delivered: list[CallbackSink] = []
        self.files: list[str] = []
        self.states: Mapping[str, os.stat_result] = {}
        self._publication = publication
        self._is_lent = publication is not None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Lock the folder, if files go into one, and look once more whether they may.

        Raises:
            NoSuchFile, InvalidArgument, Fail: see `Publication` and `Destination.check`.
        """
        with ExitStack() as stack:
            folder = self.destination.folder
            if not self._is_lent and folder is not None:
                self._publication = stack.enter_context(
                    Publication(folder, before_writing=self._cancel.raise_if_requested)
                )
            self.destination.check_model()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard what was not finished."""
        self._stack.__exit__(kind, error, trace)

    def open_payload(self, name: str) -> BinaryIO:
        """Open where a payload goes.

        Raises:
            Fail: a file of that name belongs to another model.
        """
        if self.embedded:
            from epctx_core.context.callbacks import MemorySink

            return MemorySink()
        if self._request.deliver is None:
            return self._create(name, "the context binary")
        sink = self._request.deliver(name)
        self._delivered.append(sink)
        return sink

    def open_initializers(self, name: str) -> BinaryIO:
        """Open the file for the initializers that stay.

        Raises:
            Fail: a file of that name belongs to another model.
        """
        return self._create(name, "the file for initializers")

    def finish(self, model: SerializedModel, named: Iterable[str] = ()) -> OutputFile | None:
        """Hand over payloads, then the model, then bring all files to their names.

        Args:
            model: its bytes.
            named: files that the host wrote and the model names.

        Returns:
            The model's file, None without one.

        Raises:
            Fail: a callback raised, or the system refused a step.
            InvalidArgument: the host wrote a file under a name that this compile writes.
            ModelLoadCanceled: the host asked to stop.
        """
        for name in named:
            if name in {*self.files, self.destination.model}:
                raise InvalidArgument(
                    f"get_initializer_location_func named the file {name!r}, which this compile writes itself.",
                    hint="Write initializers into a file of another name.",
                )
        for sink in self._delivered:
            self._cancel.raise_if_requested()
            sink.deliver()
        if self._request.sink is not None:
            self._request.sink(self._watched(model.chunks()))
        written: OutputFile | None = None
        if self._publication is not None and self.destination.model is not None:
            digest = hashlib.sha256()
            with self._publication.create(self.destination.model) as file:
                for piece in model.chunks():
                    digest.update(piece)
                    file.write(piece)
            written = OutputFile(path=self.destination.model, bytes=model.size, digest=digest.hexdigest())
        self._cancel.raise_if_requested()
        if self._publication is not None and not self._is_lent and (written is not None or self.files):
            self.states = self._publication.commit(
                models=[] if written is None else [written.path],
                new=[] if written is None or self.destination.replace else [written.path],
            )
        return written

    def _watched(self, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
        for piece in pieces:
            self._cancel.raise_if_requested()
            yield piece

    def _create(self, name: str, what: str) -> BinaryIO:
        if self._publication is None:
            raise InvalidArgument(f"there is no folder for the file {name!r}.")
        file = self._publication.create(name)
        # Looked at once the publication knows whether the name is free: whose file comes later, it keeps.
        self.destination.check_file(name, what)
        self.files.append(name)
        return file


def sized(pieces: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of one size; the last one may be shorter."""
    waiting = bytearray()
    for piece in pieces:
        for at in range(0, len(piece), size):
            waiting += piece[at : at + size]
            if len(waiting) >= size:
                yield bytes(waiting[:size])
                del waiting[:size]
    if waiting:
        yield bytes(waiting)


def to_stream(write: Callable[[bytes], object]) -> ModelSink:
    """Return a sink that hands a model to a host's function in pieces of `STREAM_CHUNK` bytes.

    What the function raises becomes a Fail that carries its text.
    """

    def sink(pieces: Iterator[memoryview]) -> None:
        for chunk in sized(pieces, STREAM_CHUNK):
            try:
                write(chunk)
            except EpctxError:
                raise
            except Exception as error:
                raise Fail(
                    f"the write function of compile_to_stream raised: {describe(error)}.",
                    hint="Its own exception is the cause of this error.",
                ) from error

    return sink
