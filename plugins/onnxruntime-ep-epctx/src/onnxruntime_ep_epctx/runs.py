"""Runs of one partition: onnxruntime's tensors as arrays, without copies."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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
"""Views of addresses that are kept: onnxruntime uses the same memory again."""


class _TensorFacts(NamedTuple):
    """Element type and lengths of a tensor, which are known before a run or not."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_known: bool

    @classmethod
    def of(cls, declared: TensorType) -> _TensorFacts:
        """Return those of a value; lengths that are not proven count for nothing."""
        is_known = bool(declared.is_static and declared.is_proven and declared.dtype)
        shape = declared.shape if is_known else ()
        dtype = declared.dtype or np.dtype(object)
        return cls(dtype, cast("tuple[int, ...]", shape), is_known)


class Step(NamedTuple):
    """Partition as its EP runs it.

    Attributes:
        run: the EP's.
        inputs, outputs: names in the partition's order.
        label: the EP and its distribution, for messages.
    """

    run: Callable[[Sequence[Any], Any], Sequence[Any]]
    inputs: Sequence[str]
    outputs: Sequence[str]
    label: str


class Kernel:
    """Partition as onnxruntime runs it.

    An EP takes tensors in the partition's order, onnxruntime has an order of its own:
    they are matched by name.

    Args:
        step: the partition.
        given: names of the fused node's inputs, in onnxruntime's order.
        wanted: those of its outputs.
        types: types of values, as far as they are proven.
    """

    def __init__(
        self,
        step: Step,
        *,
        given: Sequence[str],
        wanted: Sequence[str],
        types: Callable[[str], TensorType],
    ) -> None:
        self._run = step.run
        self._label = step.label
        self._input_order = [given.index(name) if name else -1 for name in step.inputs]
        self._output_order = [step.outputs.index(name) for name in wanted]

        # Known before a run, or not.
        self._inputs = [_TensorFacts.of(types(name)) for name in given]
        self._outputs = [_TensorFacts.of(types(name)) for name in wanted]
        self.input_count = len(given)
        self.output_count = len(wanted)
        self._result_count = len(step.outputs)
        self.has_static_inputs = all(each.is_known for each in self._inputs)
        self.has_static_outputs = all(each.is_known for each in self._outputs)
        self._input_words = ctypes.c_int64 * (_WORDS * len(given))
        self._output_words = ctypes.c_int64 * len(wanted)
        self._views: dict[tuple[int, Address], np.ndarray] = {}

    @property
    def input_bytes(self) -> list[int] | None:
        """Bytes of each input; None if some are not known before a run."""
        if not self.has_static_inputs:
            return None
        return [math.prod(each.shape) * each.dtype.itemsize for each in self._inputs]

    @property
    def output_lengths(self) -> list[tuple[int, ...]] | None:
        """Lengths of each output; None if some are not known before a run."""
        if not self.has_static_outputs:
            return None
        return [each.shape for each in self._outputs]

    def run(
        self,
        api: Address,
        context: Address,
        inputs: Address,
        outputs: Address,
    ) -> None:
        """Run the partition.

        Args:
            api: `OrtApi` of the onnxruntime that calls.
            context: of the run, which makes outputs.
            inputs: tensors as bridge.c has them.
            outputs: addresses of the outputs, if their shapes are known.

        Raises:
            RuntimeException: the EP failed, or gave another type or shape than it
                should.
        """
        arrays = [*self._read_inputs(inputs), None]
        ordered = [arrays[i] for i in self._input_order]
        if not self.has_static_outputs:
            results = self._run_step(ordered, None)
            ort = find_onnxruntime(api)
            for index, position in enumerate(self._output_order):
                result = results[position]
                target = self._make_output(ort, context, index, result)
                np.copyto(target, result, casting="no")
            return

        targets = self._view_outputs(outputs)
        # onnxruntime may want fewer than the partition gives.
        given: list[Any] = [None] * self._result_count
        for index, position in enumerate(self._output_order):
            given[position] = targets[index]
        results = self._run_step(ordered, given)
        for index, position in enumerate(self._output_order):
            # Most EPs write where they are told to.
            if results[position] is not targets[index]:
                np.copyto(targets[index], results[position], casting="no")

    def _run_step(
        self,
        inputs: list[Any],
        outputs: list[Any] | None,
    ) -> Sequence[Any]:
        try:
            return self._run(inputs, outputs)
        except (EpctxError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RuntimeException(
                f"{self._label} failed in run: {type(error).__name__}: {error}."
            ) from error

    def _read_inputs(self, address: Address) -> list[Any]:
        words = self._input_words.from_address(address)
        arrays: list[Any] = []
        if self.has_static_inputs:
            for index, each in enumerate(self._inputs):
                place = words[index * _WORDS]
                arrays.append(self._view(index, place, each))
            return arrays

        for start in range(0, len(words), _WORDS):
            element = words[start + _TYPE]
            if not element:
                arrays.append(None)
                continue
            first = start + _LENGTHS
            shape = words[first : first + words[start + _RANK]]
            dtype = tensor_dtype_to_np_dtype(element)
            array = view_memory(words[start], dtype, shape)
            array.flags.writeable = False
            arrays.append(array)
        return arrays

    def _view_outputs(self, address: Address) -> list[np.ndarray]:
        places = self._output_words.from_address(address)
        arrays = []
        for index, each in enumerate(self._outputs):
            # Numbered after the inputs.
            number = self.input_count + index
            arrays.append(self._view(number, places[index], each))
        return arrays

    def _view(
        self,
        index: int,
        address: Address,
        facts: _TensorFacts,
    ) -> np.ndarray:
        """Return the view of a tensor; of memory that was seen before, the one that was
        made then.
        """
        found = self._views.get((index, address))
        if found is None:
            found = view_memory(address, facts.dtype, facts.shape)
            if index < self.input_count:
                found.flags.writeable = False
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            self._views[index, address] = found
        return found

    def _make_output(
        self,
        ort: Onnxruntime,
        context: Address,
        index: int,
        result: np.ndarray,
    ) -> np.ndarray:
        """Return an array over an output whose shape is that of the EP's result."""
        expected = self._outputs[index].dtype
        if result.dtype != expected:
            raise RuntimeException(
                f"output {index} of a partition has the type {result.dtype}, and the "
                f"model {expected}."
            )
        lengths = (ctypes.c_int64 * result.ndim)(*result.shape)
        value = ort.get("KernelContext_GetOutput", context, index, lengths, result.ndim)
        address = ort.get("GetTensorMutableData", value) if result.nbytes else 0
        return view_memory(address, result.dtype, result.shape)
