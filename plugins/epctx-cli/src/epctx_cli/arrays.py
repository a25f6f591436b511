"""A model's inputs and outputs as files and as made-up values. Knows arrays, knows no command."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from epctx_core.errors import Fail, InvalidArgument, NoSuchFile
from epctx_core.ext import check_folder

if TYPE_CHECKING:
    from epctx_core import NodeArg

_MOST_BEYOND_FILE = 1 << 30
"""Bytes by which the arrays of a compressed file may be larger than the file: deflate makes a thousand of one."""
_MOST_MADE = 1 << 27
"""Elements of an input for which values are made up."""
_REAL = ("FLOAT", "BFLOAT16", "DOUBLE")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every entry of a file that is written: same arrays, same bytes."""


def make_inputs(arguments: Sequence[NodeArg], seed: int) -> dict[str, np.ndarray]:
    """Make values: floats, and both parts of complex numbers, N(0,1); integers 0 or 1, booleans; open dimensions are 1.

    Raises:
        InvalidArgument: an input of which no values can be made.
    """
    generator = np.random.default_rng(seed)
    return {argument.name: _made(argument, generator) for argument in arguments}


def _made(argument: NodeArg, generator: np.random.Generator) -> np.ndarray:
    wanted = argument.tensor_type
    kind = "" if wanted.elem_type is None else onnx.TensorProto.DataType.Name(wanted.elem_type)
    if wanted.shape is None or not kind.startswith((*_REAL, "COMPLEX", "INT", "UINT", "BOOL")):
        raise InvalidArgument(
            f"no values can be made for the input {argument.name!r}, which is {argument.type}.",
            hint="Give the inputs to epctx run or epctx compare with --input FILE.npz."
            if kind
            else "A .npz file cannot hold such a value either: run the model with epctx_core.InferenceSession.",
        )
    shape = tuple(d if isinstance(d, int) else 1 for d in wanted.shape)
    if math.prod(shape) > _MOST_MADE:
        raise InvalidArgument(
            f"no values are made for the input {argument.name!r} of shape {list(shape)}.",
            hint="Give the inputs to epctx run or epctx compare with --input FILE.npz.",
        )
    values: np.ndarray
    if kind.startswith("COMPLEX"):
        values = generator.standard_normal(shape) + 1j * generator.standard_normal(shape)
    elif kind.startswith(_REAL):
        values = generator.standard_normal(shape, dtype=np.float64 if kind == "DOUBLE" else np.float32)
    else:
        values = generator.integers(0, 2, shape, dtype=np.int8)
    return np.asarray(values).astype(wanted.dtype)


def load_inputs(path: str, arguments: Sequence[NodeArg]) -> dict[str, np.ndarray]:
    """Read a `.npz` file; names, types and shapes are checked by the session that gets them.

    Raises:
        NoSuchFile: there is none.
        InvalidArgument: it is no `.npz` file of plain arrays.
    """
    try:
        arrays = _stored(path)
    except FileNotFoundError:
        raise NoSuchFile(f"there is no input file {path!r}.", path=path) from None
    except Exception as error:  # numpy, its tokenizer, zipfile and zlib raise some twenty kinds between them
        # numpy's own words advise to allow pickles, that is to run whatever the file says.
        why = "it holds Python objects." if "allow_pickle" in str(error) else error
        raise InvalidArgument(
            f"{path!r} cannot be read as a .npz file: {why}",
            path=path,
            hint="Write it with numpy.savez(file, input_name=array, …), without Python objects.",
        ) from error
    wanted = {argument.name: argument.tensor_type.dtype for argument in arguments}
    return {name: _retyped(array, wanted.get(name)) for name, array in arrays.items()}


def _stored(path: str) -> dict[str, np.ndarray]:
    with open(path, "rb") as file:  # noqa: PTH123 - a path as the user wrote it, for the messages
        if not zipfile.is_zipfile(file):
            raise TypeError("it is no archive of named arrays.")
        with zipfile.ZipFile(file) as archive:
            total = sum(member.file_size for member in archive.infolist())
        if total > (most := _MOST_BEYOND_FILE + os.fstat(file.fileno()).st_size):
            raise ValueError(f"its arrays would take {total:,} bytes; at most {most:,} are read from it.")
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy gives the bytes of what is none
            raise TypeError(f"its member {name!r:.100} is no array.")
    return arrays


def _retyped(array: np.ndarray, wanted: np.dtype[Any] | None) -> np.ndarray:
    """Return an array of a type that `.npz` does not know, such as bfloat16, under its own type again."""
    if wanted is not None and array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        return array.view(wanted)
    return array


def check_writable(path: str) -> None:
    """Raise if a file cannot be written, before any work is done for it. A missing folder will be created.

    Raises:
        InvalidArgument: the path names a folder, or its own folder is not one.
        Fail: its folder is not writable.
    """
    target = Path(path)
    if target.is_dir() or path.endswith(("/", os.sep)):
        raise InvalidArgument(f"{path!r} is a folder, not a file.", path=target)
    check_folder(target.parent)


def save_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a `.npz` file, whole or not at all.

    Raises:
        Fail: the system refused, or a value is no array.
    """
    target = Path(path)
    # numpy.savez takes names as keyword arguments, so it cannot store one that is called "file".
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(staged, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                entry = zipfile.ZipInfo(f"{name}.npy", date_time=_EPOCH)
                with archive.open(entry, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, _storable(name, array), allow_pickle=False)
        staged.replace(target)
    except OSError as error:
        raise Fail(f"{path!r} cannot be written: {error.strerror or error}.", path=target) from error
    finally:
        staged.unlink(missing_ok=True)


def _storable(name: str, array: object) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise Fail(
            f"the output {name!r} is no tensor, so a .npz file cannot hold it.", hint="Leave --output out."
        )
    return array.astype(str) if array.dtype.kind == "O" else array
