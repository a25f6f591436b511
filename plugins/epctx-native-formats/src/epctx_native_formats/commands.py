"""`epctx wrap`, and what `epctx inspect` says of vendors' binaries."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_cli.command import (
    CommandParser,
    Console,
    ExitCode,
    add_common,
    byte_size,
    counted,
)

from epctx_core.errors import EpctxError, InvalidArgument, one_line
from epctx_native_formats.binaries import BinaryReader, NativeBinary

if TYPE_CHECKING:
    from typing import BinaryIO

    from epctx_native_formats.binaries import NativeTensor

_MOST_PARTS = 20
"""Blobs or files inside a binary that are listed without `-v`."""


@dataclass(frozen=True, kw_only=True)
class BinaryResult:
    """Result of `epctx inspect` of a vendor's binary.

    Attributes:
        model: the binary as it was named.
        binary: its description.
    """

    model: str
    binary: NativeBinary


@dataclass(frozen=True, kw_only=True)
class PayloadsResult:
    """Part of the result of `epctx inspect` of a context model, where
    epctx-native-formats is installed.

    Attributes:
        binaries: descriptions of the payloads that are binaries of vendors, by the name
            of the file, or of the node in which one is embedded.
        not_read: reasons why others were not described, by the same names.
    """

    binaries: dict[str, NativeBinary]
    not_read: dict[str, str]


def inspect_binary(name: str, console: Console) -> bool:
    """Print what is in a vendor's binary; return whether it is one."""
    if not Path(name).is_file():
        return False
    with BinaryReader() as reader, console.progress("reading the file"):
        binary = reader.describe(name)
    if binary is None:
        return False
    _print_binary(name, binary, console)
    console.result(BinaryResult(model=name, binary=binary))
    return True


def inspect_payloads(
    payloads: Iterable[tuple[str, BinaryIO | memoryview]], console: Console
) -> PayloadsResult:
    """Print what is in the payloads of a context model that are vendors' binaries.

    Args:
        payloads: each with the name of its file, or of the node that holds it.
        console: prints it.
    """
    binaries: dict[str, NativeBinary] = {}
    not_read = {}
    with BinaryReader() as reader:
        for name, content in payloads:
            try:
                binary = reader.describe(content, name)
            except EpctxError as error:
                not_read[name] = one_line(f"{error.message} {error.hint or ''}".strip())
            else:
                if binary is not None:
                    binaries[name] = binary
    for name, binary in binaries.items():
        console.say()
        _print_binary(name, binary, console)
    for reason in not_read.values():
        console.say(f"\nA payload could not be described: {reason}")
    return PayloadsResult(binaries=binaries, not_read=not_read)


def _print_binary(name: str, binary: NativeBinary, console: Console) -> None:
    maker = f", made by {binary.sdk}" if binary.sdk else ""
    target = f", for {binary.target}" if binary.target else ""
    words = f"{name}: {binary.title}, {byte_size(binary.bytes)}{maker}{target}"
    console.say(one_line(words))
    console.table(("", ""), [*binary.facts.items()])
    for graph in binary.graphs:
        rows = [
            (kind, tensor.name, str(tensor), _describe_quantization(tensor))
            for kind, tensors in (("input", graph.inputs), ("output", graph.outputs))
            for tensor in tensors
        ]
        columns = ("", "name", "type", "quantisation")
        console.table(
            columns, rows, title=one_line(f"Graph {graph.name}".rstrip() + ":")
        )

    shown = None if console.verbose else _MOST_PARTS
    parts = [(part, byte_size(size)) for part, size in binary.parts.items()]
    console.table(("inside", "size"), parts[:shown])
    if left := len(parts) - len(parts[:shown]):
        console.say(f"  and {counted(left, 'more part')}; see -v")


def _describe_quantization(tensor: NativeTensor) -> str:
    given = tensor.quantization
    if given is None:
        return tensor.note
    bits = f", {given.bits} bits" if given.bits else ""
    if given.axis is not None or len(given.scales) != 1:
        return f"{len(given.scales)} scales along axis {given.axis}{bits}"
    return f"scale {given.scales[0]:.6g}, zero point {given.zero_points[0]}{bits}"


def add_wrap_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx wrap`."""
    parser.add_argument(
        "binary", metavar="NATIVE", help="a vendor's binary, such as a .bin of QNN"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help="the model to write; the binary goes into its folder",
    )
    parser.add_argument(
        "--graph",
        action="append",
        default=[],
        metavar="NAME",
        help="a graph that gets an EPContext node; may be repeated (default: the only "
        "one)",
    )
    parser.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="TENSOR=NAME",
        help="the name of an input or output in the model; may be repeated",
    )
    parser.add_flag(
        "--float",
        "make quantised inputs and outputs float32, by QuantizeLinear and "
        "DequantizeLinear nodes",
    )
    parser.add_flag("--embed", "put the binary into the model")
    add_common(parser)
    parser.set_defaults(run=run_wrap)


def run_wrap(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Write the model, and list the files."""
    from epctx_native_formats.wrapping import wrap_binary

    with console.progress("wrapping"):
        report = wrap_binary(
            arguments.binary,
            arguments.output,
            graphs=arguments.graph,
            rename=_parse_names(arguments.rename),
            as_float=arguments.float,
            embed=arguments.embed,
        )
    # What wraps needs the package, and has refused without it.
    from epctx_files.commands import show_files

    return show_files(report, console)


def _parse_names(texts: list[str]) -> Mapping[str, str]:
    names = {}
    for text in texts:
        tensor, _, name = text.partition("=")
        if not tensor or not name:
            raise InvalidArgument(
                f"--rename {text!r:.200} is not TENSOR=NAME.",
                hint="Write the tensor's name in the binary, =, and the new name.",
            )
        names[tensor] = name
    return names
