"""Plan of a session: steps over numbered slots, run by EPs and by the CPU EP."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from operator import is_not
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from epctx_core.errors import EpctxError, InvalidGraph, RuntimeException, describe
from epctx_core.plugin import ValueInfo, write_in_place
from epctx_core.registry.guard import (
    FAULT_HINT,
    contract_error,
    to_plain,
    watched,
)
from epctx_core.sessions.signature import describe_array, fits, has_shape, has_type

if TYPE_CHECKING:
    from epctx_core.engines.control_flow import Arrays, Memory
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.type_table import TypeTable
    from epctx_core.options.run import RunOptions
    from epctx_core.plugin import TensorType
    from epctx_core.registry.instances import ProviderInstances
    from epctx_core.registry.records import PluginRecord

RunStep: TypeAlias = "Callable[[Sequence[Any], Any], Sequence[Any]]"
PlanRun: TypeAlias = (
    "Callable[[Sequence[Any], RunOptions | None, Memory | None], list[Any]]"
)


class StepSpec(NamedTuple):
    """One step before slots are given out.

    Attributes:
        name: that of the partition, node or group, for messages.
        ep: the EP that runs it.
        run: takes the inputs in order and None (a nested step: the run options), gives
            the outputs in order.
        inputs, outputs: value names; an omitted optional one is the empty string.
        nested: whether the step runs plans of its own.
        in_place: whether `run` takes, instead of None, `Memory` for its outputs.
        allocates: whether that may be None for some of them.
        nodes: their indices in the graph.
        label: the plugin with its distribution, for messages; empty if the core runs
            the step.
    """

    name: str
    ep: str
    run: RunStep
    inputs: Sequence[str]
    outputs: Sequence[str]
    nested: bool = False
    in_place: bool = True
    allocates: bool = True
    nodes: Sequence[int] = ()
    label: str = ""

    @property
    def node(self) -> str | None:
        """The name for errors; None for a group of nodes on the CPU EP, which has no
        name of its own.
        """
        return None if not self.label and len(self.nodes) > 1 else self.name


Step: TypeAlias = (
    "tuple[RunStep, tuple[int, ...], tuple[int, ...], tuple[int, ...], StepSpec]"
)
"""`run`, the slots of inputs and outputs, the slots to clear afterwards, and the whole
step.
"""


class Plan:
    """Steps in execution order over numbered slots.

    Args:
        steps: in execution order.
        inputs, outputs: the graph's, in its order.
        captured: values of the enclosing scopes, which a run takes behind the inputs.
        constants: values that are there from the start, by name.
    """

    def __init__(
        self,
        steps: Sequence[StepSpec],
        *,
        inputs: Sequence[str],
        outputs: Sequence[str],
        constants: Mapping[str, np.ndarray],
        captured: Sequence[str] = (),
    ) -> None:
        self.captured = captured
        inputs = (*inputs, *captured)

        # Slot 0 is the omitted optional input: always None. The model's inputs follow
        # it.
        slots: dict[str, int] = {"": 0}
        for name in (*inputs, *constants):
            slots.setdefault(name, len(slots))
        for step in steps:
            for name in step.outputs:
                slots.setdefault(name, len(slots))
        self._outputs = tuple([slots[name] for name in outputs])
        fixed_slots = {slots[name] for name in (*inputs, *constants)}
        self.steps = _add_frees(steps, slots, keep={*fixed_slots, *self._outputs, 0})
        self._template: list[Any] = [None] * len(slots)
        for name, value in constants.items():
            self._template[slots[name]] = value
        self._input_count = len(inputs)
        self._fixed_outputs = fixed_slots & set(self._outputs)

        # The step of a plan that does nothing but hand everything through one step.
        self._only: StepSpec | None = None
        if len(self.steps) == 1 and not self._fixed_outputs and not steps[0].nested:
            _, read_slots, made, _, only = self.steps[0]
            if (read_slots, made) == (tuple(range(1, 1 + len(inputs))), self._outputs):
                self._only = only

    def run(
        self,
        feeds: Arrays,
        options: RunOptions | None = None,
        memory: Memory | None = None,
    ) -> list[Any]:
        """Run all steps; return the model's outputs in order.

        Args:
            feeds: the inputs, then the captured values.
            options: those of the run.
            memory: where the outputs go. The steps that compute them get it; what does
                not write into it is copied.

        Raises:
            RuntimeException: a step raised, the run was terminated, or an output does
                not fit its memory.
        """
        if self._only is not None and options is None and not memory:
            return _run_only(self._only, feeds)
        memory_by_name = memory and dict(zip(self._outputs, memory, strict=True))
        values = self._template.copy()
        values[1 : 1 + self._input_count] = feeds
        result: Any
        results: Sequence[Any]
        for run, inputs, outputs, frees, spec in self.steps:
            if options is not None and options.terminate:
                raise _stopped()
            try:
                results = run(
                    [values[slot] for slot in inputs],
                    options
                    if spec.nested
                    else _take(memory_by_name, spec, outputs)
                    if memory_by_name and spec.in_place
                    else None,
                )
                for slot, result in zip(outputs, results, strict=True):
                    values[slot] = result
            except BaseException as error:
                if _passes(error, spec):
                    raise
                raise _step_failed(error, spec, options) from error
            # Otherwise an output without a reader would live through the next step.
            result = None
            results = ()
            for slot in frees:
                values[slot] = None

        if self._fixed_outputs:
            # Inputs and constants are returned as copies: results are the caller's own.
            for slot in self._fixed_outputs:
                values[slot] = copy.copy(values[slot])
        results = [values[slot] for slot in self._outputs]
        return [*write_in_place(results, memory)] if memory else results


def _take(
    given: Mapping[int, np.ndarray | None], spec: StepSpec, outputs: Sequence[int]
) -> Memory | None:
    """Return the memory that was given for a step's outputs; None if none was, or if
    the step does not write into it.
    """
    memory = [given.get(slot) for slot in outputs]
    missing = sum(array is None for array in memory)
    return memory if missing < len(memory) and (spec.allocates or not missing) else None


def _run_only(spec: StepSpec, feeds: Sequence[Any]) -> list[Any]:
    """Run a single step without slots: this is most of the cost of a tiny model."""
    try:
        results = spec.run(feeds, None)
        return results if type(results) is list else list(results)
    except BaseException as error:
        if _passes(error, spec):
            raise
        raise _step_failed(error, spec) from error


def _add_frees(
    steps: Sequence[StepSpec], slots: Mapping[str, int], keep: set[int]
) -> list[Step]:
    """Return the steps, each freeing the values of which it is the last reader."""
    seen = set(keep)
    planned: list[Step] = []
    for spec in reversed(steps):
        inputs = tuple([slots[name] for name in spec.inputs])
        outputs = tuple([slots[name] for name in spec.outputs])
        fresh = {*inputs, *outputs} - seen
        seen |= fresh
        planned.append((spec.run, inputs, outputs, tuple(fresh), spec))
    planned.reverse()
    return planned


def _stopped() -> RuntimeException:
    return RuntimeException(
        "the run was stopped: RunOptions.terminate was set.",
        hint="Take it back, or give other RunOptions, to run again.",
    )


def _passes(error: BaseException, spec: StepSpec) -> bool:
    """Return whether an error of a step passes: one of epctx, which gets EP and node if
    they were left out, or Ctrl-C.
    """
    if not isinstance(error, EpctxError):
        return isinstance(error, KeyboardInterrupt)
    error.ep = error.ep or spec.ep
    error.node = error.node or spec.node
    return True


def _step_failed(
    error: BaseException, spec: StepSpec, options: RunOptions | None = None
) -> RuntimeException:
    if options is not None and options.terminate:
        return _stopped()
    place = repr(spec.name)
    if spec.node is None:
        place = f"one of {len(spec.nodes)} nodes from {place} on"
    return RuntimeException(
        f"{spec.label or spec.ep} failed while it ran {place}: {describe(error)}",
        node=spec.node,
        ep=spec.ep,
        hint=FAULT_HINT
        if spec.label
        else "Its own exception is the cause of this error (`-v` shows it).",
    )


def add_checks(
    spec: StepSpec,
    owner: PluginRecord,
    hook: str,
    types: TypeTable,
    *,
    is_loaded: bool = False,
) -> StepSpec:
    """Return an EP's step with a `run` that gets read-only views of its inputs, and
    with its results checked: number, types, proven lengths, and memory.

    Args:
        spec: the step, with the EP's own `run`.
        owner: the EP.
        hook: the name of `run` in messages.
        types: those of the step's graph.
        is_loaded: whether the types of its outputs come from a file alone.
    """
    outputs = [ValueInfo(name, types.get_proven(name)) for name in spec.outputs]
    declared = [types.get(name) for name in spec.inputs]
    dtype, shape = (
        (outputs[0].dtype, outputs[0].shape) if len(outputs) == 1 else (None, None)
    )
    array = np.ndarray
    check = _make_check(outputs, owner, hook, spec.name if is_loaded else None)
    run = watched(owner, spec.run)

    def run_and_check(inputs: Sequence[Any], memory: Memory | None) -> Sequence[Any]:
        buffers = None if memory is None else _complete_memory(memory, outputs, inputs)
        # Arrays of the host, or values that other steps read, too.
        views = []
        for value in inputs:
            view = value
            if isinstance(value, array):
                view = value.view()
                # `write` by its name, or `flags.writeable`, would take twice as long.
                view.setflags(False)  # type: ignore[call-arg]
            views.append(view)
        try:
            results = run(views, buffers)
        except Exception as error:
            triples = zip(spec.inputs, declared, inputs, strict=True)
            _blame_declarations(triples, owner, error)
            raise
        # Most partitions give one array of a static shape; the whole check would be
        # most of what a tiny run costs.
        if (
            dtype is not None
            and buffers is None
            and type(results) is list
            and len(results) == 1
        ):
            (result,) = results
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
                    return results
        return check(results, inputs, buffers)

    return drop_omitted_outputs(spec._replace(run=run_and_check, label=owner.label))


def _complete_memory(
    memory: Memory, outputs: Sequence[ValueInfo], inputs: Sequence[Any]
) -> Arrays | None:
    """Return an array for each output of an EP's step: the given one, else a new one.

    None, so that results are copied instead, where a length is open, as an EP might
    compute another one; and where an array does not fit or overlaps an input, as an EP
    may write before it has read.
    """
    buffers = []
    for array, output in zip(memory, outputs, strict=True):
        if not output.type.is_static:
            return None
        buffer = np.empty(output.shape, output.dtype) if array is None else array  # type: ignore[arg-type,type-var]
        if not fits(buffer, output.type) or any(
            np.may_share_memory(buffer, value) for value in inputs
        ):
            return None
        buffers.append(buffer)
    return buffers


def _make_check(
    outputs: Sequence[ValueInfo], owner: PluginRecord, hook: str, node: str | None
) -> Callable[[Any, Sequence[Any], Arrays | None], list[Any]]:
    """Return a check of the results of an EP's step, which returns them as a list.

    It raises PluginError for results that break the contract, and InvalidGraph for
    those that differ from the declarations of a context model, or in shape from what
    type inference gives.

    Args:
        outputs: the expected results, as far as they are proven.
        owner: the EP.
        hook: the name of its `run` in messages.
        node: the EPContext node, if the types of its outputs come from a file alone.
    """

    def check(results: Any, inputs: Sequence[Any], buffers: Arrays | None) -> list[Any]:
        problem = ""
        arrays: list[Any] = to_plain(results)
        if type(arrays) is not list:
            problem = f"gave a {type(results).__name__} instead of a list of arrays"
        elif len(arrays) != len(outputs):
            problem = f"gave {len(arrays)} results for {len(outputs)} outputs"
        elif buffers is not None:
            if any(map(is_not, arrays, buffers)):
                problem = "was given memory for its outputs and gave back another array"
        else:
            for output, result in zip(outputs, arrays, strict=True):
                problem = problem or _find_problem(output, result, inputs)
                if problem or output.dtype is None or fits(result, output.type):
                    continue
                actual = describe_array(result.dtype, result.shape)
                if node is not None or has_type(result, output.type):
                    raise make_mismatch_error(owner, output, actual, hook, node)
                problem = (
                    f"gave {actual} for the output {output.name!r}, which is "
                    f"{output.type}"
                )

        if problem:
            raise contract_error(owner, hook, problem)
        return arrays

    return check


def _find_problem(output: ValueInfo, result: Any, inputs: Sequence[Any]) -> str:
    """Return the problem of a result but for its type and shape; of a value that is not
    a tensor, or of unknown type, only the memory is checked.
    """
    name = output.name
    if not isinstance(result, np.ndarray):
        if output.dtype is None:
            return ""
        kind = type(result).__name__
        return f"gave a {kind} instead of an array for the output {name!r}"
    # A result is to be no input, nor a view of memory that an input is in.
    arrays = [value for value in inputs if isinstance(value, np.ndarray)]
    is_view = isinstance(result.base, np.ndarray)
    if any(result is a or (is_view and np.may_share_memory(result, a)) for a in arrays):
        return f"gave an output {name!r} that shares memory with an input"
    if output.dtype is not None and not result.flags.c_contiguous:
        return f"gave an output {name!r} that is not C-contiguous"
    return ""


def make_mismatch_error(
    owner: PluginRecord,
    output: ValueInfo,
    actual: str,
    hook: str,
    node: str | None = None,
) -> InvalidGraph:
    """Return the error for a result that inference, or the file that an EPContext node
    is in, alone speaks against: that may be the one that is wrong.
    """
    expected = "type inference gives"
    hint = (
        f"Run the model without the EP: if it gives {actual} too, report it to epctx, "
        "else to the EP's vendor."
    )
    if node is not None:
        expected = "the context model declares"
        hint = (
            "The model was changed after it was compiled, or one of the two is wrong: "
            "compile it again."
        )
    return InvalidGraph(
        f"{owner.label} gave {actual} for {output.name!r}, and {expected} "
        f"{output.type}, in {hook}.",
        node=node,
        ep=owner.name,
        hint=hint,
    )


def _blame_declarations(
    inputs: Iterable[tuple[str, TensorType, Any]],
    owner: PluginRecord,
    error: Exception,
) -> None:
    """Raise an error that names a false declaration, if one of the inputs (name, type
    and value) with which an EP failed has one.
    """
    for name, declared, array in inputs:
        if isinstance(array, np.ndarray) and not has_shape(array, declared):
            raise RuntimeException(
                f"the model declares {declared} for the value {name!r}, and its "
                f"operators give {describe_array(array.dtype, array.shape)}; "
                f"{owner.name} was given what is declared, and fails: "
                f"{describe(error)}",
                ep=owner.name,
                hint=f"Remove the value_info {name!r} from the model and compile it "
                "again.",
            ) from error


def drop_omitted_outputs(step: StepSpec) -> StepSpec:
    """Return a step without the outputs that the model omits: a plan has no slots for
    those.
    """
    if all(step.outputs):
        return step
    run = step.run
    used = [index for index, output in enumerate(step.outputs) if output]

    def run_and_drop(values: Sequence[Any], options: Any) -> Sequence[Any]:
        results = run(values, options)
        return [results[index] for index in used]

    return step._replace(
        run=run_and_drop,
        outputs=[step.outputs[index] for index in used],
        in_place=False,
    )


StepsByGraph: TypeAlias = "dict[GraphIndex, dict[int, StepSpec]]"
"""For each graph, a node's index in it to its step."""


def list_implementers(instances: ProviderInstances, hook: str) -> list[str]:
    """Return the EPs of a session that have a hook, in order of priority."""
    return [ep for ep in instances.names if instances.implements(ep, hook)]


def add_run_hooks(run: PlanRun, instances: ProviderInstances) -> PlanRun:
    """Return a plan's `run` with the run hooks of EPs around it, observed by host
    plugins.
    """
    on_start = list_implementers(instances, "on_run_start")
    on_end = list_implementers(instances, "on_run_end")
    if not (on_start or on_end or instances.is_observed):
        return run

    def run_between_hooks(
        feeds: Sequence[Any], options: RunOptions | None, memory: Memory | None
    ) -> list[Any]:
        tag = options.tag if options is not None else ""
        with instances.span("run", "run"), ExitStack() as ends:
            # Every EP gets `on_run_end`, whatever the others or the run raise.
            for ep in on_end:
                ends.callback(instances.call, ep, "on_run_end", tag=tag)
            for ep in on_start:
                instances.call(ep, "on_run_start", tag=tag)
            return run(feeds, options, memory)

    return run_between_hooks
