"""EPs that trust the payload they are given."""

from __future__ import annotations

import json

import numpy as np
from conformance.honest_ep import HEAD, MAGIC, VERSION, HonestProvider
from conformance.lying_plugins.table import lie

from epctx_core.plugin import CompiledPartition, hookimpl


class Trusting(HonestProvider):
    """Reads a head of which some fields do not matter to it."""

    trusts: str

    def checked(self, node, payload):
        if len(payload.view) < HEAD.size:
            raise self.refusal(node, payload, "is shorter than a head")
        honest = bytearray(payload.view[: HEAD.size])
        magic, version, digest, length = HEAD.unpack_from(honest)
        if self.trusts == "magic":
            magic = MAGIC
        if self.trusts == "version":
            version = VERSION
        if (magic, version) != (MAGIC, VERSION):
            raise self.refusal(node, payload, "is none of this EP's, or of another version")
        if self.trusts == "digest":
            return length
        return super().checked(node, Restored(payload, HEAD.pack(magic, version, digest, length)))


class Restored:
    """A payload with its head put right."""

    def __init__(self, payload, head):
        self.view = memoryview(head + bytes(payload.view[HEAD.size :]))
        self.name = payload.name


@lie("a_payload_of_another_kind_or_version_is_refused_each_byte_of_its_head_counts")
class AcceptsAnyVersion(Trusting):
    """Does not look at the version of a payload."""

    trusts = "version"


@lie("a_payload_of_another_kind_or_version_is_refused_each_byte_of_its_head_counts")
class AcceptsAnyMagic(Trusting):
    """Does not look at the magic number of a payload."""

    trusts = "magic"


@lie("a_payload_damaged_anywhere_is_refused_or_does_no_harm")
class AcceptsDamage(Trusting):
    """Does not compare the digest of a payload."""

    trusts = "digest"


@lie("a_payload_that_was_cut_short_is_refused")
class AcceptsWhatIsLeft(HonestProvider):
    """A payload that it cannot read to the end is an empty one."""

    def graph_of(self, node, payload):
        try:
            return super().graph_of(node, payload)
        except Exception:
            if bytes(payload.view[:8]) != MAGIC:
                raise
            return b""

    def runnable(self, graph):
        return super().runnable(graph) if graph else CompiledPartition(lambda _inputs, _outputs=None: [])


@lie("what_the_core_finds_wrong_with_a_payload_passes_through_the_ep")
class SwallowsErrors(HonestProvider):
    """What cannot be loaded gives zeros."""

    @hookimpl
    def load_context(self, nodes, reader):
        try:
            return super().load_context(nodes, reader)
        except Exception:  # noqa: BLE001 - the lie
            return [CompiledPartition(zeros(node)) for node in nodes]


def zeros(node):
    def run(inputs, _outputs=None):
        return [np.zeros(inputs[0].shape, value.dtype) for value in node.outputs]

    return run


@lie("a_node_that_asks_for_a_graph_that_is_not_there_is_refused")
class TakesTheFirstGraph(HonestProvider):
    """Where a payload has no graph of a node's name, its first one will do."""

    def graph_of(self, node, payload):
        length = self.checked(node, payload)
        index = json.loads(bytes(payload.view[HEAD.size :][:length]))
        name = node.partition_name if node.partition_name in index else next(iter(index))
        start = sum(
            size for other, size in index.items() if list(index).index(other) < list(index).index(name)
        )
        rest = payload.view[HEAD.size + length :]
        return bytes(rest[start : start + index[name]])


@lie("what_is_no_payload_at_all_is_refused")
class RaisesItsOwnErrors(HonestProvider):
    """A payload that it does not take raises what Python raises."""

    def refusal(self, node, payload, why):
        return KeyError(why)


@lie("what_is_no_payload_at_all_is_refused")
class SaysNothing(HonestProvider):
    """Refuses a payload without a word."""

    def refusal(self, node, payload, why):
        error = super().refusal(node, payload, why)
        return type(error)("")


@lie("a_payload_that_was_cut_short_is_refused")
class FindsOutInTheFirstRun(HonestProvider):
    """Takes any payload, and looks at it when it is run."""

    @hookimpl
    def load_context(self, nodes, reader):
        return [CompiledPartition(self.later(node, reader.payload(node))) for node in nodes]

    def later(self, node, payload):
        def run(inputs, outputs=None):
            return self.runnable(self.graph_of(node, payload)).run(inputs, outputs)

        return run


@lie("after_a_refusal_a_good_payload_is_loaded")
class BrokenByARefusal(HonestProvider):
    """After one payload was refused, this process loads none any more."""

    broken = False

    def refusal(self, node, payload, why):
        type(self).broken = True
        return super().refusal(node, payload, why)

    def checked(self, node, payload):
        if self.broken:
            raise super().refusal(node, payload, "cannot be read: the driver is gone")
        return super().checked(node, payload)
