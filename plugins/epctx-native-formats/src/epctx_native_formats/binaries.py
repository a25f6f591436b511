"""Descriptions of vendors' binaries, and the readers that make them."""

from __future__ import annotations

import logging
import mmap
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    NoSuchFile,
    NotImplementedByProvider,
    PluginError,
    convert_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import BinaryIO, Self, TypeVar

    from epctx_isolation import IsolatedFunctions

    from epctx_core.plugin import TensorType, ValueInfo

    T = TypeVar("T")

_log = logging.getLogger("epctx.native_formats")
PathInput: TypeAlias = "str | os.PathLike[str]"
GROUP = "epctx.native_formats"
"""Entry points of formats: by the format's name a module with the functions of
`NativeFormat`.
"""
HEAD = 4096
"""Bytes at the beginning by which a format is recognised."""
SECONDS = 60.0
MAX_BYTES = 1 << 28


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Quantisation of a tensor: `real = scale * (quantised - zero_point)`.

    Attributes:
        scales: one, or one for each index of the axis.
        zero_points: as many.
        axis: None for one scale of the whole tensor.
        bits: of a value, where they are fewer than its type's.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None = None
    bits: int | None = None


@dataclass(frozen=True, kw_only=True)
class NativeTensor:
    """Input or output of a graph.

    Attributes:
        name: as the vendor's runtime knows it.
        type: in the vendor's words, such as `UFIXED_POINT_8`.
        element_type: ONNX's, such as `UINT8`; empty where ONNX has none.
        shape: its lengths.
        quantization: of its values; None for those that are not quantised.
        note: what else limits its use, such as a quantisation that ONNX lacks.
    """

    name: str
    type: str
    element_type: str
    shape: tuple[int, ...]
    quantization: Quantization | None = None
    note: str = ""

    def __str__(self) -> str:
        return f"{self.type}[{','.join(map(str, self.shape))}]"

    def fits(self, given: TensorType) -> bool:
        """Return whether a value of a type can be given to the tensor; what the type
        leaves open fits. Vendors' formats have no scalars but tensors of one element.
        """
        from epctx_core.plugin.protos import ELEMENT_TYPES

        names = {number: name.upper() for number, name in ELEMENT_TYPES.items()}
        element_type = names.get(given.elem_type or 0, "")
        if self.element_type not in ("", element_type) and given.elem_type is not None:
            return False
        lengths = given.shape
        if lengths is None or (lengths == () and self.shape in {(), (1,)}):
            return True
        return len(lengths) == len(self.shape) and all(
            not isinstance(length, int) or length == own
            for length, own in zip(lengths, self.shape, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class NativeGraph:
    """Graph of a binary.

    Attributes:
        name: by which the vendor's runtime finds it.
        inputs: in their order.
        outputs: in their order.
    """

    name: str
    inputs: tuple[NativeTensor, ...]
    outputs: tuple[NativeTensor, ...]

    def find_mismatches(
        self, inputs: Sequence[ValueInfo], outputs: Sequence[ValueInfo]
    ) -> Iterator[str]:
        """Yield how the values of an EPContext node differ from those of the graph, to
        which they belong by name, or by position where the names are others.

        Args:
            inputs: of the node.
            outputs: of the node.
        """
        for label, values, tensors in (
            ("input", inputs, self.inputs),
            ("output", outputs, self.outputs),
        ):
            by_name = {tensor.name: tensor for tensor in tensors}
            if len(values) != len(tensors):
                yield (
                    f"it has {len(values)} {label}s and the graph {len(tensors)}: "
                    f"{', '.join(by_name)}"
                )
                continue
            has_names = {value.name for value in values} == by_name.keys()
            for value, at_position in zip(values, tensors, strict=True):
                tensor = by_name[value.name] if has_names else at_position
                if not tensor.fits(value.type):
                    yield (
                        f"its {label} {value.name!r} is {value.type}, and the graph's "
                        f"{tensor.name!r} is {tensor}"
                    )


@dataclass(frozen=True, kw_only=True)
class NativeBinary:
    """Description of a vendor's binary.

    Attributes:
        format: name of the format.
        title: the format in words.
        bytes: its size.
        source: `source` of EPContext nodes that have such a payload; empty for what no
            EP loads.
        sdk: version of the SDK that made it; empty if unknown.
        target: the device it is for; empty if unknown.
        facts: what else is known, by label.
        graphs: empty where they are not known.
        parts: names and sizes of the files or blobs inside.
    """

    format: str
    title: str
    bytes: int
    source: str = ""
    sdk: str = ""
    target: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    graphs: tuple[NativeGraph, ...] = ()
    parts: Mapping[str, int] = field(default_factory=dict)


class NativeFormat(Protocol):
    """Reader of a format: a module with these functions."""

    def matches(self, head: bytes) -> bool:
        """Return whether a binary begins as those of the format do.

        Args:
            head: its first 4,096 bytes, or all of it.
        """

    def read(
        self, content: memoryview, name: str, reader: BinaryReader
    ) -> NativeBinary | None:
        """Return the description of a binary; None if it is of another format.

        Args:
            content: the binary.
            name: what errors call it.
            reader: calls a vendor's library, which runs in another process only.

        Raises:
            EpctxError: it is damaged, of a version that is not read, or the vendor's
                library is not installed.
        """


class BinaryReader:
    """Reads binaries; vendors' libraries run in a process of their own, which serves
    many and is started anew after one that ended it.

    Examples:
        >>> with BinaryReader() as reader:
        ...     reader.describe("model_qnn.bin").sdk
        'v2.51.0.260929181845'
    """

    def __init__(self) -> None:
        self._functions: IsolatedFunctions | None = None
        self._is_fresh = True
        self._open: tuple[memoryview, str] | None = None

    @cached_property
    def _formats(self) -> Sequence[tuple[str, NativeFormat]]:
        # Once for all binaries: every installed package is looked at.
        return list(list_formats())

    @convert_errors("reading the binary")
    def describe(
        self, binary: PathInput | BinaryIO | memoryview, name: str = ""
    ) -> NativeBinary | None:
        """Return the description of a binary; None if its format is not known.

        Args:
            binary: its path, the open file, or its bytes.
            name: what errors call it; by default the path.

        Raises:
            NoSuchFile: there is no such file.
            InvalidGraph: the binary is damaged.
            NotImplementedByProvider: it is of a version that is not read, or what reads
                it is not installed.
            Fail: it cannot be read, or no process could be started for it.
            PluginError: the format's reader is broken.
        """
        if isinstance(binary, memoryview):
            return self._describe(binary, name or "the binary")
        if not isinstance(binary, (str, os.PathLike)):
            return self._describe_file(binary.fileno(), name or str(binary.name))
        # A pipe would wait for its writer.
        try:
            descriptor = os.open(binary, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError as error:
            raise NoSuchFile(f"there is no file {binary}.", path=binary) from error
        try:
            return self._describe_file(descriptor, name or os.fspath(binary))
        finally:
            os.close(descriptor)

    def _describe_file(self, descriptor: int, name: str) -> NativeBinary | None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"{name} is a folder or a device, not a file.")
        if not status.st_size:
            return None
        # Not closed here: an error may keep what was read of it.
        content = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        self._open = content, f"/proc/{os.getpid()}/fd/{descriptor}"
        try:
            return self._describe(content, name)
        finally:
            self._open = None

    def share(self, content: memoryview) -> memoryview | str:
        """Return a binary as another process gets it: the path of the open file, which
        it maps, or bytes, which are copied into memory that both have.

        Args:
            content: what a format's `read` gets.
        """
        is_file = self._open is not None and content is self._open[0]
        if self._open is not None and is_file and Path(self._open[1]).exists():
            return self._open[1]
        return content

    def _describe(self, content: memoryview, name: str) -> NativeBinary | None:
        head = bytes(content[:HEAD])
        for label, native_format in self._formats:
            try:
                if native_format.matches(head):
                    return native_format.read(content, name, self)
            except EpctxError:
                raise
            except Exception as error:
                raise PluginError(
                    f"the reader {label!r} of binaries failed over {name}: {error!r}.",
                    hint=f"Report it with the binary to the package of {GROUP}.",
                ) from error
        return None

    def call(
        self, function: Callable[..., Any], *arguments: Any, name: str, result: type[T]
    ) -> T:
        """Call a function in the other process; return its result.

        Args:
            function: the function, which another process can import.
            arguments: its arguments.
            name: what errors call the binary.
            result: the class of its result, a frozen dataclass.

        Raises:
            InvalidGraph: the process ended over it.
            Fail: it could not be started, or took too long.
            EpctxError: the function raised it.
        """
        functions = self._functions = self._functions or _make_process()
        was_fresh = self._is_fresh
        self._is_fresh = False
        try:
            return functions.call(function, *arguments, result=result)
        except EpctxError as error:
            end = functions.describe_end()
            self._is_fresh = bool(end)
            if end and not was_fresh:
                # What it read before may have harmed it.
                return self.call(function, *arguments, name=name, result=result)
            # One that took long says nothing of the binary.
            if end and "longer than" not in end:
                raise InvalidGraph(
                    f"{name} cannot be read: the process of the vendor's library is "
                    f"gone; {end}",
                    hint="The binary is damaged, or meant to harm: fetch it again.",
                ) from error
            raise

    def close(self) -> None:
        """End the other process."""
        if self._functions is not None:
            self._functions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


def _make_process() -> IsolatedFunctions:
    try:
        from epctx_isolation import IsolatedFunctions
    except ModuleNotFoundError as error:
        raise NotImplementedByProvider(
            "a vendor's library runs in another process only, and epctx-isolation, "
            "which starts it, is not installed.",
            hint="pip install epctx-isolation",
        ) from error
    return IsolatedFunctions(seconds=SECONDS, max_bytes=MAX_BYTES)


def list_formats() -> Iterator[tuple[str, NativeFormat]]:
    """Yield the installed formats with their names; one that cannot be imported is left
    out, with a warning.
    """
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            yield entry.name, entry.load()
        except Exception as error:  # noqa: BLE001 - others read their binaries
            _log.warning(
                "the reader %r of binaries cannot be imported: %r. Reinstall or remove "
                "the package with %s.",
                entry.name,
                error,
                entry.value,
            )


def describe_binary(binary: PathInput | memoryview) -> NativeBinary | None:
    """Return the description of one binary; see `BinaryReader.describe`."""
    with BinaryReader() as reader:
        return reader.describe(binary)
