"""The plan: which steps run in which order, where each value lives, and when it is let go.

A plan is made once and never changes, so any number of threads run it at the same time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from epctx_core.errors import EpctxError, InvalidGraph, RuntimeException
from epctx_core.registry.guard import describe

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.options import RunOptions


RunStep = Callable[[Sequence[Any], Any], Sequence[Any]]


class StepSpec(NamedTuple):
    """One step before slots are given out.

    Attributes:
        name: of the partition, node or group, for messages.
        ep: who runs it.
        run: takes the inputs in order and None (a nested step: the run options), gives the outputs in order.
        inputs, outputs: value names; an omitted optional one is the empty string.
        nested: whether the step runs plans of its own.
        in_place: whether `run` takes, instead of None, arrays for all outputs to write into.
    """

    name: str
    ep: str
    run: RunStep
    inputs: Sequence[str]
    outputs: Sequence[str]
    nested: bool = False
    in_place: bool = True


class Step(NamedTuple):
    """One step with its slots; `frees` are those that nobody reads afterwards."""

    run: RunStep
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    spec: StepSpec


class Plan:
    """Steps in execution order over numbered slots.

    Args:
        steps: in execution order.
        inputs, outputs: the model's, in its order.
        constants: values that are there from the start, by name.
    """

    def __init__(
        self,
        steps: Sequence[StepSpec],
        *,
        inputs: Sequence[str],
        outputs: Sequence[str],
        constants: Mapping[str, np.ndarray],
    ) -> None:
        # Slot 0 is the omitted optional input: always None. The model's inputs follow it.
        slots: dict[str, int] = {"": 0}
        for name in (*inputs, *constants):
            slots.setdefault(name, len(slots))
        for step in steps:
            for name in step.outputs:
                slots.setdefault(name, len(slots))
        try:
            self._outputs = tuple([slots[name] for name in outputs])
            given = {slots[name] for name in (*inputs, *constants)}
            self.steps = _with_frees(steps, slots, keep={*given, *self._outputs, 0})
        except KeyError:
            raise _reads_nothing(steps, outputs, slots) from None
        self._template: list[Any] = [None] * len(slots)
        for name, value in constants.items():
            self._template[slots[name]] = value
        self._input_count = len(inputs)
        self._given = given & set(self._outputs)
        self._only = self._only_step()

    def _only_step(self) -> Step | None:
        """Return the step of a plan that does nothing but hand everything through one step."""
        if len(self.steps) != 1 or self._given:
            return None
        step = self.steps[0]
        whole = step.inputs == tuple(range(1, 1 + self._input_count)) and step.outputs == self._outputs
        return step if whole and not step.spec.nested else None

    def run(self, feeds: Sequence[np.ndarray], options: RunOptions | None = None) -> list[Any]:
        """Run all steps; return the model's outputs in order.

        Raises:
            RuntimeException: a step raised, or the run was terminated.
        """
        if self._only is not None and options is None:
            return _run_only(self._only, feeds)
        values = self._template.copy()
        values[1 : 1 + self._input_count] = feeds
        result: Any
        results: Sequence[Any]
        for run, inputs, outputs, frees, spec in self.steps:
            if options is not None and options.terminate:
                raise _stopped()
            try:
                results = run([values[slot] for slot in inputs], options if spec.nested else None)
                for slot, result in zip(outputs, results, strict=True):
                    values[slot] = result
            except EpctxError as error:
                _complete(error, spec)
                raise
            except (Exception, SystemExit, GeneratorExit) as error:
                raise _step_failed(spec, error, options) from error
            # Else an output that nobody reads would live through the next step.
            result, results = None, ()
            for slot in frees:
                values[slot] = None
        if self._given:
            # What the caller gave, or the model holds, is handed out as a copy: results are the caller's own.
            for slot in self._given:
                values[slot] = copy.copy(values[slot])
        return [values[slot] for slot in self._outputs]


def _run_only(step: Step, feeds: Sequence[Any]) -> list[Any]:
    """Run a single step without slots: what a tiny model costs is mostly this."""
    try:
        results = step.run(feeds, None)
        return results if type(results) is list else list(results)
    except EpctxError as error:
        _complete(error, step.spec)
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        raise _step_failed(step.spec, error) from error


def _reads_nothing(
    steps: Sequence[StepSpec], outputs: Sequence[str], slots: Mapping[str, int]
) -> InvalidGraph:
    """Say who is the first to read a value that nobody gives."""
    readers = [*((step.name, step.inputs) for step in steps), ("the graph's outputs", outputs)]
    reader, name = next((r, name) for r, names in readers for name in names if name not in slots)
    return InvalidGraph(f"{reader} reads the value {name!r}, which nothing gives.", node=reader)


def _with_frees(steps: Sequence[StepSpec], slots: Mapping[str, int], keep: set[int]) -> list[Step]:
    """Return the steps, each freeing the values of which it is the last reader."""
    seen = set(keep)
    planned: list[Step] = []
    for spec in reversed(steps):
        inputs = tuple([slots[name] for name in spec.inputs])
        outputs = tuple([slots[name] for name in spec.outputs])
        fresh = {*inputs, *outputs} - seen
        seen |= fresh
        planned.append(Step(spec.run, inputs, outputs, tuple(fresh), spec))
    planned.reverse()
    return planned


def _stopped() -> RuntimeException:
    return RuntimeException(
        "the run was stopped: RunOptions.terminate was set.",
        hint="Take it back, or give other RunOptions, to run again.",
    )


def _complete(error: EpctxError, spec: StepSpec) -> None:
    """Fill in who raised one of our errors, if that was left out."""
    error.ep = error.ep or spec.ep
    error.node = error.node or spec.name


def _step_failed(spec: StepSpec, error: BaseException, options: RunOptions | None = None) -> RuntimeException:
    if options is not None and options.terminate:
        return _stopped()
    return RuntimeException(
        f"{spec.ep} failed while it ran {spec.name!r}: {describe(error)}",
        node=spec.name,
        ep=spec.ep,
        hint="The cause is below this error (`__cause__`); `epctx compare` shows where results first differ.",
    )
