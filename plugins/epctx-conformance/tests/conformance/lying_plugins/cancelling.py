"""EPs that do not stop, or not in time."""

from __future__ import annotations

import time

from conformance.lying_plugins.table import lie
from support.honest_ep import HonestProvider

from epctx_core.errors import ModelLoadCanceled
from epctx_core.plugin import hookimpl

LONG = 1.5
"""Seconds of work without a check for cancellation."""


@lie("an_export_stops_in_time_and_leaves_no_file")
class NeverLooks(HonestProvider):
    """Works on each partition for long and never asks whether to stop."""

    @hookimpl
    def compile(self, partitions):
        for partition in partitions:
            self.compiled.append(partition)
            self.graphs[partition.name] = self.translated(partition)
            time.sleep(LONG)
        return [self.runnable(self.graphs[p.name]) for p in partitions]


@lie("a_load_stops_in_time")
class LoadsToTheEnd(HonestProvider):
    """Loads all nodes, each for long, and never asks whether to stop."""

    @hookimpl
    def load_context(self, nodes, reader):
        made = []
        for node in nodes:
            made.append(self.runnable(self.graph_of(node, reader.payload(node))))
            time.sleep(LONG)
        return made


@lie("a_compile_stops_in_time")
class TakesItForAFault(HonestProvider):
    """Turns a cancellation into an error of its own."""

    @hookimpl
    def compile(self, partitions):
        try:
            return super().compile(partitions)
        except ModelLoadCanceled as error:
            raise RuntimeError("the compiler ended early") from error


@lie("it_compiles_after_a_cancellation")
class StaysCancelled(HonestProvider):
    """After one compile was stopped, this process compiles nothing any more."""

    stopped = False

    @hookimpl
    def compile(self, partitions):
        if self.stopped:
            raise RuntimeError("the compiler was stopped")
        try:
            return super().compile(partitions)
        except ModelLoadCanceled:
            StaysCancelled.stopped = True
            raise


@lie("a_run_does_not_depend_on_earlier_runs", seconds=1.0)
class TakesForever(HonestProvider):
    """Does not come back within the time that a check may take."""

    def run_of(self, prepared, graph):
        def run(inputs, outputs=None):
            time.sleep(2 * LONG)
            return prepared.run(inputs, outputs)

        return run
