"""The small EP with something around what it runs, or around what it says of its
nodes.
"""

from __future__ import annotations

from conformance.small_ep import SmallProvider

from epctx_core.plugin import (
    CompiledPartition,
    hookimpl,
)


class Running(SmallProvider):
    """The small EP with something around what it runs."""

    def around(self, run, inputs):
        return run(inputs)

    def _runnable(self, model):
        made = super()._runnable(model)
        run = made.run
        return (
            made
            if run is None
            else CompiledPartition(
                lambda i, _o=None: self.around(run, i), close=made.close
            )
        )


class Describing(SmallProvider):
    """The small EP with something around its description."""

    def around(self, nodes, writer):
        return nodes

    @hookimpl
    def get_ep_context_nodes(self, writer):
        return self.around(super().get_ep_context_nodes(writer), writer)
