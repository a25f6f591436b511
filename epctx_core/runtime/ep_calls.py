"""How an EP's code is called in `run`: whose memory it gets, and whether it gives what it said.

Knows what a step gives and what the contract asks for, and no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from epctx_core.registry.guard import contract_broken, plain

if TYPE_CHECKING:
    from epctx_core.errors import PluginError
    from epctx_core.plugin import TensorType, ValueInfo
    from epctx_core.registry.instances import ProviderInstances
    from epctx_core.registry.records import PluginRecord
    from epctx_core.runtime.plan import RunStep

Allocate: TypeAlias = "Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]"


def checked(run: RunStep, record: PluginRecord, hook: str, outputs: Sequence[ValueInfo]) -> RunStep:
    """Return an EP's `run` that looks at what it gives: number, types, known lengths, and whose memory it is.

    Args:
        run: the EP's.
        record: whose it is.
        hook: what messages call it.
        outputs: what it has to give; of an omitted one nothing is known.
    """
    results = _Results(record, hook, outputs)
    dtype, shape = (outputs[0].dtype, outputs[0].shape) if len(outputs) == 1 else (None, None)
    array, check = np.ndarray, results.check

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

    return run_and_check


class _Results:
    """What a step of an EP gives, looked at closely."""

    def __init__(self, record: PluginRecord, hook: str, outputs: Sequence[ValueInfo]) -> None:
        self._record = record
        self._hook = hook
        self._outputs = outputs

    def check(
        self, results: Any, inputs: Sequence[Any], buffers: Sequence[np.ndarray] | None
    ) -> Sequence[Any]:
        """Check a whole answer.

        Raises:
            PluginError: it is not what the contract asks for.
        """
        kind = type(results).__name__
        results = plain(results)
        if type(results) is not list:
            raise self._broken(f"gave a {kind} instead of a list of arrays")
        if len(results) != len(self._outputs):
            raise self._broken(f"gave {len(results)} results for {len(self._outputs)} outputs")
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
            PluginError: it is not what the contract asks for.
        """
        name, wanted = self._name(place), self._outputs[place].type
        if isinstance(result, np.ndarray):
            if _shares_memory(result, inputs):
                raise self._broken(f"gave an output {name} that shares memory with an input")
        elif wanted.dtype is not None:
            raise self._broken(f"gave a {type(result).__name__} instead of an array for the output {name}")
        if wanted.dtype is None:
            return
        if not result.flags.c_contiguous:
            raise self._broken(f"gave an output {name} that is not C-contiguous")
        typed, shaped = _has_type(result, wanted), _has_shape(result, wanted)
        if not (typed and shaped):
            found = f"{result.dtype}{list(result.shape)}"
            error = self._broken(f"gave {found} for the output {name}, which is {wanted}")
            error.hint = _SHAPE_HINT if typed else error.hint
            raise error

    def _name(self, place: int) -> str:
        return repr(self._outputs[place].name)

    def _broken(self, what: str) -> PluginError:
        return contract_broken(self._record, self._hook, what)


_SHAPE_HINT = (
    "Either this is a mistake in the plugin, or the model declares a length that its operators do not compute: "
    "if it was changed by hand, remove the value_info that it had before."
)


def _shares_memory(result: np.ndarray, inputs: Sequence[Any]) -> bool:
    """Whether a result is an input, or a view of memory that an input is in."""
    for value in inputs:
        if value is result:
            return True
    if not isinstance(result.base, np.ndarray):
        return False
    return any(isinstance(value, np.ndarray) and np.may_share_memory(result, value) for value in inputs)


def _has_type(array: np.ndarray, wanted: TensorType) -> bool:
    # Text comes as objects or as one of numpy's own kinds.
    return array.dtype == wanted.dtype or (wanted.dtype == object and array.dtype.kind in "OUST")


def _has_shape(array: np.ndarray, wanted: TensorType) -> bool:
    if wanted.shape is None or array.shape == wanted.shape:
        return True
    return len(array.shape) == len(wanted.shape) and all(
        not isinstance(dim, int) or dim == length
        for dim, length in zip(wanted.shape, array.shape, strict=True)
    )


def allocator(instances: ProviderInstances, ep: str) -> Allocate | None:
    """Return what asks an EP for memory and checks what it gives; None for an EP without the hook."""
    if not instances.implements(ep, "allocate"):
        return None
    record = instances.record(ep)

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        array = instances.call(ep, "allocate", shape=shape, dtype=dtype)
        problem = _problem(array, shape, dtype)
        if problem:
            wanted = f"{dtype}{list(shape)}"
            raise contract_broken(record, "allocate", f"was asked for {wanted} and gave {problem}")
        return array  # type: ignore[no-any-return]

    return allocate


def _problem(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Say what is wrong with memory that an EP gave."""
    if not isinstance(array, np.ndarray):
        return f"a {type(array).__name__}"
    if array.dtype != dtype or array.shape != shape:
        return f"{array.dtype}{list(array.shape)}"
    if not array.flags.c_contiguous:
        return "memory that is not C-contiguous"
    return "" if array.flags.writeable else "read-only memory"


class Buffer(NamedTuple):
    """Memory for one output of a step: who gives it (None for the core), and what is asked for."""

    owner: Allocate | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def into_memory(run: RunStep, buffers: Sequence[Buffer]) -> RunStep:
    """Return a step's `run`, which writes in place, with memory for each of its outputs."""
    wanted = [(buffer.owner or np.empty, buffer.shape, buffer.dtype) for buffer in buffers]

    def run_into_memory(inputs: Sequence[Any], _outputs: object) -> Sequence[Any]:
        return run(inputs, [make(shape, dtype) for make, shape, dtype in wanted])

    return run_into_memory


def buffer(owner: Allocate | None, kind: TensorType) -> Buffer | None:
    """Return what to ask for; None where type or shape are open, or elements are Python objects."""
    if kind.shape is None or kind.dtype is None or kind.dtype.hasobject:
        return None
    shape = tuple(dim for dim in kind.shape if isinstance(dim, int))
    return Buffer(owner, shape, kind.dtype) if len(shape) == len(kind.shape) else None
