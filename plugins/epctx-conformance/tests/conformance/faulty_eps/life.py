"""EPs that break at some time of an instance's life."""

from __future__ import annotations

import numpy as np
from conformance.faulty_eps.bases import Describing, Running
from conformance.faulty_eps.table import fault
from conformance.small_ep import SmallProvider

from epctx_core.plugin import (
    CompiledPartition,
    ProviderOption,
    hookimpl,
)


@fault("it_compiles_ahead_of_time_without_a_device")
class NeedsADevice(SmallProvider):
    def __init__(self, context):
        super().__init__(context)
        if not self.availability(type(context.purpose).RUN).available:
            raise OSError("cannot open the device")


@fault("a_context_model_in_a_file_loads_and_runs")
class RunsOnly(SmallProvider):
    def __init__(self, context):
        super().__init__(context)
        self.mode = {"run": 1, "export": 2}[context.purpose.value]


@fault(
    "shutdown_ends_a_session",
    "shutdown_ends_an_ahead_of_time_compile",
    "shutdown_follows_a_compile_that_failed_at_once",
    "shutdown_follows_a_description_that_failed",
    "shutdown_follows_a_load_that_failed",
)
class EndsBadly(SmallProvider):
    @hookimpl
    def shutdown(self):
        raise OSError("the device is gone")


@fault("its_run_hooks_are_called_around_each_run_and_raise_nothing")
class MissesTags(SmallProvider):
    @hookimpl
    def on_run_start(self, tag):
        {"first": 1}[tag]


@fault("its_dynamic_options_may_be_set_in_a_session")
class OptionDoesHarm(Running):
    dynamic_options = (
        ProviderOption(
            "ep.dynamic.gain", int, default=1, choices=(1, 2), doc="How loud."
        ),
    )
    gain = 1

    @hookimpl
    def set_dynamic_options(self, options):
        self.gain = int(options["ep.dynamic.gain"])

    def around(self, run, inputs):
        return [result * np.float32(self.gain) for result in run(inputs)]


@fault("shutdown_ends_an_instance_that_did_nothing")
class NeedsWork(SmallProvider):
    @hookimpl
    def shutdown(self):
        self._compiled.pop()


@fault("shutdown_ends_a_load")
class NeedsACompile(SmallProvider):
    @hookimpl
    def shutdown(self):
        if self.context.purpose.value == "load":
            raise AttributeError("compiler")


@fault("shutdown_follows_a_compile_that_failed_at_its_end")
class NeedsADescription(Describing):
    written = None

    def around(self, nodes, writer):
        self.written = nodes
        return nodes

    @hookimpl
    def shutdown(self):
        self._compiled[0][0].name.encode().decode() and len(self.written)


@fault("its_compiled_partitions_close_without_an_error")
class ClosesBadly(SmallProvider):
    def _runnable(self, model):
        made = super()._runnable(model)
        return CompiledPartition(made.run, close=lambda: 1 // 0)


@fault("closing_a_session_does_not_affect_others", concurrency=True)
class OneDeviceForAll(Running):
    open = set()  # noqa: RUF012 - that is the fault

    def __init__(self, context):
        super().__init__(context)
        self.open.add("device")

    def around(self, run, inputs):
        if not self.open:
            raise OSError("the device is closed")
        return run(inputs)

    @hookimpl
    def shutdown(self):
        self.open.clear()


@fault("it_allocates_memory_as_requested")
class AllocatesOnce(SmallProvider):
    memory = np.empty(1 << 20, np.uint8)

    @hookimpl
    def allocate(self, shape, dtype):
        return (
            self.memory[: int(np.prod(shape)) * dtype.itemsize]
            .view(dtype)
            .reshape(shape)
        )


@fault("it_refuses_unknown_dynamic_options")
class TakesAnyOption(SmallProvider):
    @hookimpl
    def set_dynamic_options(self, options):
        pass
