"""Options of an EP as a session gives them to it."""

from __future__ import annotations

from onnx import TensorProto, helper

from epctx_core import InferenceSession, Registry
from epctx_core.plugin import ExecutionProvider, hookimpl


def typed_options(provider, given):
    """Return what a host gives for an EP as an EP of its name and with its options sees
    it.
    """
    seen = []

    class Asking(ExecutionProvider):
        name, options = provider.name, provider.options

        def __init__(self, context):
            super().__init__(context)
            seen.append(context.options)

        @hookimpl
        def get_capability(self, graph):
            return []

        @hookimpl
        def compile(self, partitions):
            return []

    registry = Registry(entry_points=False)
    registry.register(Asking)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"
    ]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "g", ends[:1], ends[1:]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    InferenceSession(
        model.SerializeToString(), providers=[(Asking.name, given)], registry=registry
    ).close()
    return seen[0]
