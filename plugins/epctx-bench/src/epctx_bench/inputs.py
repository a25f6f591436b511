"""Inputs made from a seed: the same arrays for every session of a model, and the same
that `epctx run` makes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    from epctx_core import NodeArg

_MOST_ELEMENTS = 1 << 27
"""Most elements of one input."""
_NAMES = {"float": "float32", "double": "float64"}
"""numpy's names of the element types that ONNX Runtime spells in its own way."""


def make_inputs(
    arguments: Sequence[NodeArg], *, seed: int, batch: int = 1
) -> dict[str, np.ndarray]:
    """Return random inputs: floats, and both parts of complex numbers, N(0,1); integers
    0 or 1, booleans.

    Args:
        arguments: the model's inputs, as epctx and onnxruntime describe them.
        seed: the seed.
        batch: length of an open first dimension; all other open dimensions are 1.

    Raises:
        InvalidArgument: an input has a type or a size for which there are no random
            values.
    """
    generator = np.random.default_rng(seed)
    return {
        argument.name: _make_values(argument, generator, batch)
        for argument in arguments
    }


def has_open_batch(arguments: Sequence[NodeArg]) -> bool:
    """Return whether the first dimension of an input is open."""
    return any(
        argument.shape and not isinstance(argument.shape[0], int)
        for argument in arguments
    )


def _make_values(
    argument: NodeArg, generator: np.random.Generator, batch: int
) -> np.ndarray:
    dtype = _find_dtype(argument)
    shape = tuple(
        length if isinstance(length, int) else (batch if index == 0 else 1)
        for index, length in enumerate(argument.shape)
    )
    if math.prod(shape) > _MOST_ELEMENTS:
        raise InvalidArgument(
            f"the input {argument.name!r} of shape {list(shape)} is too large for "
            "random values.",
            hint="Fix its open dimensions, or measure with a smaller batch size.",
        )

    values: np.ndarray
    if dtype.kind == "c":
        real = generator.standard_normal(shape)
        values = np.asarray(real + 1j * generator.standard_normal(shape))
    elif dtype.kind == "f" or dtype.name.startswith(("bfloat", "float")):
        precision = np.float64 if dtype == np.float64 else np.float32
        values = generator.standard_normal(shape, dtype=precision)
    else:
        values = generator.integers(0, 2, shape, dtype=np.int8)
    return np.asarray(values).astype(dtype)


def _find_dtype(argument: NodeArg) -> np.dtype:
    """Return the array type of an input.

    Raises:
        InvalidArgument: there are no random values of it.
    """
    element = argument.type.removeprefix("tensor(").removesuffix(")")
    # `float8_e4m3fn` for `float8e4m3fn`.
    name = _NAMES.get(element, element).replace("float8e", "float8_e")
    with suppress(TypeError):
        return np.dtype(name)

    # Its types have names of numpy's from now on.
    import ml_dtypes  # noqa: F401

    try:
        return np.dtype(name)
    except TypeError as error:
        raise InvalidArgument(
            f"there are no random values for the input {argument.name!r} of type "
            f"{argument.type}.",
            hint="Measure a model whose inputs are tensors of numbers.",
        ) from error
