"""What a model holds, as one digest over its file and its weights; and an index that saves reading them again.

Knows models and their files; knows neither EPs nor entries.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from epctx_core.context.node import DOMAIN, OP_TYPE
from epctx_core.context.ort_format import decode_model
from epctx_core.context.scratch import make_private_folder
from epctx_core.context.weights_folder import WeightsFolder
from epctx_core.errors import EpctxError
from epctx_core.graph.bodies import bodies
from epctx_core.graph.mapping import FileIdentity, MappedFile
from epctx_core.graph.model_io import names_as_text, read_model
from epctx_core.graph.tensor_bytes import weight_of
from epctx_core.graph.weights import (
    ExtentDigests,
    Weight,
    all_tensors,
    digests_ahead,
    is_detached,
    share_digests,
)

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from epctx_core.options import InputBudget

Model: TypeAlias = "str | os.PathLike[str] | bytes"

RACY_NS = 2_000_000_000
"""A file may change twice within what its file system counts as one moment. What was changed so shortly before
it was read is not remembered."""


class FileState(NamedTuple):
    """A file as far as it can be told without reading it.

    Programs may set the time at which the content was changed, as those do that unpack archives, and a new file
    may get the inode of one that was removed. The time of the last change to file or attributes they cannot set.
    """

    identity: FileIdentity
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Return the state that a status tells of."""
        return cls(FileIdentity.of(status), status.st_ctime_ns)

    @property
    def changed_ns(self) -> int:
        """When the file was changed last, whatever a program made of it."""
        return max(self.identity.mtime_ns, self.ctime_ns)


@dataclass(frozen=True, kw_only=True)
class ModelContent:
    """What a model holds.

    Attributes:
        digest: SHA-256 (hex) over the model's bytes and its weights in files. Names of folders and files of the
            model itself are no part of it.
        has_context_nodes: whether it is a context model.
        files: by location as the model names it, the state of each file of weights.
    """

    digest: str
    has_context_nodes: bool
    files: Mapping[str, FileState] = field(default_factory=dict)


class ModelSource:
    """A model that a host gave, and the state in which its file was found.

    Args:
        model: a path or bytes.
        weights_folder: the folder of its weights, where the host named one.
        replaced: initializers that the host put a value in place of; those are not read.
        budget: what the model may decode to.

    Attributes:
        digests: of the weights, as far as they were read; a compile need not make them again.
    """

    def __init__(
        self, model: Model, weights_folder: str | None, replaced: Collection[str], budget: InputBudget
    ) -> None:
        self.model = model
        self._budget = budget
        self.digests: ExtentDigests = {}
        self._replaced = frozenset(replaced)
        self._weights_folder = weights_folder

    @property
    def name(self) -> str:
        """How people call the model."""
        return "a model given as bytes" if isinstance(self.model, bytes) else Path(self.model).name

    def identity(self) -> str:
        """Return what tells whether the model itself is another one: of a file its state, of bytes their digest."""
        if isinstance(self.model, bytes):
            return hashlib.sha256(self.model).hexdigest()
        try:
            return repr(FileState.of(os.stat(self.model)))  # noqa: PTH116 - one call, text or Path
        except (OSError, ValueError):
            return ""  # reading it says what is wrong

    def changed_at(self) -> int:
        """Return when the model's file was changed, in nanoseconds; 0 for bytes."""
        return 0 if isinstance(self.model, bytes) else FileState.of(os.stat(self.model)).changed_ns  # noqa: PTH116

    def index_name(self) -> str:
        """Return under which name the content is remembered."""
        return hashlib.sha256(repr((self.identity(), sorted(self._replaced))).encode()).hexdigest()

    def has_files(self, files: Mapping[str, FileState]) -> bool:
        """Whether each file of weights is still in the state that is given."""
        try:
            folder = self._folder()
            now = {location: folder.status(location) for location in files}
            return all(status is not None and FileState.of(status) == files[at] for at, status in now.items())
        except EpctxError:
            return False  # reading the model says what is wrong

    @names_as_text()
    def read(self) -> ModelContent:
        """Read the model and its weights.

        Raises:
            NoSuchFile, InvalidArgument, InvalidProtobuf, InvalidGraph: as for a load.
        """
        data, path = read_model(self.model, self._budget)
        proto = decode_model(data, path, self._budget)
        sha = hashlib.sha256(hashlib.sha256(data).digest())
        del data
        opened: dict[str, MappedFile] = {}
        weights = self._weights_in_files(proto, opened)
        share_digests(weights.values(), self.digests)
        with digests_ahead(weights.values()):
            for (location, offset, length), weight in sorted(weights.items()):
                sha.update(
                    f"{location}\0{offset} {length} {weight.digest}\n".encode("utf-8", "surrogatepass")
                )
        return ModelContent(
            digest=sha.hexdigest(),
            has_context_nodes=any(
                map(_is_context_node, chain(proto.graph.node, *(each.node for each in proto.functions)))
            ),
            files={location: FileState.of(mapped.status) for location, mapped in opened.items()},
        )

    def _weights_in_files(
        self, proto: ModelProto, opened: dict[str, MappedFile]
    ) -> dict[tuple[str, int, int], Weight]:
        """Return each place in another file that the model names, once."""
        folder = self._folder()
        for tensor in proto.graph.initializer if self._replaced else ():
            if tensor.name in self._replaced:
                tensor.ClearField("data_location")
        found: dict[tuple[str, int, int], Weight] = {}
        for tensor in all_tensors(proto.graph, proto.functions):
            if is_detached(tensor):
                weight = weight_of(tensor, opened, folder.open)
                location = next(e.value for e in tensor.external_data if e.key == "location")
                found.setdefault(
                    (location, weight.mapping[1] if weight.mapping else 0, weight.nbytes), weight
                )
        if not isinstance(self.model, bytes):
            own = Path(self.model).name  # digested as the model; it may have another name next time
            opened.pop(own, None)
            found = {place: weight for place, weight in found.items() if place[0] != own}
        return found

    def _folder(self) -> WeightsFolder:
        path = None if isinstance(self.model, bytes) else Path(self.model)
        return WeightsFolder(path, self._weights_folder)


def _is_context_node(node: NodeProto) -> bool:
    """Whether a node, or one in its bodies, is an EPContext node."""
    if node.op_type == OP_TYPE and node.domain == DOMAIN:
        return True
    return any(_is_context_node(inner) for body in bodies(node) for inner in body.node)


class ContentIndex:
    """Remembers in a folder which content a file in a certain state has.

    A damaged record is none. One that is wrong all the same can only lead to another key, and so to a compile.
    """

    def __init__(self, folder: Path, *, trust_stat: bool) -> None:
        self._folder = folder
        self._trusts = trust_stat

    def content_of(self, source: ModelSource) -> ModelContent:
        """Return a model's content; it is read only if it, or a file of its weights, is in a state not known.

        Raises:
            NoSuchFile, InvalidArgument, InvalidProtobuf, InvalidGraph: as for a load.
        """
        name = source.index_name()
        record = self._folder / name[:2] / f"{name}.json"
        known = self._read(record) if self._trusts else None
        if known is not None and source.has_files(known.files):
            return known
        begun = time.time_ns()
        content = source.read()
        if self._trusts and name == source.index_name():
            with suppress(OSError):
                newest = max([source.changed_at(), *(state.changed_ns for state in content.files.values())])
                if begun - RACY_NS > newest:
                    _write(record, content)
        return content

    def _read(self, record: Path) -> ModelContent | None:
        try:
            fields = json.loads(record.read_bytes())
            files = {}
            for name, numbers in fields["files"].items():
                *identity, ctime_ns = map(int, numbers)
                files[str(name)] = FileState(FileIdentity(*identity), ctime_ns)
            return ModelContent(
                digest=str(fields["digest"]), has_context_nodes=bool(fields["context"]), files=files
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def forget_older(self, seconds: float) -> None:
        """Remove records that were written so long ago or longer."""
        for record in self._folder.glob("??/*"):
            with suppress(OSError):
                if time.time() - record.stat().st_mtime >= seconds:
                    record.unlink()


def _write(record: Path, content: ModelContent) -> None:
    """Put a record in place in one step. A crash may lose it: the model is read again then."""
    fields = {
        "digest": content.digest,
        "context": content.has_context_nodes,
        "files": {name: [*state.identity, state.ctime_ns] for name, state in content.files.items()},
    }
    make_private_folder(record.parent)
    draft = record.with_suffix(f".{secrets.token_hex(4)}")
    draft.write_text(json.dumps(fields))
    draft.replace(record)
