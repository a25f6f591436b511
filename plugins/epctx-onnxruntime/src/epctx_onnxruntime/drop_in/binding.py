"""`IOBinding`: inputs and outputs of a session that are bound to memory once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_core.errors import InvalidArgument
from epctx_onnxruntime.drop_in.errors import with_native_errors
from epctx_onnxruntime.drop_in.options import refuse
from epctx_onnxruntime.drop_in.values import CPU, to_array, to_ort_value, view_memory

if TYPE_CHECKING:
    from epctx_core import InferenceSession
    from epctx_onnxruntime.real import onnxruntime


class IOBinding:
    """Inputs and outputs of a session, bound to values; see `onnxruntime.IOBinding`.

    EPs and the engine compute bound outputs in place (`InferenceSession.run`, argument
    `outputs`). An output that is bound without memory gets some in the first run, and
    keeps it in runs on inputs of equal shapes, as in onnxruntime.

    Args:
        session: the session.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        # By output, in the order in which they were bound: the host's memory, or None.
        self._memory: dict[str, np.ndarray | None] = {}
        self._values: dict[str, onnxruntime.OrtValue] = {}
        self._results: dict[str, Any] = {}
        # By the identity of the values that the host got last.
        self._outputs: dict[int, str] = {}
        self._shapes: list[tuple[int, ...]] | None = None

    def is_of(self, session: object) -> bool:
        """Return whether this is a binding of a session."""
        return session is self._session

    @with_native_errors
    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array, which is not copied."""
        self._inputs[self._find(name, self._session.input_names, "input")] = arr_on_cpu

    @with_native_errors
    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to memory of the host, which must outlive the binding.

        Args:
            name: the input.
            device_type, device_id: `cpu`, 0.
            element_type: a numpy type, or an `onnx.TensorProto.DataType`.
            shape: the lengths.
            buffer_ptr: the address of the first element.

        Raises:
            InvalidArgument: the memory is that of another device, or of a type without
                addresses.
        """
        array = _view(name, (device_type, device_id), element_type, shape, buffer_ptr)
        self.bind_cpu_input(name, array)

    @with_native_errors
    def bind_ortvalue_input(self, name: str, ortvalue: onnxruntime.OrtValue) -> None:
        """Bind an input to a value, which is not copied."""
        array = self._find_result(ortvalue)
        self.bind_cpu_input(name, to_array(ortvalue) if array is None else array)

    def _find_result(self, ortvalue: onnxruntime.OrtValue) -> np.ndarray | None:
        """Return the array of the last run that a value is over: a decoder binds the
        results of each step as inputs of the next one.
        """
        name = self._outputs.get(id(ortvalue), "")
        # Another value may have the identity of one that is gone.
        if name not in self._values or self._values[name] is not ortvalue:
            return None
        result = self._results.get(name)
        # A value may be a copy, which the host may have changed.
        if (
            isinstance(result, np.ndarray)
            and not result.dtype.hasobject
            and result.__array_interface__["data"][0] == ortvalue.data_ptr()
        ):
            return result
        return None

    @with_native_errors
    def bind_output(
        self,
        name: str,
        device_type: str = CPU,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Request an output, in memory of the host if that is given, which must then
        outlive the binding; see `bind_input`.

        Raises:
            InvalidArgument: as for `bind_input`; or the memory's type or shape is
                missing.
        """
        if buffer_ptr is None:
            _check_device(name, device_type, device_id)
            memory = None
        else:
            if element_type is None or shape is None:
                raise InvalidArgument(
                    f"the memory for the output {name!r} has no type or shape.",
                    hint="Give element_type and shape with buffer_ptr.",
                )
            memory = _view(
                name, (device_type, device_id), element_type, shape, buffer_ptr
            )
        self._bind_output(name, memory)

    @with_native_errors
    def bind_ortvalue_output(self, name: str, ortvalue: onnxruntime.OrtValue) -> None:
        """Bind an output to the memory of a value.

        Raises:
            InvalidArgument: the value is not a tensor of numbers in CPU memory.
        """
        memory = to_array(ortvalue)
        if not isinstance(memory, np.ndarray) or memory.dtype.hasobject:
            raise InvalidArgument(
                f"the output {name!r} cannot be written into this "
                f"{type(ortvalue).__name__}: it is no tensor of numbers.",
                hint="Use bind_output(name), and take the value from get_outputs().",
            )
        self._bind_output(name, memory)
        self._values[name] = ortvalue

    def _bind_output(self, name: str, memory: np.ndarray | None) -> None:
        self._find(name, self._session.output_names, "output")
        self._memory[name] = memory
        self._values.pop(name, None)
        self._results.pop(name, None)

    def _find(self, name: str, names: Iterable[str], kind: str) -> str:
        if name not in (known := list(names)):
            raise InvalidArgument(
                f"the model has no {kind} {name!r}.",
                hint=f"Its {kind}s: {', '.join(known) or 'none'}.",
            )
        return name

    def synchronize_inputs(self) -> None:
        """Do nothing: values are in CPU memory."""

    def synchronize_outputs(self) -> None:
        """Do nothing: runs are over when they return."""

    def get_outputs_as_ortvaluevector(self) -> None:
        """Refuse: vectors are for onnxruntime's native session.

        Raises:
            NotImplementedByProvider: always.
        """
        refuse("IOBinding.get_outputs_as_ortvaluevector")

    @with_native_errors
    def get_outputs(self) -> list[onnxruntime.OrtValue]:
        """Return the values of the bound outputs after a run, in the order in which
        they were bound; none before.
        """
        if not self._results:
            return []
        for name, result in zip(self._memory, self._read_results(), strict=True):
            if name not in self._values:
                self._values[name] = to_ort_value(result)
        self._outputs = {id(self._values[name]): name for name in self._memory}
        return [self._values[name] for name in self._memory]

    @with_native_errors
    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the outputs of the last run as arrays of their own."""
        return [
            result.copy() if isinstance(result, np.ndarray) else result
            for result in self._read_results()
        ]

    def _read_results(self) -> list[Any]:
        if missing := [name for name in self._memory if name not in self._results]:
            raise InvalidArgument(
                f"there was no run since the output {missing[0]!r} was bound.",
                hint="Call session.run_with_iobinding(binding) before.",
            )
        return [self._results[name] for name in self._memory]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._memory.clear()
        self._values.clear()
        self._results.clear()

    def run(self, run_options: Any) -> None:
        """Run the session on what is bound; for `InferenceSession.run_with_iobinding`.

        Raises:
            EpctxError: as `InferenceSession.run`.
        """
        names = list(self._memory)
        if not names:
            raise InvalidArgument(
                "no output is bound.", hint="Bind those to compute: bind_output(name)."
            )
        outputs = {name: m for name, m in self._memory.items() if m is not None}
        shapes = None
        if len(outputs) < len(names):
            shapes = [np.shape(value) for value in self._inputs.values()]
            if shapes == self._shapes:
                outputs.update(self._find_kept())
        results = self._session.run(
            None if names == self._session.output_names else names,
            self._inputs,
            run_options,
            outputs=outputs or None,
        )

        for name, result in zip(names, results, strict=True):
            if result is not outputs.get(name):
                self._values.pop(name, None)
            self._results[name] = result
        self._shapes = shapes

    def _find_kept(self) -> dict[str, np.ndarray]:
        """Return the memory of the last run's results that this one may write to."""
        inputs = [v for v in self._inputs.values() if isinstance(v, np.ndarray)]
        return {
            name: last
            for name, last in self._results.items()
            if isinstance(last, np.ndarray)
            and not last.dtype.hasobject
            and last.flags.writeable
            # The host may have bound a result as the next run's input.
            and not any(np.may_share_memory(last, value) for value in inputs)
        }


def _check_device(name: str, device_type: str, device_id: int) -> None:
    if str(device_type).lower() != CPU or device_id != 0:
        raise InvalidArgument(
            f"{name!r} cannot be bound to memory of the device {device_type}:"
            f"{device_id}: sessions take and give values in CPU memory.",
            hint="Bind it to `cpu`; EPs move values to their devices themselves.",
        )


def _view(
    name: str,
    device: tuple[str, int],
    element_type: Any,
    shape: Sequence[int],
    address: int,
) -> np.ndarray:
    _check_device(name, *device)
    return view_memory(address, element_type, shape)


def read_feeds(feeds: Any) -> Any:
    """Return the inputs of a run with arrays in place of onnxruntime's values."""
    if isinstance(feeds, Mapping) and any(
        type(value) is not np.ndarray for value in feeds.values()
    ):
        return {name: to_array(value) for name, value in feeds.items()}
    return feeds
