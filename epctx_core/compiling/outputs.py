"""Everything that one compile writes, from the first payload to the last rename.

A payload is embedded, goes into a file, or to the host's write callback; the model goes into a file, or to a
function that gets its bytes. Files appear all or none, after all that the host hears of. Knows no EP and no ONNX.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO, Protocol, Self, TypeAlias

from epctx_core.compiling.report import OutputFile
from epctx_core.errors import EpctxError, Fail, InvalidArgument
from epctx_core.publish import Publication
from epctx_core.registry.guard import describe

if TYPE_CHECKING:
    from types import TracebackType

    from epctx_core.compiling.compile import CompileRequest
    from epctx_core.compiling.destination import Destination
    from epctx_core.context.embedding import SerializedModel
    from epctx_core.options import CancellationFlag

STREAM_CHUNK = 64 << 10
"""Bytes that a stream gets at once; the last piece has what is left."""


class DeliveredSink(Protocol):
    """Where a payload is collected for the host; see `epctx_core.context.callbacks.CallbackSink`."""

    def write(self, data: memoryview, /) -> int:
        """Append bytes."""

    def deliver(self) -> None:
        """Hand over all that was written."""


OpenDelivered: TypeAlias = Callable[[str], DeliveredSink]
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
        self._model_sink = request.sink
        self._open_delivered = request.deliver
        self._delivered: list[DeliveredSink] = []
        self._files: list[str] = []
        self.states: Mapping[str, os.stat_result] = {}
        self._publication = publication
        self._is_lent = publication is not None

    def __enter__(self) -> Self:
        """Lock the folder, if files go into one, and look once more whether they may.

        Raises:
            NoSuchFile, InvalidArgument, Fail: see `Publication` and `Destination.check`.
        """
        if self._is_lent:
            self.destination.check_model()
        elif self.destination.folder is not None:
            publication = Publication(self.destination.folder, before_writing=self._cancel.raise_if_requested)
            self._publication = publication.__enter__()
            try:
                self.destination.check_model()
            except BaseException as error:
                publication.__exit__(type(error), error, error.__traceback__)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard what was not finished."""
        if self._publication is not None and not self._is_lent:
            self._publication.__exit__(kind, error, trace)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that were opened so far, but for the model."""
        return tuple(self._files)

    @property
    def delivers(self) -> bool:
        """Whether payloads go to the host's write callback."""
        return self._open_delivered is not None and not self.embedded

    def payload_name(self, suffix: str, name: str | None) -> str:
        """Return what `ep_cache_context` calls a payload that is not embedded."""
        return self.destination.binary_name(suffix, name)

    def open_payload(self, name: str) -> BinaryIO:
        """Open where a payload goes.

        Raises:
            Fail: a file of that name belongs to another model.
        """
        if self.embedded:
            return io.BytesIO()
        if self._open_delivered is None or not self.delivers:
            return self._create(name, self.destination.check_binary)
        sink = self._open_delivered(name)
        self._delivered.append(sink)
        return sink  # type: ignore[return-value]

    def open_initializers(self, name: str) -> BinaryIO:
        """Open the file for the initializers that stay.

        Raises:
            Fail: a file of that name belongs to another model.
        """
        return self._create(name, self.destination.check_initializers)

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
        self._refuse_own(named)
        for sink in self._delivered:
            self._cancel.raise_if_requested()
            sink.deliver()
        written = self._write_model(model)
        self._cancel.raise_if_requested()
        if self._publication is not None and not self._is_lent and (written is not None or self._files):
            self.states = self._publication.commit(
                binaries=self._files,
                models=[] if written is None else [written.path],
                new=[] if written is None or self.destination.replace else [written.path],
            )
        return written

    def _write_model(self, model: SerializedModel) -> OutputFile | None:
        if self._model_sink is not None:
            self._model_sink(self._watched(model.chunks()))
        if self._publication is None or self.destination.model is None:
            return None
        digest = hashlib.sha256()
        with self._publication.create(self.destination.model) as file:
            for piece in model.chunks():
                digest.update(piece)
                file.write(piece)
        return OutputFile(path=self.destination.model, bytes=model.size, digest=digest.hexdigest())

    def _watched(self, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
        for piece in pieces:
            self._cancel.raise_if_requested()
            yield piece

    def _create(self, name: str, check: Callable[[str], None]) -> BinaryIO:
        if self._publication is None:
            raise InvalidArgument(f"there is no folder for the file {name!r}.")
        file = self._publication.create(name)
        # Looked at once the publication knows whether the name is free: whose file comes later, it keeps.
        check(name)
        self._files.append(name)
        return file

    def _refuse_own(self, named: Iterable[str]) -> None:
        own = {*self._files, self.destination.model}
        for name in named:
            if name in own:
                raise InvalidArgument(
                    f"get_initializer_location_func named the file {name!r}, which this compile writes itself.",
                    hint="Write initializers into a file of another name.",
                )


def sized(pieces: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of one size; the last one may be shorter."""
    waiting = bytearray()
    for piece in pieces:
        start = 0
        if waiting:
            start = min(size - len(waiting), len(piece))
            waiting += piece[:start]
            if len(waiting) < size:
                continue
            yield bytes(waiting)
            waiting.clear()
        whole = start + (len(piece) - start) // size * size
        for at in range(start, whole, size):
            yield bytes(piece[at : at + size])
        waiting += piece[whole:]
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
