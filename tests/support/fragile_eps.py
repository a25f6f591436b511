"""EPs whose reader of payloads ends its process at a damaged byte, as native readers
do.
"""

from __future__ import annotations

import ctypes
import sys
from typing import ClassVar

from support.engine_eps import Alpha, packed, unpacked

from epctx_core.plugin import CompiledPartition, EPContextNode, hookimpl

PART = 12 << 20
"""Bytes of zeros before the graphs: more than a load's look at a payload's head and
some blocks covers.
"""


class Fragile(Alpha):
    """Ends its process where one of these bytes is another one; in the suite's own it
    notes that, and raises.
    """

    name = "FragileExecutionProvider"
    binary_suffix = "fragile"
    needs_verified_payloads = True
    loads: ClassVar[list[bool]] = []
    """Of each load in this process, whether the payload was verified by then."""
    looks: ClassVar[list[bool]] = []
    """The same of `verify_payloads`."""
    died: ClassVar[list[str]] = []
    """What would have ended this process."""

    @hookimpl
    def get_ep_context_nodes(self, writer):
        payload = writer.payload()
        payload.write(bytes(PART))
        payload.write(
            packed({partition.name: model for partition, model in self._compiled})
        )
        first, *others = (partition for partition, _ in self._compiled)
        return [
            EPContextNode(first, payload),
            *(EPContextNode(p, main_context=0) for p in others),
        ]

    @hookimpl
    def load_context(self, nodes, reader):
        payload = reader.payload(nodes[0])
        self.loads.append(payload.verified)
        graphs = unpacked(self.read(payload))
        return [
            CompiledPartition(self._runnable(graphs[node.partition_name]))
            for node in nodes
        ]

    @classmethod
    def verify_payloads(cls, context, nodes, reader):
        for node in nodes:
            cls.looks.append(reader.payload(node).verified)
            cls.read(reader.payload(node))
        return []

    @classmethod
    def read(cls, payload):
        """Return the graphs, believing every byte before them."""
        if bytes(payload.view[:PART]) != bytes(PART):
            if "pytest" not in sys.modules:
                ctypes.string_at(0)
            cls.died.append(payload.name)
            raise AssertionError("a damaged payload in the host's process")
        return payload.view[PART:]


class FragileWithoutDevice(Fragile):
    """The same, and able to load without a device."""

    name = "FragileWithoutDeviceExecutionProvider"
    binary_suffix = "fragile2"
    loads_without_device = True
