"""Small values that pass between the core and an EP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_core.plugin.storage import Payload
    from epctx_core.plugin.views import NodeView, Partition, ValueInfo


class Severity(Enum):
    """How much a finding matters; the values are what users read."""

    ERROR = "error"
    """The model does not load, or not everywhere, or is not what was compiled."""
    WARNING = "warning"
    """It may not do what is wanted: something is missing here, or would be better otherwise."""
    INFO = "info"
    """Good to know, such as what could not be checked."""


CONTAINER_CODES = frozenset({"container-refused", "container-not-checked"})
"""What an EP can find: that it would not load a node, or that it cannot tell."""


@dataclass(frozen=True)
class Finding:
    """One thing that is to be said about a model.

    Args:
        severity: see `Severity`.
        code: what kind of thing; docs/verify.md lists all. Those of EPs are `CONTAINER_CODES`.
        message: what was found, in which object and why that matters; one or two sentences.
        node: the node concerned, or None.
        hint: what to do about it.

    Example:
        >>> Finding(Severity.ERROR, "container-refused", "acme.bin has no graph 'a_0'.", node="a_0")
    """

    severity: Severity
    code: str
    message: str
    _: KW_ONLY
    node: str | None = None
    hint: str = ""

    def as_dict(self) -> dict[str, str | None]:
        """Return what `epctx verify --json` prints."""
        return {
            "severity": self.severity.value,
            "code": self.code,
            "node": self.node,
            "message": self.message,
            "hint": self.hint,
        }


class Purpose(Enum):
    """What an EP instance is made for."""

    EXPORT = "export"
    """Compile ahead of time; no device may be opened."""
    LOAD = "load"
    """Run a context model."""
    RUN = "run"
    """Compile and run in one session."""


@dataclass(frozen=True)
class Availability:
    """Whether an EP can serve a purpose on this machine, and if not, why.

    Example:
        >>> Availability(False, reason="no NPU driver found", hint="Install the driver.")
    """

    available: bool
    _: KW_ONLY
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class BuildInfo:
    """What an EP compiles with and for; the core notes it in the manifest of a context model.

    For people who ask where a model came from: nothing is judged by it. What a later load must know
    belongs into `ExecutionProvider.get_compatibility_info`.

    Attributes:
        sdk: version of the compiler or SDK, as its vendor writes it.
        driver: version of the driver that payloads need, empty where there is none.
        target: the device that payloads are for.
    """

    sdk: str = ""
    driver: str = ""
    target: str = ""


class Compatibility(IntEnum):
    """`OrtCompiledModelCompatibility`, by ONNX Runtime's names and numbers."""

    EP_NOT_APPLICABLE = 0
    EP_SUPPORTED_OPTIMAL = 1
    EP_SUPPORTED_PREFER_RECOMPILATION = 2
    EP_UNSUPPORTED = 3


@dataclass(frozen=True)
class ComputeCapability:
    """Nodes that an EP takes as one unit.

    Args:
        nodes: what is taken. The set must be convex; the core merges sets into maximal partitions
            and never splits one.
        fuse: True to have them compiled; False to have each run by the EP's kernel registry.
        keep_initializers: True to leave the weights in the model, as inputs of the EPContext node.
        exact: True for a set that is a partition as it stands, as an EP says that compiled it to find out what it
            takes: it is merged with no other, and refused whole where it would have to shrink. Not with `fuse=False`.
        token: comes back as `Partition.token`, such as what was compiled; only with `exact`. It stays in the process
            of the EP.
    """

    nodes: Sequence[NodeView]
    _: KW_ONLY
    fuse: bool = True
    keep_initializers: bool = False
    exact: bool = False
    token: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Refusal:
    """Nodes that an EP does not take, with the reason a user reads."""

    reason: str
    nodes: Sequence[NodeView]


@dataclass(frozen=True)
class EPContextNode:
    """What an EP says about the EPContext node of one partition.

    Args:
        partition: the partition compiled.
        payload: what `writer.payload()` gave, on a primary; None on a node that refers to another's.
        main_context: 1 on a node that carries a payload, by the vendor's rule.
        attributes: the vendor's own (`ep_sdk_version`, `notes`, `max_size`, private ones). Those
            that the core writes are refused: see `CORE_ATTRIBUTES`.
        doc_string: what model viewers show beside the node.
        graph_name: what stands in `partition_name`, for a runtime that names its graphs itself and finds them by
            that alone; `partition.name` without it. It differs for each node of the EP in a model, and in a share group
            two models have it in common only for equal partitions. `ep.context_node_name_prefix` is part of
            `partition.name` and not put before it.

    Several nodes may carry one payload, with main_context 1 and 0. Where payloads are embedded the core stores
    it in the first of them that has 1 and makes the others refer to it. A load gets it from each of them.
    """

    partition: Partition
    payload: Payload | None = None
    main_context: int = 1
    attributes: Mapping[str, Any] = field(default_factory=dict)
    doc_string: str = ""
    _: KW_ONLY
    graph_name: str | None = None


CORE_ATTRIBUTES = frozenset({"ep_cache_context", "embed_mode", "main_context", "partition_name", "source"})
"""Attributes of the EPContext node that only the core writes."""


@dataclass(frozen=True, kw_only=True)
class ContextNode:
    """An EPContext node as an EP gets it to load.

    Attributes:
        name: the node's name in the model.
        partition_name: the graph's name inside the payload, as `EPContextNode.graph_name` or the core said; the node's
            name where it is not written.
        source: as written in the model.
        main_context: whether the node carries (or names) a payload itself.
        primary: the node whose payload holds this node's graph: itself for a primary, the only
            primary of the EP for a reference. None for a reference where there are several: the EP
            looks for `partition_name` in their payloads.
        inputs, outputs: the boundary, in the order in which `run` gets and gives tensors.
        attributes: everything the node says, decoded: int, float, str, or bytes where not UTF-8;
            without `ep_cache_context`, which only the core reads.
    """

    name: str
    partition_name: str
    source: str
    main_context: bool
    primary: ContextNode | None = field(repr=False, compare=False)
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    attributes: Mapping[str, Any]
