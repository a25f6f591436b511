"""EPs that claim what a test says and keep what they are shown: a graph and its
partitions as an EP sees them.
"""

from __future__ import annotations

from os import PathLike

import onnx

from epctx_core import InferenceSession, ModelCompiler, Registry, SessionOptions
from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    EPContextNode,
    ExecutionProvider,
    hookimpl,
)


def provider(name, claim, **attributes):
    """Make an EP class that claims by a function of the view; `views` and `partitions`
    are what it was shown.
    """

    class Provider(ExecutionProvider):
        views, partitions = [], []

        @hookimpl
        def get_capability(self, graph):
            self.views.append(graph)
            return claim(graph)

        @hookimpl
        def compile(self, partitions):
            self.partitions.extend(partitions)
            return [CompiledPartition(never_run) for _ in partitions]

        @hookimpl
        def get_ep_context_nodes(self, writer):
            nodes = []
            for number, partition in enumerate(self.partitions):
                payload = writer.payload(str(number))
                payload.write(b"\xff\x00payload")
                nodes.append(EPContextNode(partition, payload))
            return nodes

        @hookimpl
        def load_context(self, nodes):
            return [CompiledPartition(never_run) for _ in nodes]

    return type(name, (Provider,), {"name": name, **attributes})


def never_run(_inputs, _outputs=None):
    raise AssertionError("these tests run nothing")


def sets(*groups, **how):
    """Claim sets of nodes as they stand, by their numbers in the main graph."""

    def claim(graph):
        if graph.parent_node is not None:
            return []
        by_index = {node.index: node for node in graph.nodes}
        return [
            ComputeCapability([by_index[i] for i in group], exact=True, **how)
            for group in groups
        ]

    return claim


def rest(graph):
    """Claim all that is left."""
    return [ComputeCapability(group) for group in graph.convex_groups(graph.nodes)]


def nothing(_graph):
    return []


def shown(made, claim=nothing, look=rest, *, options=None, **attributes):
    """Return the classes of two EPs in a session: the first claims what a test says,
    the second what is left.
    """
    registry = Registry(entry_points=False)
    first, second = provider("First", claim, **attributes), provider("Second", look)
    registry.register(first)
    registry.register(second)
    model = (
        made if isinstance(made, (bytes, str, PathLike)) else made.SerializeToString()
    )
    with InferenceSession(
        model, options, providers=["First", "Second"], registry=registry
    ):
        return first, second


def partitions(made, *groups, options=None, keep_initializers=False, **attributes):
    """Return the partitions that sets of a model's nodes make."""
    claim = sets(*groups, keep_initializers=keep_initializers)
    return shown(made, claim, options=options, **attributes)[0].partitions


def partition_of(made, nodes=None, **how):
    """Return the partition that some nodes of a model make, or all of them."""
    nodes = range(len(made.graph.node)) if nodes is None else nodes
    (found,) = partitions(made, nodes, **how)
    return found


def view(made, taken=()):
    """Return the main graph as an EP sees it when another has taken some nodes."""
    return shown(made, sets(*([i] for i in taken)))[1].views[-1]


def looked(made, look, taken=()):
    """Return what a function says of that view, asked while the EP is."""
    said = []

    def claim(graph):
        if graph.parent_node is None:
            said.append(look(graph))
        return rest(graph)

    shown(made, sets(*([i] for i in taken)), claim)
    return said[0]


def names(values):
    return [value.name for value in values]


def compiled(made, *groups, keep_initializers=False, **attributes):
    """Return a model's context model, in which each set of nodes is an EPContext
    node.
    """
    registry = Registry(entry_points=False)
    registry.register(
        provider(
            "First", sets(*groups, keep_initializers=keep_initializers), **attributes
        )
    )
    options = SessionOptions()
    options.add_provider("First", {})
    options.add_session_config_entry("ep.context_embed_mode", "1")
    compiler = ModelCompiler(options, made.SerializeToString(), registry=registry)
    return onnx.load_from_string(compiler.compile_to_bytes())
