"""Plan of a session: steps over numbered slots, made of EPs' work and of what is left to the CPU EP."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import onnx

from epctx_core.errors import EpctxError, InvalidGraph, RuntimeException
from epctx_core.registry.guard import describe
from epctx_core.sessions.boundary import Boundary, checked

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.engines.cpu_engine import CpuEngine
    from epctx_core.engines.matching import KernelMatcher
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.graph.type_table import TypeTable
    from epctx_core.options.run import RunOptions
    from epctx_core.plugin import CompiledPartition
    from epctx_core.registry.records import PluginRecord
    from epctx_core.sessions.assignment import GraphAssignment
    from epctx_core.sessions.providers import ProviderSession
    from epctx_core.sessions.steps import LeftOverSteps

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
            readers = [*((step.name, step.inputs) for step in steps), ("the graph's outputs", outputs)]
            reader, name = next((r, name) for r, names in readers for name in names if name not in slots)
            raise InvalidGraph(
                f"{reader} reads the value {name!r}, which nothing gives.", node=reader
            ) from None
        self._template: list[Any] = [None] * len(slots)
        for name, value in constants.items():
            self._template[slots[name]] = value
        self._input_count = len(inputs)
        self._given = given & set(self._outputs)
        # The step of a plan that does nothing but hand everything through one step.
        self._only: Step | None = None
        if len(self.steps) == 1 and not self._given and not self.steps[0].spec.nested:
            only = self.steps[0]
            whole = only.inputs == tuple(range(1, 1 + len(inputs))) and only.outputs == self._outputs
            self._only = only if whole else None

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


def context_step(
    record: ContextNodeRecord, types: TypeTable, loaded: CompiledPartition, owner: PluginRecord
) -> StepSpec:
    """Return the step of an EPContext node that an EP loaded; `types` are those of its graph."""
    boundary = Boundary.of(types, record.inputs, record.outputs)
    hook = f"the run of {record.name!r}"
    run = checked(cast("RunStep", loaded.run), owner, hook, boundary, context_node=record.name)
    return without_omitted(StepSpec(record.name, owner.name, run, record.inputs, record.outputs))


def without_omitted(step: StepSpec) -> StepSpec:
    """Return a step without the outputs that the model omits: a plan has no place for those."""
    if all(step.outputs):
        return step
    run = step.run
    kept = [place for place, output in enumerate(step.outputs) if output]

    def run_and_drop(values: Sequence[Any], options: Any) -> Sequence[Any]:
        results = run(values, options)
        return [results[place] for place in kept]

    return step._replace(run=run_and_drop, outputs=[step.outputs[place] for place in kept], in_place=False)


class Planner:
    """Collects steps by graph and by the first node that they stand for.

    Args:
        engine: prepares what is left to the CPU EP.
        providers: the live EPs.
        steps: those that are known already (loaded nodes).
        matchers: EP type to its kernels, for saying why none of them fits.
    """

    def __init__(
        self,
        engine: CpuEngine,
        providers: ProviderSession,
        steps: Mapping[GraphIndex, Mapping[int, StepSpec]],
        matchers: Mapping[str, KernelMatcher],
    ) -> None:
        self._engine = engine
        self._instances = providers.instances
        self._matchers = matchers
        self._steps = {graph: dict(known) for graph, known in steps.items()}

    def add_compiled(self, compiled: Mapping[GraphPartition, CompiledPartition]) -> None:
        """Take what EPs compiled."""
        for partition, runnable in compiled.items():
            steps = self._steps.setdefault(partition.graph, {})
            owner, name = self._instances.record(partition.ep), repr(partition)
            inputs, outputs = partition.input_names, partition.output_names
            boundary = Boundary.of(partition.graph.types, inputs, outputs)
            run = checked(cast("RunStep", runnable.run), owner, f"the run of {name}", boundary)
            steps[partition.node_indices[0]] = StepSpec(name, partition.ep, run, inputs, outputs)

    @cached_property
    def _left_over(self) -> LeftOverSteps:
        # Nothing is left over of most context models.
        from epctx_core.sessions.steps import LeftOverSteps

        return LeftOverSteps(self._engine, self._instances, self._matchers)

    def prepare(self, part: GraphAssignment, cpu_groups: Sequence[Sequence[int]]) -> None:
        """Make what one graph needs besides partitions: EPs' kernels and groups for the CPU EP.

        Raises:
            NotImplementedByProvider: an operator that neither an engine nor an EP's kernel has.
        """
        steps = self._steps.setdefault(part.graph, {})
        for kernel in part.kernel_nodes:
            steps[kernel.node] = self._left_over.kernel_step(part.graph, kernel)
        for group in cpu_groups:
            steps[group[0]] = self._left_over.cpu_step(part.graph, group)

    def plan(self, part: GraphAssignment) -> Plan:
        """Return the plan of a graph whose groups were all taken; those of the bodies in it are made first."""
        graph, steps = part.graph, self._steps[part.graph]
        for node in part.executed:
            # Few models have control flow around an EP's work.
            from epctx_core.sessions.steps import control_flow_step

            plans = {name: self.plan(body) for name, body in part.bodies[node].items()}
            steps[node] = control_flow_step(graph, node, plans)
        firsts = [group[0] for group in part.execution_order()]
        # A Constant node that no EP took is no step: what it gives is a constant of whatever reads it.
        specs: Sequence[StepSpec] = [steps[i] for i in firsts if i in steps or i not in graph.node_constants]
        if any(self._instances.implements(ep, "allocate") for ep in self._instances.names):
            from epctx_core.sessions.steps import in_memory_of_eps

            specs = in_memory_of_eps(specs, graph.types, self._instances)
        wanted = {name for spec in specs for name in spec.inputs} | set(graph.output_names)
        known = (wanted & graph.constants).difference(*[spec.outputs for spec in specs])
        return Plan(
            specs,
            inputs=graph.input_names,
            captured=[name for name in graph.captured if name in wanted and name not in graph.constants],
            outputs=graph.output_names,
            constants={name: _constant(graph, name) for name in sorted(known)},
        )


def _constant(graph: GraphIndex, name: str) -> np.ndarray:
    if name in graph.weights:
        return graph.weights[name].array()
    return onnx.numpy_helper.to_array(graph.special_tensors[name])
