"""The model that is verified: read as a load reads it, but going on after each fault."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from epctx_core.context.decoding import decode_model
from epctx_core.context.named_files import external_locations
from epctx_core.context.weights_folder import WeightsFolder, read_seal
from epctx_core.errors import InvalidArgument, InvalidGraph, InvalidProtobuf
from epctx_core.graph.model_io import SourceModel, check_model, detach_model, names_as_text, read_model
from epctx_core.graph.normalise import given_weights
from epctx_core.graph.tensor_bytes import weight_of
from epctx_core.graph.weights import all_tensors, is_detached
from epctx_core.options import Verification
from epctx_core.plugin import ModelIdentity
from epctx_core.sessions.loading import folder_of
from epctx_core.sessions.providers import choose_providers, kept_functions
from epctx_core.sessions.source import open_proto

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from onnx import ModelProto

    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder
    from epctx_core.context.payload_reader import PayloadReader
    from epctx_core.context.weights_folder import Seal
    from epctx_core.graph.mapping import MappedFile
    from epctx_core.graph.normalise import FunctionId
    from epctx_core.options import SessionConfig, SessionOptions
    from epctx_core.registry import Registry
    from epctx_core.sessions.source import OpenModel
    from epctx_core.verify.findings import Findings, PayloadReport

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
        reader: the payload reader of a load, once payloads were looked for.
        reports: what is said of each payload, by the names of the primaries that carry or name it.
        sound: primaries whose payloads are not known to be others than the model was written with.
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
    reader: PayloadReader = field(init=False)
    reports: dict[str, PayloadReport] = field(default_factory=dict)
    sound: set[str] = field(default_factory=set)

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
) -> Subject | None:
    """Read the model itself as a load does, and note what a load would refuse; None for what is no ONNX model.

    Raises:
        NoSuchFile, InvalidArgument: there is no such file, or an argument or option is wrong.
    """
    config = session.config()
    with (
        findings.collected("budget-exceeded", (InvalidGraph,)),
        findings.collected("model-unreadable", (InvalidProtobuf,), hint=_FETCH),
    ):
        data, path = read_model(path_or_bytes, config.input_budget)
        proto = decode_model(data, path, config.input_budget)
        if not proto.HasField("graph"):
            where = path.name if path else "the model given as bytes"
            raise InvalidProtobuf(f"{where} is no ONNX model: it has no graph.")
        subject = Subject(
            proto=proto,
            opened=None,
            path=path,
            folder=folder_of(path, config),
            session=session,
            config=config,
            registry=registry,
            findings=findings,
            names_weights=any(True for _ in external_locations(proto)),
        )
        _open(subject, data)
        return subject
    return None


def _open(subject: Subject, data: bytes) -> None:
    """Do what a load does with a model that was decoded, and note what it would stumble over."""
    session, config, findings = subject.session, subject.config, subject.findings

    def kept() -> Collection[FunctionId]:
        with findings.collected_of_plugin("plugin-broken"):
            choices, _ = choose_providers(session.providers or (), session, subject.registry, None)
            return kept_functions(choice.cls for choice in choices)
        return ()

    seal: Seal | None = None
    with findings.collected("weights-refused"):
        seal = read_seal(subject.proto)
    weights = WeightsFolder(
        subject.path, config.external_initializers_folder, seal=seal, verification=Verification.FULL
    )
    try:
        with names_as_text():
            detach = partial(detach_model, subject.proto, data, subject.path, weights.open)
            subject.opened = open_proto(subject.proto, detach, config, kept)
        subject.proto = subject.opened.source.proto
    except (InvalidGraph, InvalidArgument) as error:
        # What was begun has moved weights out of it.
        subject.proto = decode_model(data, subject.path, config.input_budget)
        _note_refusal(subject, data, weights, error)


def _note_refusal(
    subject: Subject, data: bytes, weights: WeightsFolder, refused: InvalidGraph | InvalidArgument
) -> None:
    """Note why a load refuses a model: each weight that cannot be had, and what the ONNX checker says besides."""
    findings = subject.findings
    bad = list(_bad_weights(subject, weights))
    for each in bad:
        # An argument is wrong where bytes have no folder in which anything could lie.
        findings.add_error(
            "file-not-sought" if isinstance(each, InvalidArgument) else "weights-refused", each
        )
    if bad:
        proto = decode_model(data, subject.path, subject.config.input_budget)
        with findings.collected("model-invalid", hint=_FETCH), names_as_text():
            check_model(SourceModel(proto=proto, weights={}, path=subject.path, digest=""))
    elif isinstance(refused, InvalidArgument):
        raise refused
    else:
        findings.add_error("model-invalid", refused, hint=_FETCH)


def _bad_weights(subject: Subject, weights: WeightsFolder) -> Iterator[InvalidGraph | InvalidArgument]:
    """Yield why weights in files cannot be had, each tried as a load tries it."""
    given_weights(subject.proto, subject.config.overrides.initializers)
    opened: dict[str, MappedFile] = {}
    for tensor in all_tensors(subject.proto.graph, subject.proto.functions):
        if is_detached(tensor):
            try:
                with names_as_text():
                    weight_of(tensor, opened, weights.open)
            except (InvalidGraph, InvalidArgument) as error:
                yield error
