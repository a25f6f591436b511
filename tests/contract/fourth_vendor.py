"""A fourth vendor's simulated EP, complete: what one more of them takes on top of
epctx-sim-sdk.

Tessera is made up. Its chip computes float32 in tiles; it has few operators, and a
payload made for fewer tiles runs on more. Nothing here is imported by other EPs, and it
imports none of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from epctx_sim_sdk.options import runtime_options
from epctx_sim_sdk.provider import SimulatedProvider
from epctx_sim_sdk.support import NodeSupport
from epctx_sim_sdk.values import is_constant, text_attribute
from epctx_sim_sdk.versions import (
    COMMON_RULES,
    NUMBER,
    OPTIMAL,
    RECOMPILE,
    SDK_VERSION,
    VERSION,
    Claim,
    LoadPolicy,
    Rules,
    field_rules,
    stated_facts,
)
from onnx import TensorProto

from epctx_core.plugin import ProviderOption

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epctx_core.plugin import GraphView, NodeView

EP: Final = "TesseraExecutionProvider"


# --- what it takes: a table of operators, each with a condition or None ---------------


def _weight_is_known(node: NodeView, graph: GraphView) -> str | None:
    known = is_constant(graph, node.inputs[1])
    return (
        None if known else f"{node.op_type}: Tessera needs its weight when it compiles"
    )


def _zeros(node: NodeView, _graph: GraphView) -> str | None:
    mode = text_attribute(node, "mode", "constant")
    return None if mode == "constant" else f"Pad: Tessera does not take the mode {mode}"


OPERATORS: Final[Mapping[str, Callable[[NodeView, GraphView], str | None] | None]] = {
    **dict.fromkeys(("Conv", "Gemm", "MatMul"), _weight_is_known),
    **dict.fromkeys(("Add", "Concat", "Mul", "Relu", "Sub", "Tanh"), None),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "MaxPool"), None),
    "Pad": _zeros,
}


class Support(NodeSupport):
    """Judges by the table."""

    def _judge(self, node: NodeView) -> str | None:
        if node.domain or node.op_type not in OPERATORS:
            return f"{node.op_type} is not an operator of Tessera's"
        for name in filter(None, (*node.inputs[:1], *node.outputs[:1])):
            value = self._graph.value(name)
            if value.elem_type != TensorProto.FLOAT or not value.type.is_static:
                return f"{node.op_type}: Tessera takes float32 of a static shape only"
        condition = OPERATORS[node.op_type]
        return condition(node, self._graph) if condition else None


# --- which payload fits which chip ----------------------------------------------------

RULES: Final[Rules] = {
    **COMMON_RULES,
    **field_rules("sdk", VERSION, older=OPTIMAL),
    **field_rules("tiles", NUMBER, older=RECOMPILE),
}
CLAIMS: Final = {
    "ep_sdk_version": Claim("sdk", needed=True),
    "tessera_tiles": Claim("tiles", needed=True),
}


def facts(options: Mapping[str, Any], _target: str | None = None) -> dict[str, str]:
    """Return what the rules are about: of what is compiled, and of the chip that
    loads.
    """
    return stated_facts(EP, "Tessera", options, {"sdk": SDK_VERSION}) | {
        "tiles": str(options["tiles"])
    }


# --- the EP ---------------------------------------------------------------------------


class TesseraProvider(SimulatedProvider):
    """Simulated EP of a vendor that does not exist."""

    name: ClassVar[str] = EP
    vendor: ClassVar[str] = "epctx project (SIMULATED Tessera, not for hardware)"
    binary_suffix: ClassVar[str] = "tessera"
    notes: ClassVar[str] = "Simulated Tessera payload: not for hardware."
    options: ClassVar[Sequence[ProviderOption]] = (
        ProviderOption(
            "tiles",
            int,
            default=16,
            choices=(4, 16, 64),
            doc="How many tiles the chip has.",
        ),
        *runtime_options("sdk"),
    )
    compiler_facts = staticmethod(facts)
    support = staticmethod(Support)

    @staticmethod
    def load_policy(
        options: Mapping[str, Any], target: str | None = None
    ) -> LoadPolicy:
        """Return the rules, and the facts of the chip that loads."""
        return LoadPolicy(
            ep=EP, rules=RULES, runtime=facts(options, target), claims=CLAIMS
        )

    def node_attributes(self, *_: object) -> Sequence[Mapping[str, Any]]:
        """Return what each node states beside its payload."""
        stated = {
            "ep_sdk_version": self._made_by["sdk"],
            "tessera_tiles": self._made_by["tiles"],
        }
        return [stated] * len(self._session.graphs)
