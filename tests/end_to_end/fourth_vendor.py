"""A fourth vendor's simulated EP, complete: what one more of them takes on top of epctx-sim-sdk.

Tessera is made up. Its chip computes float32 in tiles; it has few operators, and a payload made for fewer
tiles runs on more. Nothing here is imported by other EPs, and it imports none of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from epctx_sim_sdk.loading import Claim, ContextLoader, LoadPolicy
from epctx_sim_sdk.session import SimSession
from epctx_sim_sdk.values import is_constant, text_attribute
from epctx_sim_sdk.versions import BLOB_VERSION, SDK_VERSION, Relation, Rules, judge, read_info, write_info
from onnx import TensorProto

from epctx_core.plugin import (
    Compatibility,
    EPContextNode,
    ExecutionProvider,
    ProviderOption,
    Refusal,
    hookimpl,
    supported_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epctx_core.plugin import (
        CompiledPartition,
        ComputeCapability,
        ContextNode,
        ContextReader,
        ContextWriter,
        GraphView,
        NodeView,
        Partition,
        ProviderContext,
    )

EP: Final = "TesseraExecutionProvider"


# --- what it takes: a table of operators, each with a condition or None --------------------------------


def _weight_is_known(node: NodeView, graph: GraphView) -> str | None:
    known = is_constant(graph, node.inputs[1])
    return None if known else f"{node.op_type}: Tessera needs its weight when it compiles"


def _zeros(node: NodeView, _graph: GraphView) -> str | None:
    mode = text_attribute(node, "mode", "constant")
    return None if mode == "constant" else f"Pad: Tessera does not take the mode {mode}"


OPERATORS: Final[Mapping[str, Callable[[NodeView, GraphView], str | None] | None]] = {
    **dict.fromkeys(("Conv", "Gemm", "MatMul"), _weight_is_known),
    **dict.fromkeys(("Add", "Concat", "Mul", "Relu", "Sub", "Tanh"), None),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "MaxPool"), None),
    "Pad": _zeros,
}


def refusal(node: NodeView, graph: GraphView) -> str | None:
    """Return why Tessera does not take a node, or None."""
    if node.domain or node.op_type not in OPERATORS:
        return f"{node.op_type} is not an operator of Tessera's"
    for name in filter(None, (*node.inputs[:1], *node.outputs[:1])):
        value = graph.value(name)
        if value.elem_type != TensorProto.FLOAT or not value.type.is_static:
            return f"{node.op_type}: Tessera takes float32 of a static shape only"
    condition = OPERATORS[node.op_type]
    return condition(node, graph) if condition else None


# --- which payload fits which chip ---------------------------------------------------------------------

_NO, _RECOMPILE = Compatibility.EP_UNSUPPORTED, Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION
_DIFFERENT = (Relation.NEWER, Relation.NEWER_MAJOR, Relation.OLDER_MAJOR, Relation.OTHER, Relation.MISSING)

RULES: Final[Rules] = {
    **{(fact, relation): _NO for fact in ("vendor", "blob", "sdk") for relation in _DIFFERENT},
    ("tiles", Relation.OLDER): _RECOMPILE,
    ("tiles", Relation.NEWER): _NO,
    ("tiles", Relation.OTHER): _NO,
    ("tiles", Relation.MISSING): _NO,
}
CLAIMS: Final = {"ep_sdk_version": Claim("sdk", needed=True), "tessera_tiles": Claim("tiles", needed=True)}


def facts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return what the rules are about: of what is compiled, and of the chip that loads."""
    return {"vendor": "Tessera", "blob": BLOB_VERSION, "sdk": SDK_VERSION, "tiles": str(options["tiles"])}


# --- the hooks -----------------------------------------------------------------------------------------


class TesseraProvider(ExecutionProvider):
    """Simulated EP of a vendor that does not exist."""

    name: ClassVar[str] = EP
    vendor: ClassVar[str] = "epctx project (SIMULATED Tessera, not for hardware)"
    binary_suffix: ClassVar[str] = "tessera"
    options: ClassVar[Sequence[ProviderOption]] = (
        ProviderOption("tiles", int, default=16, choices=(4, 16, 64), doc="How many tiles the chip has."),
    )

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self._facts = facts(context.options)
        self._session = SimSession(EP, context)
        self._loader: ContextLoader | None = None

    @classmethod
    def get_compatibility_info(cls, partitions: Sequence[Partition], options: Mapping[str, Any]) -> str:
        """Return the facts that the rules judge."""
        return write_info(facts(options)) if partitions else ""

    @classmethod
    def validate_compatibility(cls, info: str, options: Mapping[str, Any]) -> Compatibility:
        """Judge by the rules."""
        made_by = read_info(info)
        return judge(RULES, made_by, facts(options)).verdict if made_by else Compatibility.EP_NOT_APPLICABLE

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take what the table allows, of the main graph."""
        if graph.parent_node is not None:
            return [Refusal("Tessera compiles the main graph only", graph.nodes)]
        return supported_partitions(graph, lambda node: refusal(node, graph) or True)

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Convert partitions."""
        return self._session.compile(partitions)

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Write one container, of a share group for all models; the first node carries it."""
        graphs = self._session.shared_graphs(writer)
        payload = writer.payload()
        if writer.final:
            self._session.write(payload, self._facts, graphs)
        stated = {"ep_sdk_version": SDK_VERSION, "tessera_tiles": self._facts["tiles"]}
        return [
            EPContextNode(graph.partition, None if n else payload, main_context=int(not n), attributes=stated)
            for n, graph in enumerate(self._session.graphs)
        ]

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Open the payload and make each node's graph runnable."""
        if self._loader is None:
            runtime = facts(self.context.options)
            policy = LoadPolicy(ep=EP, rules=RULES, runtime=runtime, claims=CLAIMS)
            self._loader = ContextLoader(self.context, self._session.device, policy)
        return self._loader.load(nodes, reader)

    @hookimpl
    def shutdown(self) -> None:
        """Close what still runs."""
        self._loader = None
        self._session.close()
