"""EPs that are wrong in share groups alone."""

from __future__ import annotations

import itertools

from conformance.faulty_eps.table import fault
from conformance.small_ep import SmallProvider
from support.honest_ep import HonestProvider

from epctx_core.plugin import (
    hookimpl,
)


@fault("a_group_of_two_is_three_files_and_both_models_load")
class OnePayloadForEach(SmallProvider):
    pass


@fault("a_member_may_have_no_partition")
class NeedsAPartition(HonestProvider):
    @hookimpl
    def get_ep_context_nodes(self, writer):
        self.compiled[0].name.encode()
        return super().get_ep_context_nodes(writer)


@fault("a_discarded_group_leaves_nothing")
class EndsItsGroupBadly(HonestProvider):
    @hookimpl
    def shutdown(self):
        raise OSError("the device is gone")


@fault("a_group_of_five_loads_in_any_order")
class KeepsTheLastMember(HonestProvider):
    def packed(self, graphs):
        return super().packed(self.graphs)


@fault("only_the_last_member_writes_bytes")
class WritesTooEarly(HonestProvider):
    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = super().get_ep_context_nodes(writer)
        if not writer.final and not hasattr(writer, "_open_sink"):
            writer.payload().write(b"early")
        return nodes


@fault("the_same_group_gives_the_same_bytes")
class CountsItsGroups(HonestProvider):
    number = itertools.count()

    def packed(self, graphs):
        return super().packed({**graphs, "": b" " * next(self.number)})


@fault("weights_that_members_have_in_common_are_stored_once")
class StoresWeightsTwice(HonestProvider):
    pass
