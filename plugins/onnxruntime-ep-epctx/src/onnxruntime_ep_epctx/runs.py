"""Runs of one partition: onnxruntime's tensors as arrays, without copies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_core.errors import EpctxError, RuntimeException
from epctx_core.plugin.protos import tensor_dtype_to_np_dtype
from onnxruntime_ep_epctx.capi import find_onnxruntime
from onnxruntime_ep_epctx.graph import view_memory

if TYPE_CHECKING:
    from epctx_core.plugin import TensorType
    from onnxruntime_ep_epctx.capi import Address, Onnxruntime

_MOST_DIMENSIONS = 16
_TYPE = 1
_RANK = 2
_LENGTHS = 3
_WORDS = _LENGTHS + _MOST_DIMENSIONS
"""Words of the struct of a tensor in bridge.c."""
_MOST_VIEWS = 64
"""Runs whose views are kept: onnxruntime uses the same memory again."""


class Kernel:
    """Partition as onnxruntime runs it.

    An EP takes tensors in the partition's order, onnxruntime has an order of its own:
    they are matched by name.

    Args:
        step: the partition as its EP runs it: `run`, the names of `inputs` and
            `outputs` in its order, and a `label` for messages.
        given: names of the fused node's inputs, in onnxruntime's order.
        wanted: those of its outputs.
        types: types of values.

    Attributes:
        inputs, outputs: types in onnxruntime's order.
        is_static: whether all of them are proven: shapes are known before a run.
    """

    def __init__(
        self,
        step: Any,
        *,
        given: Sequence[str],
        wanted: Sequence[str],
        types: Callable[[str], TensorType],
    ) -> None:
        self._run = step.run
        self._label = step.label
        self._input_order = [given.index(name) if name else -1 for name in step.inputs]

        # onnxruntime may want fewer than the partition gives.
        self._output_order = [
            len(given) + wanted.index(name) if name in wanted else -1
            for name in step.outputs
        ]
        self.inputs: list[Any] = [types(name) for name in given]
        self.outputs: list[Any] = [types(name) for name in wanted]
        self._types = [*self.inputs, *self.outputs]
        # Lengths that are not proven count for nothing.
        self.is_static = all(
            each.is_static and each.is_proven and each.dtype for each in self._types
        )
        self._places = ctypes.c_size_t * len(self._types)
        self._bytes = ctypes.sizeof(self._places)
        self._words = ctypes.c_int64 * (_WORDS * len(given))
        self._views: dict[bytes, tuple[list[Any], list[Any]]] = {}

    def run(
        self,
        api: Address,
        context: Address,
        memory: Address,
    ) -> None:
        """Run the partition.

        Args:
            api: `OrtApi` of the onnxruntime that calls.
            context: of the run, which makes outputs.
            memory: if shapes are known, the addresses of all inputs and then of all
                outputs; else the inputs as bridge.c has them.

        Raises:
            RuntimeException: the EP failed, or gave another type or shape than it
                should.
        """
        if not self.is_static:
            self._run_open(api, context, memory)
            return

        # One key for all addresses: no object is made for memory that was seen before.
        key = ctypes.string_at(memory, self._bytes)
        inputs, outputs = self._views.get(key) or self._view(key)
        results = self._run_step([*inputs], [*outputs])
        for target, result in zip(outputs, results, strict=True):
            # Most EPs write where they are told to.
            if target is not result and target is not None:
                np.copyto(target, result, casting="no")

    def _run_open(
        self,
        api: Address,
        context: Address,
        memory: Address,
    ) -> None:
        """Run with the shapes that the inputs have now, and make outputs like the
        results.
        """
        arrays = [*self._read_inputs(memory), None]
        results = self._run_step([arrays[i] for i in self._input_order], None)
        ort = find_onnxruntime(api)
        for index, result in zip(self._output_order, results, strict=True):
            if index >= 0:
                self._make_output(ort, context, index - len(self.inputs), result)

    def _run_step(
        self,
        inputs: list[Any],
        outputs: list[Any] | None,
    ) -> Any:
        try:
            return self._run(inputs, outputs)
        except (EpctxError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RuntimeException(
                f"{self._label} failed in run: {type(error).__name__}: {error}."
            ) from error

    def _read_inputs(self, memory: Address) -> Iterator[Any]:
        words = self._words.from_address(memory)
        for start in range(0, len(words), _WORDS):
            element = words[start + _TYPE]
            if not element:
                yield None
                continue
            first = start + _LENGTHS
            shape = words[first : first + words[start + _RANK]]
            dtype = tensor_dtype_to_np_dtype(element)
            array = view_memory(words[start], dtype, shape)
            array.flags.writeable = False
            yield array

    def _view(self, key: bytes) -> tuple[list[Any], list[Any]]:
        """Return and keep the views of all inputs and outputs, in the partition's
        order.
        """
        places = self._places.from_buffer_copy(key)
        arrays: list[Any] = [
            view_memory(place, each.dtype, each.shape)
            for place, each in zip(places, self._types, strict=True)
        ]
        for array in arrays[: len(self.inputs)]:
            array.flags.writeable = False
        arrays.append(None)
        if len(self._views) >= _MOST_VIEWS:
            self._views.clear()
        views = (
            [arrays[i] for i in self._input_order],
            [arrays[i] for i in self._output_order],
        )
        self._views[key] = views
        return views

    def _make_output(
        self,
        ort: Onnxruntime,
        context: Address,
        index: int,
        result: np.ndarray,
    ) -> None:
        """Make an output of the EP's result."""
        expected = self.outputs[index].dtype or np.dtype(object)
        if result.dtype != expected:
            raise RuntimeException(
                f"output {index} of a partition has the type {result.dtype}, and the "
                f"model {expected}."
            )
        lengths = (ctypes.c_int64 * result.ndim)(*result.shape)
        value = ort.get("KernelContext_GetOutput", context, index, lengths, result.ndim)
        address = ort.get("GetTensorMutableData", value) if result.nbytes else 0
        np.copyto(view_memory(address, result.dtype, result.shape), result)
