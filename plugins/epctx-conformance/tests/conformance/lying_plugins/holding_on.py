"""EPs that keep resources."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from typing import ClassVar

from conformance.lying_plugins.table import lie
from conformance.thorough_ep import ThoroughProvider
from support.honest_ep import HonestProvider

from epctx_core.plugin import CompiledPartition, hookimpl


class HoldingOn(HonestProvider):
    """Acquires a resource in each instance."""

    def __init__(self, context):
        super().__init__(context)
        self.take()


@lie("a_closed_session_leaves_no_thread")
class LeavesAThread(HoldingOn):
    """Has a thread that waits for work until the process ends."""

    def take(self):
        threading.Thread(
            target=threading.Event().wait, daemon=True, name="acme worker"
        ).start()


@lie("a_closed_session_leaves_no_file_descriptor")
class LeavesADescriptor(HoldingOn):
    """Opens a file and never closes it."""

    taken: ClassVar[list[int]] = []

    def take(self):
        self.taken.append(os.open(os.devnull, os.O_RDONLY))


@lie("a_closed_session_leaves_no_mapping_of_a_file")
class LeavesAMapping(HoldingOn):
    """Maps a file and keeps the mapping."""

    taken: ClassVar[list[mmap.mmap]] = []

    def take(self):
        with self.context.scratch() as folder:
            path = folder / "tables"
            path.write_bytes(bytes(mmap.PAGESIZE))
            with path.open("r+b") as file:
                self.taken.append(mmap.mmap(file.fileno(), 0))


@lie("a_closed_session_leaves_no_instance_of_the_ep")
class KeepsInstances(HoldingOn):
    """Keeps every instance, and with it all that it compiled."""

    taken: ClassVar[list[HonestProvider]] = []

    def take(self):
        self.taken.append(self)


@lie("a_closed_session_leaves_no_mapping_of_a_file")
class KeepsPayloads(HonestProvider):
    """Keeps the payloads of all sessions mapped."""

    taken: ClassVar[list[memoryview]] = []

    def graph_of(self, node, payload):
        self.taken.append(payload.view)
        return super().graph_of(node, payload)


@lie("it_leaves_no_file_behind")
class LeavesAFile(HoldingOn):
    """Makes a temporary folder of its own and leaves it."""

    def take(self):
        tempfile.mkdtemp(prefix="acme-")


@lie("shutdown_ends_an_instance_that_did_nothing")
class ShutsDownOnlyAfterWork(HonestProvider):
    """`shutdown` raises in an instance that compiled and loaded nothing."""

    device = None

    def runnable(self, graph):
        self.device = threading.Lock()
        return super().runnable(graph)

    @hookimpl
    def shutdown(self):
        self.device.acquire(blocking=False)
        super().shutdown()


@lie("its_compiled_partitions_close_without_an_error")
class ShutsDownBeforeItCloses(HonestProvider):
    """Compiles partitions whose close raises."""

    def runnable(self, graph):
        made = super().runnable(graph)

        def close():
            raise RuntimeError("already closed")

        return CompiledPartition(made.run, close=close)


@lie("its_compiled_partitions_close_without_an_error")
class ClosesItsRuntimeForEach(ThoroughProvider):
    """Each of the results that share a runtime closes it by a function of its own."""

    def close_of(self, runtime):
        def close():
            runtime.close()

        return close
