"""EPs that trust the payload they are given."""

from __future__ import annotations

import ctypes
import json
import sys

import numpy as np
from conformance.lying_plugins.table import lie
from support.honest_ep import HEAD, MAGIC, VERSION, HonestProvider

from epctx_core.plugin import CompiledPartition, ProviderOption, hookimpl


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
            raise self.refusal(
                node, payload, "is none of this EP's, or of another version"
            )
        if self.trusts == "digest":
            return length
        return super().checked(
            node, Restored(payload, HEAD.pack(magic, version, digest, length))
        )


class Restored:
    """A payload with its head put right."""

    def __init__(self, payload, head):
        self.view = memoryview(head + bytes(payload.view[HEAD.size :]))
        self.name = payload.name


@lie("it_refuses_a_payload_with_any_other_byte_in_its_head")
class AcceptsAnyVersion(Trusting):
    """Does not look at the version of a payload."""

    trusts = "version"


@lie("it_refuses_a_payload_with_any_other_byte_in_its_head")
class AcceptsAnyMagic(Trusting):
    """Does not look at the magic number of a payload."""

    trusts = "magic"


@lie("it_refuses_a_damaged_payload_or_the_damage_does_no_harm")
class AcceptsDamage(Trusting):
    """Does not compare the digest of a payload."""

    trusts = "digest"


@lie("it_refuses_a_truncated_payload")
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
        return (
            super().runnable(graph)
            if graph
            else CompiledPartition(lambda _inputs, _outputs=None: [])
        )


@lie("it_passes_on_the_core_s_errors_about_a_payload")
class SwallowsErrors(HonestProvider):
    """Returns zeros for a payload that it cannot load."""

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


@lie("it_refuses_a_node_whose_graph_is_missing")
class TakesTheFirstGraph(HonestProvider):
    """Takes the first graph of a payload that has none of a node's name."""

    def graph_of(self, node, payload):
        length = self.checked(node, payload)
        index = json.loads(bytes(payload.view[HEAD.size :][:length]))
        name = (
            node.partition_name if node.partition_name in index else next(iter(index))
        )
        start = sum(
            size
            for other, size in index.items()
            if list(index).index(other) < list(index).index(name)
        )
        rest = payload.view[HEAD.size + length :]
        return bytes(rest[start : start + index[name]])


@lie("it_refuses_a_file_that_is_not_a_payload")
class RaisesItsOwnErrors(HonestProvider):
    """A payload that it does not take raises what Python raises."""

    def refusal(self, node, payload, why):
        return KeyError(why)


@lie("it_refuses_a_file_that_is_not_a_payload")
class SaysNothing(HonestProvider):
    """Refuses a payload without a word."""

    def refusal(self, node, payload, why):
        error = super().refusal(node, payload, why)
        return type(error)("")


@lie("it_refuses_a_truncated_payload")
class FindsOutInTheFirstRun(HonestProvider):
    """Takes any payload, and looks at it when it is run."""

    @hookimpl
    def load_context(self, nodes, reader):
        return [
            CompiledPartition(self.later(node, reader.payload(node))) for node in nodes
        ]

    def later(self, node, payload):
        def run(inputs, outputs=None):
            return self.runnable(self.graph_of(node, payload)).run(inputs, outputs)

        return run


@lie("it_loads_a_good_payload_after_a_refusal")
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


def end_the_process():
    """Read where no memory is, as a native reader does that believes an offset; the
    suite itself has to go on.
    """
    if "pytest" in sys.modules:
        raise AssertionError("a damaged payload in the process of the kit")
    ctypes.string_at(0)


class Believing(HonestProvider):
    """Ends its process instead of refusing a payload."""

    def refusal(self, node, payload, why):
        end_the_process()


@lie("it_refuses_a_truncated_payload")
class DiesOfATruncatedPayload(Believing):
    """Reads beyond the end of a payload."""


@lie("it_refuses_a_payload_with_any_other_byte_in_its_head")
class DiesOfItsHead(Believing):
    """Believes the head of a payload."""


@lie("it_refuses_a_damaged_payload_or_the_damage_does_no_harm")
class DiesInARun(Trusting):
    """Loads whatever its graphs are, and runs into what is wrong with them."""

    trusts = "digest"

    def runnable(self, graph):
        try:
            return super().runnable(graph)
        except Exception:  # noqa: BLE001 - the lie
            return CompiledPartition(lambda _inputs, _outputs=None: end_the_process())


@lie("it_refuses_the_payload_of_another_model")
class DiesOfAForeignPayload(Believing):
    """Looks for a graph until it leaves the payload."""


@lie("it_refuses_a_damaged_payload_in_the_model")
class DiesOfAnEmbeddedPayload(Believing):
    """Does so with embedded payloads, too."""


@lie("it_loads_a_good_payload_after_a_refusal")
class DiesInsteadOfRefusing(Believing):
    """There is no load after the first bad one."""


@lie("it_refuses_a_node_whose_graph_is_missing")
class DiesOfAMissingGraph(Believing):
    """Ends with a node that asks for another graph; that no digest covers."""

    needs_verified_payloads = True


@lie("its_verification_of_a_damaged_payload_ends_in_findings")
class DiesWhileVerifying(HonestProvider):
    """Reads a damaged payload natively when it verifies, and not when it loads."""

    @classmethod
    def verify_payloads(cls, context, nodes, reader):
        for node in nodes:
            if bytes(reader.payload(node).view[:8]) != MAGIC:
                end_the_process()
        return []


@lie("its_verification_of_a_damaged_payload_ends_in_findings")
class RaisesWhileVerifying(HonestProvider):
    """Raises what Python raises where a finding is due."""

    @classmethod
    def verify_payloads(cls, context, nodes, reader):
        for node in nodes:
            HEAD.unpack_from(reader.payload(node).view)
        return []


class Dynamic(HonestProvider):
    """Knows one dynamic option and one value of it."""

    @hookimpl
    def set_dynamic_options(self, options):
        for name, value in options.items():
            if (name, value) != ("ep.dynamic.mode", "fast"):
                self.refuse(name, value)

    def refuse(self, name, value):
        raise ValueError(f"{name}={value}")


@lie("it_refuses_unknown_dynamic_options")
class DiesOfADynamicOption(Dynamic):
    """Hands every option to native code, which ends the process for one that it does
    not know.
    """

    needs_verified_payloads = True

    def refuse(self, name, value):
        end_the_process()


@lie("it_refuses_unknown_dynamic_options")
class DiesOfTheValueOfADynamicOption(Dynamic):
    """Declares an option without its choices, and native code ends the process for
    another value.
    """

    dynamic_options = (
        ProviderOption("ep.dynamic.mode", str, default="fast", doc="A mode."),
    )

    def refuse(self, name, value):
        end_the_process()
