"""Payloads of an EP: interfaces to write and read them, findings, and the workspace of
a share group.

An EP never sees a path of the model, nor whether its bytes are embedded, in a file or
in another place: the core decides that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from epctx_core.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.plugin.types import ContextNode
    from epctx_core.plugin.views import Partition, TensorView

T = TypeVar("T")


class Payload(Protocol):
    """Payload to write, front to back."""

    @property
    def size(self) -> int:
        """Number of bytes written so far; the offset of the next one."""

    def write(self, buffer: Buffer) -> int:
        """Append bytes; return the offset of the first."""

    def align(self, alignment: int) -> int:
        """Append zero bytes up to a multiple of `alignment`; return the new offset."""

    def write_tensor(self, view: TensorView) -> int:
        """Append a weight's raw bytes, streamed; return its offset.

        Content that this payload already holds as a weight is not stored again: the
        offset of the earlier copy is returned.
        """

    def add_file(self, path: str | os.PathLike[str]) -> int:
        """Append the content of a file that a vendor's tool produced; return its
        offset.
        """


class ContextWriter(Protocol):
    """Given to `get_ep_context_nodes`."""

    @property
    def final(self) -> bool:
        """True if bytes are to be written; False while a member of a share group
        describes only its nodes.

        If it is False, start the payload that the nodes name, write nothing into it,
        and leave the compiled graphs in `ProviderContext.workspace`. The last member is
        called once more, with True, to write the bytes of all.
        """

    @property
    def graphs_by_model(self) -> tuple[tuple[str, ...], ...]:
        """Names of the EP's partitions in each model of the payload, in order.

        Without a share group that is one model. In a group it is the models so far, the
        current one last; when `final` is True, all. Write only these: a workspace may
        also contain graphs of a model that failed. Two models may have a graph in
        common.
        """

    def payload(self, name: str | None = None) -> Payload:
        """Start a payload.

        Use a second, named one only if an EP truly can't avoid it.
        """

    def reference(self, view: TensorView) -> str | None:
        """Return the name of a weight that payloads leave in the source model
        (weightless mode).

        Returns:
            The name for `ContextReader.source_tensor` at a load; the payload stores it
            with digest, type and shape, and no bytes. None if the payload has to
            contain the weight: always outside of weightless mode, and always for a
            weight that is not the source's own.
        """


class PayloadView(Protocol):
    """Payload to read."""

    @property
    def view(self) -> memoryview:
        """Bytes, read-only; mapped if they are in a file, and kept alive by the
        view.
        """

    @property
    def name(self) -> str:
        """Name for messages: the file's name, or the node's for an embedded payload."""

    @property
    def digest(self) -> str | None:
        """Root digest from the manifest, or None for a model without one."""

    @property
    def verified(self) -> bool:
        """True if every byte is known to be unchanged, so that an EP need not digest it
        again.

        False while the core still digests it concurrently with the EP's work, if the
        host requested less than that, and without a manifest. The EP checks structure,
        versions and lengths in any case.
        """

    @property
    def is_file(self) -> bool:
        """True if it is a file, mapped; False for what lies in memory: embedded in the
        model, given by a host's callback, or read because the host maps no files.
        """

    def as_file(self) -> str:
        """Return the path of a file with the same content, for SDKs that accept only
        paths; valid while the session is open.

        It is in the folder for temporary files; if that is on another file system than
        the model, the payload is copied there. Data of a host's callback stays in
        memory: the path then works in this process and in programs that it starts, but
        has no extension. Do not write to it. The file is the very one that the
        core checks, or a copy of it, whatever lies at its old path by now.

        Raises:
            InvalidGraph: the file was written to since it was mapped.
            Fail: there is no space, or the system has no files in memory.
        """


class ContextReader(Protocol):
    """Given to `load_context`."""

    def payload(self, node: ContextNode) -> PayloadView:
        """Return the payload with a node's graph: its own, or its primary's.

        Raises:
            InvalidGraph: missing, empty, truncated, altered, or a name that leaves the
                folder.
        """

    def source_tensor(self, name: str) -> TensorView:
        """Return a weight that a payload left in the source model (weightless mode).

        It is mapped, like a weight of a payload. The first call digests all weights
        that payloads of the model left out.

        Args:
            name: the result of `ContextWriter.reference`.

        Raises:
            InvalidGraph: there is no source model, or the weight is missing or changed.
        """


class Workspace(Protocol):
    """Objects that the sessions of one share group have in common; private to a session
    without a group.

    The core keys it by EP distribution, options fingerprint and the identity of the
    binary.

    Attributes:
        is_shared: whether there is a group.
    """

    is_shared: bool

    def get_or_create(
        self,
        key: str,
        factory: Callable[[], T],
        close: Callable[[T], None] | None = None,
    ) -> T:
        """Return the object under a key, made on the first call; `close` runs when the
        last user leaves.

        Other sessions of the group wait while the factory runs.
        """

    def put(self, graph_name: str, obj: object) -> None:
        """Leave a graph for another session of the group.

        A graph that no session takes is dropped, not closed: use `get_or_create` for
        objects that have to be closed.
        """

    def take(self, graph_name: str) -> object | None:
        """Take a graph that another session left; it is gone from the workspace
        afterwards.
        """


@dataclass(frozen=True)
class EPContextNode:
    """Description of the EPContext node of one partition.

    Args:
        partition: the compiled partition.
        payload: the result of `writer.payload()` for a primary; None for a node that
            refers to another's.
        main_context: 1 for a node with a payload, by the vendor's rule.
        attributes: the vendor's own (`ep_sdk_version`, `notes`, `max_size`, private
            ones). Those that the core writes are refused: see `CORE_ATTRIBUTES`.
        doc_string: text that model viewers show beside the node.
        graph_name: the value of `partition_name` and name of the node, for a runtime
            that names its graphs itself and finds them only by that; `partition.name`
            by default. It differs for each node of the EP in a model, and in a share
            group two models have it in common only for equal partitions. A host's
            `ep.context_node_name_prefix` is not put before it: with one the node's name
            is `partition.name`.
        compatibility_info: the text that `get_compatibility_info` would return, where
            the EP learns it from its compiler; the same for all nodes of the EP in a
            model. None: the class method is asked.
        shapes: by name, static shapes of values at the boundary that the EP's compiler
            computed and inference does not prove; the context model declares them.

    Several nodes may have one payload, with main_context 1 and 0. If payloads are
    embedded, the core stores it in the first of them with 1, and the others refer to
    it. A load gets it from each of them.
    """

    partition: Partition
    payload: Payload | None = None
    main_context: int = 1
    attributes: Mapping[str, Any] = field(default_factory=dict)
    doc_string: str = ""
    _: KW_ONLY
    graph_name: str | None = None
    compatibility_info: str | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)


CORE_ATTRIBUTES = frozenset(
    {"ep_cache_context", "embed_mode", "main_context", "partition_name", "source"}
)
"""Attributes of the EPContext node that only the core writes."""


class Severity(Enum):
    """Severity of a finding; users read the values."""

    ERROR = "error"
    """The model does not load, or not on every machine, or is not the one that was
    compiled.
    """
    WARNING = "warning"
    """The model may not work as expected: something is missing on this machine, or
    could be better.
    """
    INFO = "info"
    """Information, such as checks that were not possible."""


CONTAINER_CODES = frozenset({"container-refused", "container-not-checked"})
"""Codes for EPs: the EP would not load a node, or cannot check it."""


@dataclass(frozen=True)
class Finding:
    """Finding of a verification.

    Args:
        severity: its weight; errors are what a load refuses.
        code: type of the finding; `epctx docs verify` lists all. Those of EPs are
            `CONTAINER_CODES`.
        message: the problem, its object and its consequence; one or two sentences.
        node: the node concerned, or None.
        hint: the remedy.

    Examples:
        >>> message = "acme.bin has no graph 'a_0'."
        >>> Finding(Severity.ERROR, "container-refused", message, node="a_0")
    """

    severity: Severity
    code: str
    message: str
    _: KW_ONLY
    node: str | None = None
    hint: str = ""

    def as_dict(self) -> dict[str, str | None]:
        """Return the object that `epctx verify --json` prints."""
        return {**asdict(self), "severity": self.severity.value}
