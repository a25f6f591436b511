"""EPs with a kernel that counts its calls, in a module that other processes can import."""

from __future__ import annotations

import onnx
from epctx_kernels import KernelDef, KernelProvider, KernelRegistry
from support.engine_eps import Alpha

from epctx_core.plugin import hookimpl

FLOAT = onnx.TensorProto.FLOAT


class Single(KernelProvider):
    """A kernel for Neg that counts its calls in this process."""

    name = "SingleExecutionProvider"
    calls = 0

    def get_kernel_registry(self):
        return KernelRegistry(
            [
                KernelDef(
                    domain="",
                    op_type="Neg",
                    since_version=13,
                    create=self._neg,
                    type_constraints={"T": {FLOAT}},
                )
            ]
        )

    def _neg(self, _node):
        def run(inputs):
            Single.calls += 1
            return [-inputs[0]]

        return run


class Loading(Alpha, Single):
    """Alpha, with this kernel."""

    name = "LoadingExecutionProvider"
    binary_suffix = "loading"

    @hookimpl
    def get_capability(self, graph):
        compiled = Alpha.get_capability(self, graph)
        return [*compiled, *Single.get_capability(self, graph)]

    @hookimpl
    def compile(self, partitions):
        return [
            base.compile(self, [partition])[0]
            for partition in partitions
            for base in [Alpha if partition.token is None else Single]
        ]
