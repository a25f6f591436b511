"""Calls of an EP's code in `run`: whether it gives what it said, and what of a model's declarations the values refute.

Knows what a step gives and what the contract asks for, and no plan.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from epctx_core.errors import InvalidGraph, RuntimeException
from epctx_core.plugin import ValueInfo
from epctx_core.registry.guard import contract_broken, describe, plain

if TYPE_CHECKING:
    from epctx_core.errors import PluginError
    from epctx_core.graph.type_table import TypeTable
    from epctx_core.plugin import TensorType
    from epctx_core.registry.records import PluginRecord
    from epctx_core.sessions.plan import RunStep

_log = logging.getLogger("epctx.session")


class Boundary(NamedTuple):
    """What flows into a step and out of it.

    Attributes:
        outputs: what it has to give, as far as that is proven; of an omitted one nothing is known.
        hints: by place among the outputs, what is declared beyond that.
        input_hints: the same of the inputs.
    """

    outputs: Sequence[ValueInfo]
    hints: Mapping[int, ValueInfo]
    input_hints: Mapping[int, ValueInfo]

    @classmethod
    def of(cls, types: TypeTable, inputs: Sequence[str], outputs: Sequence[str]) -> Boundary:
        """Return the boundary of a step of a graph."""

        def hints(names: Sequence[str]) -> Mapping[int, ValueInfo]:
            return {
                place: ValueInfo(name, kind)
                for place, name in enumerate(names)
                if (kind := types.get(name)).shape is not None and kind != types.proven(name)
            }

        proven = [ValueInfo(name, types.proven(name)) for name in outputs]
        return cls(proven, hints(outputs), hints(inputs))


def checked(
    run: RunStep, record: PluginRecord, hook: str, boundary: Boundary, *, context_node: str | None = None
) -> RunStep:
    """Return an EP's `run` that looks at what it gives: number, types, proven lengths, and whose memory it is.

    Args:
        run: the EP's.
        record: whose it is.
        hook: what messages call it.
        boundary: what it has to give.
        context_node: the node that an EP loaded, of which only the file says what it gives.
    """
    outputs = boundary.outputs
    dtype, shape = (outputs[0].dtype, outputs[0].shape) if len(outputs) == 1 else (None, None)
    array, check = np.ndarray, _Results(record, hook, outputs, context_node).check

    def run_and_check(inputs: Sequence[Any], buffers: Sequence[np.ndarray] | None) -> Sequence[Any]:
        answer = run(inputs, buffers)
        # What most partitions give is told right by a few looks: they are most of what a check costs a tiny run.
        if dtype is not None and buffers is None and type(answer) is list and len(answer) == 1:
            (result,) = answer
            if (
                type(result) is array
                and result.dtype is dtype
                and result.shape == shape
                and result.flags.c_contiguous
                and type(result.base) is not array
            ):
                for value in inputs:
                    if value is result:
                        break
                else:
                    return answer
        return check(answer, inputs, buffers)

    if not boundary.hints and not boundary.input_hints:
        return run_and_check
    return tell_with_inputs(run_and_check, boundary, record)


class _Results(NamedTuple):
    """What a step of an EP gives, looked at closely; attributes as arguments of `checked`."""

    record: PluginRecord
    hook: str
    outputs: Sequence[ValueInfo]
    context_node: str | None

    def check(
        self, results: Any, inputs: Sequence[Any], buffers: Sequence[np.ndarray] | None
    ) -> Sequence[Any]:
        """Check a whole answer.

        Raises:
            PluginError: it is not what the contract asks for.
            InvalidGraph: it is not what a context model declares.
        """
        kind = type(results).__name__
        results = plain(results)
        if type(results) is not list:
            raise self._broken(f"gave a {kind} instead of a list of arrays")
        if len(results) != len(self.outputs):
            raise self._broken(f"gave {len(results)} results for {len(self.outputs)} outputs")
        for place, result in enumerate(results):
            if buffers is None:
                self._check_one(place, result, inputs)
            elif result is not buffers[place]:
                raise self._broken(
                    f"was given memory for the output {self._name(place)} and gave back another array"
                )
        return results

    def _check_one(self, place: int, result: Any, inputs: Sequence[Any]) -> None:
        """Check one result; of a value that is no tensor, or of unknown type, only the memory.

        Raises:
            PluginError, InvalidGraph: see `check`.
        """
        name, wanted = self._name(place), self.outputs[place].type
        if isinstance(result, np.ndarray):
            if _shares_memory(result, inputs):
                raise self._broken(f"gave an output {name} that shares memory with an input")
        elif wanted.dtype is not None:
            raise self._broken(f"gave a {type(result).__name__} instead of an array for the output {name}")
        if wanted.dtype is None:
            return
        if not result.flags.c_contiguous:
            raise self._broken(f"gave an output {name} that is not C-contiguous")
        if not (has_type(result, wanted) and has_shape(result, wanted)):
            found = f"{result.dtype}{list(result.shape)}"
            if self.context_node is not None:
                raise InvalidGraph(
                    f"{self.record.label} gave {found} for the output {name}, which is {wanted} in the context model, "
                    f"in {self.hook}.",
                    node=self.context_node,
                    ep=self.record.name,
                    hint="The model was changed after it was compiled, or the EP computes wrongly: compile it again. If "
                    "the error stays, report it to the EP's vendor.",
                )
            raise self._broken(f"gave {found} for the output {name}, which is {wanted}")

    def _name(self, place: int) -> str:
        return repr(self.outputs[place].name)

    def _broken(self, what: str) -> PluginError:
        return contract_broken(self.record, self.hook, what)


def _shares_memory(result: np.ndarray, inputs: Sequence[Any]) -> bool:
    """Whether a result is an input, or a view of memory that an input is in."""
    for value in inputs:
        if value is result:
            return True
    if not isinstance(result.base, np.ndarray):
        return False
    return any(isinstance(value, np.ndarray) and np.may_share_memory(result, value) for value in inputs)


def has_type(array: np.ndarray, wanted: TensorType) -> bool:
    """Whether an array has a type."""
    # Text comes as objects or as one of numpy's own kinds.
    return array.dtype == wanted.dtype or (wanted.dtype == object and array.dtype.kind in "OUST")


def has_shape(array: np.ndarray, wanted: TensorType) -> bool:
    """Whether an array has a shape, as far as that is known."""
    if wanted.shape is None or array.shape == wanted.shape:
        return True
    return len(array.shape) == len(wanted.shape) and all(
        not isinstance(dim, int) or dim == length
        for dim, length in zip(wanted.shape, array.shape, strict=True)
    )


def tell_of_outputs(run: RunStep, boundary: Boundary) -> RunStep:
    """Return a step's `run` that says once of each value that it has another shape than the model declares."""
    if not boundary.hints:
        return run
    left = dict(boundary.hints)

    def run_and_tell(inputs: Sequence[Any], buffers: Sequence[np.ndarray] | None) -> Sequence[Any]:
        answer = run(inputs, buffers)
        for place, value in list(left.items()):
            result = answer[place]
            other = isinstance(result, np.ndarray) and not has_shape(result, value.type)
            if other and left.pop(place, None) is not None:
                _log.warning("%s.", _falsely_declared(value, result))
        return answer

    return run_and_tell


def _falsely_declared(value: ValueInfo, found: np.ndarray) -> str:
    return (
        f"the model declares {value.type} for the value {value.name!r}, and its operators give "
        f"{found.dtype}{list(found.shape)}"
    )


def tell_with_inputs(run: RunStep, boundary: Boundary, record: PluginRecord) -> RunStep:
    """Return an EP's `run` that tells of its outputs, and names a false declaration of an input where the EP fails."""
    if not boundary.input_hints:
        return tell_of_outputs(run, boundary)

    def run_with_hints(inputs: Sequence[Any], buffers: Sequence[np.ndarray] | None) -> Sequence[Any]:
        try:
            return run(inputs, buffers)
        except Exception as error:
            for place, value in boundary.input_hints.items():
                if isinstance(inputs[place], np.ndarray) and not has_shape(inputs[place], value.type):
                    raise RuntimeException(
                        f"{_falsely_declared(value, inputs[place])}; {record.name} was given what is declared, and "
                        f"fails: {describe(error)}",
                        ep=record.name,
                        hint=f"Remove the value_info {value.name!r} from the model and compile it again.",
                    ) from error
            raise

    return tell_of_outputs(run_with_hints, boundary)
