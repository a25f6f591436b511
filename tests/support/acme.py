"""An EP that has kernels instead of a compiler, for operators of its own, and models
with these operators.
"""

from __future__ import annotations

from typing import ClassVar

import epctx_kernels
import numpy as np
import onnx.parser
from epctx_kernels import KernelDef, KernelRegistry, OperatorTypes

import epctx_core as epctx
from epctx_core.errors import InvalidGraph

FLOAT, DOUBLE, INT64 = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.INT64,
)
SCALE = OperatorTypes(domain="acme", op_type="Scale", inputs=("T", "T"), outputs=("T",))
X = np.array([-1.0, 2.0], np.float32)


def model_of(body, *, inputs="float[2] x", outputs="float[2] y", inner="", acme=1):
    """Return a model of a body in ONNX's text form, with types of inner values; `acme`
    versions the EP's domain.
    """
    values = f"<{inner}>" if inner else ""
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17, "acme": {acme}]> g ({inputs}) => '
        f"({outputs}) {values} {{ {body} }}"
    )


def scale(node):
    """Make the kernel of acme::Scale: x times an attribute, plus a second input if the
    node has one.
    """
    if len(node.outputs) > 1:
        raise InvalidGraph(
            f"acme::Scale has one output, not {len(node.outputs)}.", node=node.name
        )
    by = np.float32(node.attributes.get("by", 2.0))
    return lambda inputs: [
        inputs[0] * by
        + (inputs[1] if len(inputs) > 1 and inputs[1] is not None else np.float32(0))
    ]


def scaling(**facts):
    """Return the KernelDef of acme::Scale."""
    base = {"domain": "acme", "op_type": "Scale", "since_version": 1, "create": scale}
    return KernelDef(**{**base, "type_constraints": {"T": {FLOAT}}, **facts})


class KernelProvider(epctx_kernels.KernelProvider):
    """Claims every node that one of its kernels fits."""

    kernels: ClassVar[list[KernelDef]] = []
    described: ClassVar[list[OperatorTypes]] = []

    def get_kernel_registry(self):
        return KernelRegistry(self.kernels, self.described)


class Acme(KernelProvider):
    """Has acme::Scale, and says what its types have in common."""

    name = "AcmeExecutionProvider"
    kernels: ClassVar[list[KernelDef]] = [scaling()]
    described: ClassVar[list[OperatorTypes]] = [SCALE]


def kernel_ep(*kernels, described=(SCALE,), base=KernelProvider, **attributes):
    """Return an EP class with these kernels."""
    members = {"kernels": list(kernels), "described": list(described), **attributes}
    return type("OneAcme", (base,), {"name": "AcmeExecutionProvider", **members})


def with_eps(*eps):
    """Return a registry of EP classes, and session options that ask for them in
    order.
    """
    registry, options = epctx.Registry(entry_points=False), epctx.SessionOptions()
    for ep in eps:
        registry.register(ep)
        options.add_provider(ep.name)
    return registry, options


def session_of(model, *eps):
    """Return a session over a model, a path or a ModelProto."""
    registry, options = with_eps(*eps)
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return epctx.InferenceSession(source, options, registry=registry)


def results_of(model, *eps, **feeds):
    """Return what a session gives for inputs; `x` is `X` by default."""
    with session_of(model, *eps) as session:
        return session.run(None, feeds or {"x": X})


def compiled(model, folder, *eps):
    """Compile a model for EPs; return the context model's path."""
    source = folder / "m.onnx"
    onnx.save(model, source)
    registry, options = with_eps(*eps)
    epctx.ModelCompiler(options, source, registry=registry).compile_to_file()
    return folder / "m_ctx.onnx"
