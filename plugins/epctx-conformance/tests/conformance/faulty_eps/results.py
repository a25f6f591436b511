"""EPs whose results are wrong: once, for some inputs, or always."""

from __future__ import annotations

import random

import numpy as np
from conformance.faulty_eps.bases import Running
from conformance.faulty_eps.table import fault
from support.honest_ep import HonestProvider


@fault("inputs_and_outputs_in_different_orders_are_not_confused")
class ReversesInputs(Running):
    def around(self, run, inputs):
        return run(inputs[::-1])


@fault("inputs_and_outputs_in_different_orders_are_not_confused")
class ReversesOutputs(Running):
    def around(self, run, inputs):
        return list(run(inputs))[::-1]


@fault("a_run_does_not_depend_on_earlier_runs")
class RunsOnce(Running):
    first = None

    def around(self, run, inputs):
        self.first = self.first or [np.array(result) for result in run(inputs)]
        return [result.copy() for result in self.first]


@fault("results_do_not_share_memory_with_earlier_results")
class ReusesItsBuffer(Running):
    def __init__(self, context):
        super().__init__(context)
        self.buffers = {}

    def around(self, run, inputs):
        return [
            self.kept(id(run), place, result)
            for place, result in enumerate(run(inputs))
        ]

    def kept(self, run, place, result):
        buffer = self.buffers.setdefault((run, place), np.empty_like(result))
        buffer[...] = result
        return buffer


@fault("the_same_inputs_give_the_same_results_to_the_last_bit")
class Jitters(Running):
    def around(self, run, inputs):
        return [
            result * np.float32(1 + 1e-6 * random.randint(1, 100))  # noqa: S311
            for result in run(inputs)
        ]


class OffByALittle(HonestProvider):
    """Whatever it computes is one part in a hundred too large."""

    def run_of(self, prepared, graph):
        return lambda inputs, _outputs=None: [
            r * np.asarray(1.01, r.dtype) for r in prepared.run(inputs)
        ]
