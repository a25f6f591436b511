"""Inputs and outputs of models: `.npz` files and random values. Knows no command."""

from __future__ import annotations

import math
import os
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from epctx_cli import text
from epctx_core.errors import EpctxError, Fail, InvalidArgument, NoSuchFile, PluginError
from epctx_core.ext import Publication

if TYPE_CHECKING:
    from epctx_core import NodeArg

_MOST_BEYOND_FILE = 1 << 30
"""Bytes by which the arrays of a compressed file may exceed the file: deflate expands a
byte to a thousand.
"""
_MOST_MADE = 1 << 27
"""Most elements of a random input."""
_REAL = ("FLOAT", "BFLOAT16", "DOUBLE")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time stamp of every entry of a written file: equal arrays give equal bytes."""
Lengths: TypeAlias = Mapping[str, Sequence[int | str | None]]
"""Lengths of each input; those that are open by name, None without one."""


def make_inputs(
    arguments: Sequence[NodeArg], lengths: Lengths, seed: int
) -> dict[str, np.ndarray]:
    """Return random inputs: floats, and both parts of complex numbers, N(0,1); integers
    0 or 1, booleans; open dimensions are 1.

    Args:
        arguments: the model's inputs.
        lengths: see `merge_lengths`.
        seed: the seed.

    Raises:
        InvalidArgument: an input has a type or a size for which there are no random
            values.
    """
    generator = np.random.default_rng(seed)
    return {
        argument.name: _random_values(
            argument,
            tuple(d if isinstance(d, int) else 1 for d in lengths[argument.name]),
            generator,
        )
        for argument in arguments
    }


def merge_lengths(
    arguments: Sequence[NodeArg], others: Sequence[NodeArg] = ()
) -> Lengths:
    """Return the lengths of each input; what a model leaves open is as long as in
    `others`, the inputs of another one.
    """
    known = {other.name: other.tensor_type.shape or () for other in others}
    merged = {}
    for argument in arguments:
        own = argument.tensor_type.shape or ()
        other = known.get(argument.name, ())
        pairs = zip(own, other if len(other) == len(own) else own, strict=True)
        merged[argument.name] = tuple(
            b if isinstance(b, int) and not isinstance(a, int) else a for a, b in pairs
        )
    return merged


def describe_inputs(inputs: Mapping[str, Any], lengths: Lengths, seed: int) -> str:
    """Return a sentence about random inputs, with the names of the lengths that were
    made up.
    """
    shapes = {
        name: ", ".join(
            str(d) if isinstance(d, int) else f"{text.cut(d or '?')}=1"
            for d in lengths[name]
        )
        for name in inputs
    }
    shown = ", ".join(
        f"{text.cut(name)} {array.dtype}[{shapes[name]}]"
        for name, array in inputs.items()
    )
    return f"Inputs made from seed {seed}: {shown or 'none'} (no --input)."


_OF_SHAPES = re.compile(
    r"\b([Dd]im(ension)?s?|shapes?|broadcast|ax[ie]s|bounds|rank)\b"
)
"""Words of errors about shapes; names of operators begin with a capital letter."""


@contextmanager
def explain_made_lengths(lengths: Lengths) -> Iterator[None]:
    """Replace an error about shapes by one that says which lengths `make_inputs` made
    up.

    Raises:
        Fail: the model does not run with them.
    """
    try:
        yield
    except EpctxError as error:
        made = dict.fromkeys(
            text.cut(d or "?")
            for own in lengths.values()
            for d in own
            if not isinstance(d, int)
        )
        is_of_plugin = isinstance(error, PluginError)
        if not made or is_of_plugin or not _OF_SHAPES.search(error.message):
            raise
        raise Fail(
            f"there are no inputs for the model: its lengths {', '.join(made)} are "
            "open, and it does not run with 1 for each of them.",
            hint="Give those that you use by --free-dimension NAME=LENGTH, or arrays "
            "by --input FILE.npz of epctx run and epctx compare (`-v` shows the "
            "model's own error).",
        ) from error


def _random_values(
    argument: NodeArg, shape: tuple[int, ...], generator: np.random.Generator
) -> np.ndarray:
    expected = argument.tensor_type
    type_name = ""
    if expected.elem_type is not None:
        type_name = onnx.TensorProto.DataType.Name(expected.elem_type)
    if expected.shape is None or not type_name.startswith(
        (*_REAL, "COMPLEX", "INT", "UINT", "BOOL")
    ):
        raise InvalidArgument(
            f"there are no random values for the input {argument.name!r} of type "
            f"{argument.type}.",
            hint="Use --input FILE.npz of epctx run or epctx compare."
            if type_name
            else (
                "A .npz file cannot hold such a value either; run the model with "
                "epctx_core.InferenceSession."
            ),
        )

    if math.prod(shape) > _MOST_MADE:
        raise InvalidArgument(
            f"the input {argument.name!r} of shape {list(shape)} is too large for "
            "random values.",
            hint="Use --input FILE.npz of epctx run or epctx compare.",
        )

    values: np.ndarray
    if type_name.startswith("COMPLEX"):
        real = generator.standard_normal(shape)
        imaginary = generator.standard_normal(shape)
        values = real + 1j * imaginary
    elif type_name.startswith(_REAL):
        precision = np.float64 if type_name == "DOUBLE" else np.float32
        values = generator.standard_normal(shape, dtype=precision)
    else:
        values = generator.integers(0, 2, shape, dtype=np.int8)
    return np.asarray(values).astype(expected.dtype)


def load_inputs(path: str, arguments: Sequence[NodeArg]) -> dict[str, np.ndarray]:
    """Read a `.npz` file; the session checks names, types and shapes.

    Raises:
        NoSuchFile: there is no such file.
        InvalidArgument: it is not a `.npz` file of plain arrays.
    """
    try:
        arrays = _read_arrays(path)
    except FileNotFoundError:
        raise NoSuchFile(f"there is no input file {path!r}.", path=path) from None
    except Exception as error:
        # numpy, its tokenizer, zipfile and zlib raise some twenty kinds between them
        # numpy's message advises to allow pickles, which run any code in the file.
        why = "it holds Python objects." if "allow_pickle" in str(error) else error
        raise InvalidArgument(
            f"{path!r} cannot be read as a .npz file: {why}",
            path=path,
            hint=(
                "Write it with numpy.savez(file, input_name=array, …), without Python "
                "objects."
            ),
        ) from error
    dtypes = {argument.name: argument.tensor_type.dtype for argument in arguments}
    for name, array in arrays.items():
        dtype = dtypes.get(name)
        # Of a type that `.npz` lacks, such as bfloat16.
        if (
            dtype is not None
            and array.dtype.kind == "V"
            and array.dtype.itemsize == dtype.itemsize
        ):
            arrays[name] = array.view(dtype)
    return arrays


def _read_arrays(path: str) -> dict[str, np.ndarray]:
    # A pipe would block, and a device never end.
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - as the user wrote it
        raise TypeError("it is not a regular file.")
    with open(path, "rb") as file:  # noqa: PTH123 - a path as the user wrote it, for the messages
        if not zipfile.is_zipfile(file):
            raise TypeError("it is not an archive of named arrays.")
        with zipfile.ZipFile(file) as archive:
            total = sum(member.file_size for member in archive.infolist())
        limit = _MOST_BEYOND_FILE + os.fstat(file.fileno()).st_size
        if total > limit:
            raise ValueError(
                f"its arrays have {total:,} bytes, and the limit is {limit:,}."
            )
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            # Numpy returns the bytes of another object.
            raise TypeError(f"its member {name!r:.100} is not an array.")
    return arrays


def check_writable(path: str) -> None:
    """Raise if a file cannot be written, before any work is done for it; a missing
    folder is fine.

    Raises:
        InvalidArgument: the path names a folder, or its own folder is not one.
        Fail: its folder is not writable.
    """
    target = Path(path)
    if target.is_dir() or path.endswith(("/", os.sep)):
        raise InvalidArgument(f"{path!r} is a folder, not a file.", path=target)
    Publication.check_folder(target.parent)


def save_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a `.npz` file, whole or not at all.

    Raises:
        Fail: it cannot be written, or a value is not an array.
    """
    target = Path(path)
    # numpy.savez takes names as keyword arguments, so it cannot store one named "file".
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(staged, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                entry = zipfile.ZipInfo(f"{name}.npy", date_time=_EPOCH)
                with archive.open(entry, "w", force_zip64=True) as file:
                    np.lib.format.write_array(
                        file, _storable(name, array), allow_pickle=False
                    )
        staged.replace(target)
    except OSError as error:
        raise Fail(
            f"{path!r} cannot be written: {error.strerror or error}.", path=target
        ) from error
    finally:
        staged.unlink(missing_ok=True)


def _storable(name: str, array: object) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise Fail(
            f"the output {name!r} is not a tensor, so a .npz file cannot hold it.",
            hint="Leave out --output.",
        )
    return array.astype(str) if array.dtype.kind == "O" else array
