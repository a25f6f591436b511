"""How an EP writes and reads payload bytes, what it finds in them, and what sessions of one share group have in common.

An EP never sees a path of the model, nor whether its bytes end up embedded, in a file or elsewhere:
that is the core's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import os
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.plugin.types import ContextNode
    from epctx_core.plugin.views import Partition, TensorView

T = TypeVar("T")


class Payload(Protocol):
    """A payload being written, front to back."""

    @property
    def size(self) -> int:
        """Bytes written so far; the offset of the next one."""

    def write(self, buffer: Buffer) -> int:
        """Append bytes; return the offset of the first."""

    def align(self, alignment: int) -> int:
        """Append zero bytes up to a multiple of `alignment`; return the new offset."""

    def write_tensor(self, view: TensorView) -> int:
        """Append a weight's raw bytes, streamed; return its offset.

        Content that this payload already holds as a weight is not stored again: the offset of the
        earlier copy is returned.
        """

    def add_file(self, path: str | os.PathLike[str]) -> int:
        """Append the content of a file that a vendor's tool produced; return its offset."""


class ContextWriter(Protocol):
    """Given to `get_ep_context_nodes`."""

    @property
    def final(self) -> bool:
        """Whether bytes are to be written; False while a member of a share group is asked for its nodes alone.

        Then start the payload that the nodes name, write nothing into it, and leave what was compiled in
        `ProviderContext.workspace`. The last member is asked once more, with True, for the bytes of all.
        """

    @property
    def graphs_by_model(self) -> tuple[tuple[str, ...], ...]:
        """The names of the EP's partitions in each model that the payload is for, in order.

        Without a share group that is one model. In a group the models so far, the one that is asked last;
        when `final` is True, all. Only these are written: a workspace may also hold graphs of a model that
        failed. Two models may have a graph in common.
        """

    def payload(self, name: str | None = None) -> Payload:
        """Start a payload. A second, named one only where an EP truly can't avoid it."""

    def reference(self, view: TensorView) -> str | None:
        """Ask whether payloads leave a weight in the source model (weightless mode).

        Returns:
            The name under which `ContextReader.source_tensor` gives it at a load; the payload keeps that
            with digest, type and shape, and no bytes. None if the payload has to hold it: always
            outside of weightless mode, and always for a weight that is not the source's own.
        """


class PayloadView(Protocol):
    """A payload to read."""

    @property
    def view(self) -> memoryview:
        """The bytes, read-only; mapped where they lie in a file, and kept alive by the view."""

    @property
    def name(self) -> str:
        """A name for messages: the file's name, or the node's for an embedded payload."""

    @property
    def digest(self) -> str | None:
        """Root digest out of the manifest, or None for a model without one."""

    @property
    def verified(self) -> bool:
        """Whether every byte is known to be as it was written: an EP need not digest it again.

        False while the core still digests it beside the EP's own work, where the host wants less than that, and
        without a manifest. Structure, versions and lengths are the EP's to check in any case.
        """

    def as_file(self) -> str:
        """Return a path with the same content, for SDKs that take only paths; valid while the session lives.

        It lies in the folder for temporary files; where that is on another file system than the model,
        the payload is copied there. What the host's callback gave lies in memory instead, on no disk: the path
        then works in this process and in programs that it starts, but has no extension. Only to be read.

        Raises:
            Fail: there is no space, or the system has no files in memory.
        """


class ContextReader(Protocol):
    """Given to `load_context`."""

    def payload(self, node: ContextNode) -> PayloadView:
        """Return the payload that holds a node's graph: its own, or its primary's.

        Raises:
            InvalidGraph: missing, empty, truncated, altered, or a name that leaves the folder.
        """

    def source_tensor(self, name: str) -> TensorView:
        """Return a weight that a payload left in the source model (weightless mode).

        It is used where it lies, as a weight of a payload is. The first call digests all that payloads
        of the model left out.

        Args:
            name: as `ContextWriter.reference` gave it.

        Raises:
            InvalidGraph: there is no source model, or the weight is missing or changed.
        """


class Workspace(Protocol):
    """What the sessions of one share group have in common; private to a session without a group.

    The core keys it by EP distribution, options fingerprint and the identity of the binary.
    """

    def get_or_create(
        self, key: str, factory: Callable[[], T], close: Callable[[T], None] | None = None
    ) -> T:
        """Return the object under a key, made on the first call; `close` runs when the last user leaves.

        Other sessions of the group wait while the factory runs.
        """

    def put(self, graph_name: str, obj: object) -> None:
        """Leave a graph for another session of the group.

        One that nobody takes is dropped, not closed: what has to be closed belongs to `get_or_create`.
        """

    def take(self, graph_name: str) -> object | None:
        """Take a graph that another session left; it is gone from the workspace afterwards."""


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
        return {**asdict(self), "severity": self.severity.value}
