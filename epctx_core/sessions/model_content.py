"""Content of models for those who keep compiled ones: a digest of the source, a check of the context model's files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.decoding import decode_model
from epctx_core.context.manifest import read_manifest
from epctx_core.context.node import is_context_node
from epctx_core.context.paths import ModelFolder
from epctx_core.context.weights_folder import WeightsFolder, read_seal
from epctx_core.graph.bodies import all_nodes
from epctx_core.graph.mapping import MappedFile
from epctx_core.graph.model_io import names_as_text, parse_model, read_model
from epctx_core.graph.tensor_bytes import weight_of
from epctx_core.graph.weights import Weight, all_tensors, digests_ahead, is_detached, share_digests
from epctx_core.options import Verification

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.options import SessionOptions


@dataclass(frozen=True, kw_only=True)
class ModelContent:
    """Content of a model.

    Attributes:
        digest: SHA-256 (hex) over the model's bytes and its weights in files; the names of the folder and of the
            model's own file do not count.
        has_context_nodes: whether it is a context model.
        files: the status of each file of weights when it was read, by its location as the model names it.
    """

    digest: str
    has_context_nodes: bool
    files: Mapping[str, os.stat_result]


class ModelSource:
    """A model and its files of weights.

    Args:
        model: a path or bytes.
        options: the folder of the weights, the initializers that the host replaced (which are not read), and the limit
            of what the model may decode to.
    """

    def __init__(self, model: str | os.PathLike[str] | bytes, options: SessionOptions) -> None:
        self._model = model
        self._path = None if isinstance(model, bytes) else Path(model)
        self._config = options.config()

    def status(self, location: str) -> os.stat_result | None:
        """Return the status of the file of weights that a location means now; None if there is none.

        Raises:
            EpctxError: the location leads out of the model's folder, or the folder that the host named does not exist.
        """
        return self._folder().status(location)

    @names_as_text()
    def read(self) -> ModelContent:
        """Read the model and its weights; within a `host_call`, a compile does not digest the weights again.

        Raises:
            NoSuchFile, InvalidArgument, InvalidProtobuf, InvalidGraph: as for a load.
        """
        data, path = read_model(self._model, self._config.input_budget)
        proto = decode_model(data, path, self._config.input_budget)
        sha = hashlib.sha256(hashlib.sha256(data).digest())
        del data
        opened: dict[str, MappedFile] = {}
        weights = self._weights_in_files(proto, opened)
        share_digests(weights.values())
        with digests_ahead(weights.values()):
            for (location, offset, length), weight in sorted(weights.items()):
                text = f"{location}\0{offset} {length} {weight.digest}\n"
                sha.update(text.encode("utf-8", "surrogatepass"))
        roots = (proto.graph.node, *(function.node for function in proto.functions))
        return ModelContent(
            digest=sha.hexdigest(),
            has_context_nodes=any(map(is_context_node, all_nodes(chain.from_iterable(roots)))),
            files={location: mapped.status for location, mapped in opened.items()},
        )

    def _weights_in_files(
        self, proto: ModelProto, opened: dict[str, MappedFile]
    ) -> dict[tuple[str, int, int], Weight]:
        """Return each range of another file that the model names, once."""
        folder, replaced = self._folder(), self._config.overrides.initializers
        for tensor in proto.graph.initializer if replaced else ():
            if tensor.name in replaced:
                tensor.ClearField("data_location")
        found: dict[tuple[str, int, int], Weight] = {}
        for tensor in filter(is_detached, all_tensors(proto.graph, proto.functions)):
            weight = weight_of(tensor, opened, folder.open)
            location = next(entry.value for entry in tensor.external_data if entry.key == "location")
            found.setdefault((location, weight.mapping[1] if weight.mapping else 0, weight.nbytes), weight)
        if self._path is None:
            return found
        own = self._path.name  # digested as the model; it may have another name next time
        opened.pop(own, None)
        return {place: weight for place, weight in found.items() if place[0] != own}

    def _folder(self) -> WeightsFolder:
        return WeightsFolder(self._path, self._config.external_initializers_folder)


def check_files(path: Path) -> None:
    """Check every byte of the files beside a context model against what the model says about them.

    Raises:
        InvalidGraph, NoSuchFile: a file is another one or is missing.
        OSError: one cannot be read.
    """
    model = parse_model(path.read_bytes(), path)
    manifest, folder = read_manifest(model), ModelFolder(path.parent, path)
    for entry in manifest.payloads if manifest is not None else ():
        if not entry.embedded:
            with folder.open(entry.name, what="the context binary") as file:
                mapped = MappedFile(file.fileno(), file.path)
            entry.check_whole(mapped.view, forget=mapped.forget)
    if (seal := read_seal(model)) is not None:
        WeightsFolder(path, None, seal=seal, verification=Verification.FULL).open(seal.name, "").close()
