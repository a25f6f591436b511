"""EPs that remember: between runs, sessions and instances."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import numpy as np
from conformance.lying_plugins.table import lie
from support.honest_ep import HonestProvider

from epctx_core.plugin import CompiledPartition, hookimpl


@lie("a_run_does_not_depend_on_earlier_runs")
class KeepsState(HonestProvider):
    """Each run adds what the one before gave."""

    def run_of(self, prepared, graph):
        before: list[np.ndarray] = []

        def run(inputs, outputs=None):
            results = prepared.run(inputs, outputs)
            if before and results and before[0].shape == results[0].shape:
                results[0][...] = results[0] + before[0]
            before[:] = [np.array(results[0])] if results else []
            return results

        return run


@lie("an_open_dimension_may_have_another_length_in_each_run")
class KeepsTheFirstLengths(HonestProvider):
    """Refuses other lengths than those of the first run."""

    def run_of(self, prepared, graph):
        shapes: list[list[tuple[int, ...]]] = []

        def run(inputs, outputs=None):
            shapes.append([array.shape for array in inputs])
            if shapes[-1] != shapes[0]:
                raise ValueError("the buffers are planned for other lengths")
            return prepared.run(inputs, outputs)

        return run


@lie("many_threads_run_one_compiled_session")
class SharesItsInputs(HonestProvider):
    """Keeps the inputs of a run in one place for all threads."""

    def run_of(self, prepared, graph):
        buffers: list[np.ndarray] = []

        def run(inputs, outputs=None):
            buffers[:] = inputs
            time.sleep(0.001)  # the time that a transfer to a device takes
            return prepared.run(list(buffers), outputs)

        return run


@lie("many_threads_run_one_compiled_session")
class RunsOneAtATime(HonestProvider):
    """Raises when a second thread runs meanwhile."""

    def run_of(self, prepared, graph):
        busy = threading.Lock()

        def run(inputs, outputs=None):
            if not busy.acquire(blocking=False):
                raise RuntimeError("the queue is in use")
            try:
                time.sleep(0.001)
                return prepared.run(inputs, outputs)
            finally:
                busy.release()

        return run


@lie("closing_a_session_does_not_affect_others")
class SharesOneDevice(HonestProvider):
    """The first session that ends closes the device of all."""

    open_sessions: ClassVar[set[int]] = set()
    closed: ClassVar[set[int]] = set()

    def __init__(self, context):
        super().__init__(context)
        if not self.open_sessions:
            self.closed.clear()
        self.open_sessions.add(id(self))

    def run_of(self, prepared, graph):
        def run(inputs, outputs=None):
            if self.closed:
                raise RuntimeError("the device is closed")
            return prepared.run(inputs, outputs)

        return run

    @hookimpl
    def shutdown(self):
        self.open_sessions.discard(id(self))
        self.closed.add(id(self))
        super().shutdown()


@lie("models_compile_at_the_same_time")
class OneSessionAtATime(HonestProvider):
    """A second session that is made meanwhile gets the graphs of the first."""

    making: ClassVar[dict[str, bytes]] = {}

    @hookimpl
    def compile(self, partitions):
        self.making.clear()
        for place, partition in enumerate(partitions):
            self.making[str(place)] = self.translated(partition)
        time.sleep(0.05)
        self.compiled += partitions
        self.graphs.update(
            {p.name: self.making[str(i)] for i, p in enumerate(partitions)}
        )
        return [self.runnable(self.graphs[p.name]) for p in partitions]


@lie("another_process_loads_what_this_one_compiled")
class RemembersInTheProcess(HonestProvider):
    """Loads what this process compiled; a payload alone is not enough."""

    known: ClassVar[dict[str, bytes]] = {}

    @hookimpl
    def compile(self, partitions):
        made = super().compile(partitions)
        self.known.update(self.graphs)
        return made

    @hookimpl
    def load_context(self, nodes, reader):
        return [self.runnable(self.known[node.partition_name]) for node in nodes]


@lie("a_context_model_in_a_file_loads_and_runs")
class LoadsWhatItCompiled(HonestProvider):
    """Loads only in the instance that compiled."""

    @hookimpl
    def load_context(self, nodes, reader):
        return [self.runnable(self.graphs[node.partition_name]) for node in nodes]


@lie("partitions_may_come_in_several_calls")
class CompilesOnce(HonestProvider):
    """A second call of `compile` forgets the first."""

    @hookimpl
    def compile(self, partitions):
        self.compiled.clear()
        self.graphs.clear()
        return super().compile(partitions)


@lie("it_loads_the_nodes_of_a_payload_in_several_calls")
class LoadsOnce(HonestProvider):
    """A second call of `load_context` closes what the first one gave."""

    def __init__(self, context):
        super().__init__(context)
        self.current: list[bool] = []

    @hookimpl
    def load_context(self, nodes, reader):
        self.current.append(True)
        turn = len(self.current)

        def guarded(made):
            def run(inputs, outputs=None):
                if turn != len(self.current):
                    raise RuntimeError("the context was replaced")
                return made.run(inputs, outputs)

            return CompiledPartition(run, close=made.close)

        return [guarded(made) for made in super().load_context(nodes, reader)]
