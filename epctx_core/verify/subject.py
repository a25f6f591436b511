"""The model that is verified: read as a load reads it, but going on after each fault."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.initializers_file import read_seal
from epctx_core.context.named_files import external_locations
from epctx_core.context.ort_format import decode_model
from epctx_core.context.weights_folder import WeightsFolder
from epctx_core.errors import InvalidArgument, InvalidGraph, InvalidProtobuf
from epctx_core.graph.model_io import (
    SourceModel,
    check_model,
    detach_model,
    names_as_text,
    read_model,
)
from epctx_core.graph.normalise import inline_functions
from epctx_core.graph.weights import all_tensors, is_detached, weight_of
from epctx_core.options import Verification
from epctx_core.plugin import ModelIdentity
from epctx_core.sessions.loading import folder_of
from epctx_core.sessions.source import index_model

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.context.initializers_file import Seal
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder
    from epctx_core.graph.mapping import MappedFile
    from epctx_core.options import InputBudget, SessionConfig, SessionOptions
    from epctx_core.registry import Registry
    from epctx_core.sessions.source import OpenModel
    from epctx_core.verify.findings import Findings

_FETCH = "Fetch the model again, or compile again."


@dataclass(kw_only=True)
class Subject:
    """A model under verification.

    Attributes:
        proto: the model, functions put in place if they could be.
        opened: what a load would work with; None if a load would refuse the model.
        folder: where its files lie, None for a model from bytes without one.
        records: its EPContext nodes, as far as they can be decoded.
        manifest: what it says about its payloads, if that can be read.
        names_weights: whether tensors of it lie in files.
        findings: what was found in it so far.
    """

    proto: ModelProto
    opened: OpenModel | None
    path: Path | None
    folder: ModelFolder | None
    session: SessionOptions
    config: SessionConfig
    registry: Registry
    findings: Findings
    records: Sequence[ContextNodeRecord] = ()
    manifest: Manifest | None = None
    names_weights: bool = False

    @property
    def identity(self) -> ModelIdentity:
        """What an EP may know about the model."""
        if self.opened is not None:
            return self.opened.identity
        return ModelIdentity(
            name=self.path.stem if self.path else self.proto.graph.name or "model",
            digest=None,
            opset_imports={entry.domain: entry.version for entry in self.proto.opset_import},
        )


def read_subject(
    path_or_bytes: str | os.PathLike[str] | bytes,
    session: SessionOptions,
    registry: Registry,
    findings: Findings,
) -> tuple[Path | None, Subject | None]:
    """Read and check the model itself; the subject is None for what is no ONNX model.

    Raises:
        NoSuchFile, InvalidArgument: there is no such file, or the argument is none.
    """
    config = session.config()
    try:
        data, path = read_model(path_or_bytes, config.input_budget)
    except InvalidGraph as error:
        findings.add_error("budget-exceeded", error)
        return None if isinstance(path_or_bytes, bytes) else Path(path_or_bytes), None
    try:
        proto = decode_model(data, path, config.input_budget)
    except InvalidProtobuf as error:
        findings.add("model-unreadable", error.message, hint=_FETCH)
        return path, None
    except InvalidGraph as error:
        findings.add_error("budget-exceeded", error)
        return path, None
    if not proto.HasField("graph"):
        findings.add("model-unreadable", f"{_called(path)} is no ONNX model: it has no graph.", hint=_FETCH)
        return path, None
    names_weights = any(True for _ in external_locations(proto))
    weights = WeightsFolder(
        path,
        config.external_initializers_folder,
        seal=_seal(proto, findings),
        verification=Verification.FULL,
    )
    opened = _opened(proto, data, path, weights, config.input_budget, findings)
    if opened is None:
        # What was begun has moved weights out of it.
        proto = decode_model(data, path, config.input_budget)
    return path, Subject(
        proto=proto if opened is None else opened.source.proto,
        opened=opened,
        path=path,
        folder=folder_of(path, config),
        session=session,
        config=config,
        registry=registry,
        findings=findings,
        names_weights=names_weights,
    )


def _seal(proto: ModelProto, findings: Findings) -> Seal | None:
    try:
        return read_seal(proto)
    except InvalidGraph as error:
        findings.add_error("weights-refused", error)
        return None


def _called(path: Path | None) -> str:
    return path.name if path else "the model given as bytes"


def _opened(
    proto: ModelProto,
    data: bytes,
    path: Path | None,
    weights: WeightsFolder,
    budget: InputBudget,
    findings: Findings,
) -> OpenModel | None:
    """Do what a load does with the model, and note what it would stumble over."""
    try:
        with names_as_text():
            source = detach_model(proto, data, path, weights.open)
            if source.proto.functions:
                inline_functions(source, frozenset())
            return index_model(source)
    except (InvalidGraph, InvalidArgument) as error:
        refused: InvalidGraph | InvalidArgument | None = error
    # What was begun has moved weights out of it.
    proto = decode_model(data, path, budget)
    bad = False
    for each in _bad_weights(proto, weights):
        # An argument is wrong where bytes have no folder in which anything could lie.
        findings.add_error(
            "file-not-sought" if isinstance(each, InvalidArgument) else "weights-refused", each
        )
        bad = True
    if bad:
        refused = _refused_structure(proto, path)
    if refused is not None:
        findings.add("model-invalid", refused.message, node=refused.node, hint=refused.hint or _FETCH)
    return None


def _refused_structure(proto: ModelProto, path: Path | None) -> InvalidGraph | None:
    """Return what the ONNX checker says of a model whose weights cannot be had."""
    try:
        with names_as_text():
            check_model(SourceModel(proto=proto, weights={}, path=path, digest=""))
    except InvalidGraph as error:
        return error
    return None


def _bad_weights(proto: ModelProto, weights: WeightsFolder) -> Iterator[InvalidGraph | InvalidArgument]:
    """Yield why weights in files cannot be had, each tried as a load tries it."""
    opened: dict[str, MappedFile] = {}
    for tensor in all_tensors(proto.graph, proto.functions):
        if is_detached(tensor):
            try:
                with names_as_text():
                    weight_of(tensor, opened, weights.open)
            except (InvalidGraph, InvalidArgument) as error:
                yield error
