"""Model under verification, read as a load reads it but going on after each fault; its
nodes, payloads and metadata.

Decisions of a load's stages that would end it with an error note that and go on:
EPContext nodes are checked against their operator, and payloads, with the reader of a
load, against the manifest and the nodes.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import onnx

from epctx_core.context.dependencies import (
    CONTEXT_BINARY,
    DEPENDENCIES_KEY,
    EXTERNAL_WEIGHTS,
    SOURCE_MODEL,
    list_external_locations,
    read_dependencies,
)
from epctx_core.context.digests import IN_PLACE, ReplacedBinaryError
from epctx_core.context.manifest import (
    MANIFEST,
    NO_MANIFEST,
    SEALED,
    VERSION,
    find_manifest,
)
from epctx_core.context.metadata import get_metadata, parse_json
from epctx_core.context.model_formats import decode_model
from epctx_core.context.node import find_wrong_types, read_context_nodes
from epctx_core.context.payload_reader import (
    BINARY,
    PayloadReader,
    Reading,
    check_primaries,
    get_payload_key,
)
from epctx_core.context.receipts import is_noted, make_reading_receipt, note
from epctx_core.engines.cpu_engine import make_engine
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    PackageMissing,
)
from epctx_core.file_names import STAGING_PREFIX
from epctx_core.graph.model_io import describe_path, read_model, require_text_names
from epctx_core.graph.type_table import types_of
from epctx_core.options import SessionConfig, Verification
from epctx_core.plugin import CompiledPartition, EnginePolicy, Purpose
from epctx_core.registry.entries import blame_entry
from epctx_core.sessions.isolation import ISOLATION, import_isolation
from epctx_core.sessions.load import check_has_folder, find_folder, make_tensor_source
from epctx_core.sessions.source import (
    index_source,
    make_detach,
    open_proto,
    separate_content,
)
from epctx_core.sessions.stage_values import (
    Chosen,
    Opened,
    choose,
    route_nodes,
)
from epctx_core.sessions.stages import Request, Stages
from epctx_core.verify.findings import Findings, PayloadReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from onnx import ModelProto

    from epctx_core.context.manifest import Manifest, PayloadKey
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder
    from epctx_core.engines.cpu_engine import CpuEngine
    from epctx_core.graph.mapping import ModelInput, OpenedFiles
    from epctx_core.graph.weights import ModelContent
    from epctx_core.options import SessionOptions
    from epctx_core.plugin import ContextNode
    from epctx_core.registry import Registry
    from epctx_core.sessions.routing import ProviderChoice

_FETCH = "Fetch the model again, or compile again."
READING_SECONDS = 60.0
"""Seconds in which a process reads any small model."""
BYTES_PER_SECOND = 1 << 20
"""Bytes of a model for which it gets another second."""
READING_BYTES = 2 << 30
"""Bytes of memory for data that it may take beyond those in proportion to the model."""


class Subject(Stages):
    """A model under verification: the decisions of a load's stages, which note errors.

    Attributes:
        request: that of a load which checks all.
        files: the model's own file, and those that it names.
        findings: what was found in it so far.
        chosen: the request with its EPs, and with the model if a load takes that.
        content: its bytes.
        proto: the model, functions inlined if possible.
        is_chosen: whether the EPs that the host named could be had.
        manifest: what the model says about its payloads, if it does.
        nodes: EP name to the EPContext nodes that it loads.
        keepers: EPs that kept others in the model when it was compiled.
        names_weights: whether tensors of it lie in files.
        folder: where its files lie, None for a model from bytes without one.
        records: its EPContext nodes, as far as they can be decoded.
        unrouted: those that no EP takes, by source.
        reader: the payload reader of a load, once payloads were looked for.
        reports: the payloads that were found.
        keys: those that a load takes, by the names of the primaries that carry or name
            them.
        engine: the engine that EPs are lent, once the model is opened.
        loadable: EPs that load all their nodes without a device.
    """

    content: ModelContent
    proto: ModelProto
    folder: ModelFolder | None
    reader: PayloadReader
    request: Request
    files: OpenedFiles
    chosen: Chosen
    engine: CpuEngine
    manifest: Manifest | None = None

    def __init__(self) -> None:
        self.findings = Findings()
        self.is_chosen = False
        self.names_weights = False
        self.nodes: Mapping[str, Sequence[ContextNodeRecord]] = {}
        self.keepers: Sequence[str] = ()
        self.records: Sequence[ContextNodeRecord] = ()
        self.unrouted: dict[str, list[ContextNodeRecord]] = {}
        self.reports: dict[PayloadKey, PayloadReport] = {}
        self.keys: dict[str, PayloadKey] = {}
        self.loadable: set[str] = set()

    @property
    def opened(self) -> Opened | None:
        """The request with its model; None if a load does not take that."""
        return self.chosen if isinstance(self.chosen, Opened) else None

    def read(self) -> bool:
        """Read the model itself, and note why a load would refuse it; return False for
        what is not an ONNX model.

        Raises:
            NoSuchFile, InvalidArgument: there is no such file, or an argument or option
                is wrong.
        """
        config = self.request.config
        findings = self.findings
        try:
            data, path = read_model(self.request.source, self.files)
            self.content, other = separate_content(data, path, config)
            self.proto = decode_model(
                self.content.structure, path, config.input_budget, other
            )
        except InvalidProtobuf as error:
            findings.add_error("model-unreadable", error, hint=_FETCH)
            return False
        except InvalidGraph as error:
            findings.add_error("budget-exceeded", error)
            return False

        self.folder = find_folder(path, config)
        self.names_weights = any(True for _ in list_external_locations(self.proto))
        with findings.collect_of_plugin("plugin-broken"):
            # EPs have to do without a device.
            providers = self.chosen.providers
            self.chosen = choose(self.request, Purpose.EXPORT, providers)
            self.is_chosen = True
        self._open(is_onnx=other is None)
        self.records = self._read_nodes()
        self._read_manifest()
        return True

    def _open(self, *, is_onnx: bool) -> None:
        """Open the decoded model."""
        findings = self.findings
        path = self.content.path
        config = self.request.config
        try:
            _require_survival(self, self.content.view)
            with require_text_names():
                source = open_proto(
                    self.proto,
                    make_detach(self.proto, self.content, config, IN_PLACE, self.files),
                    config,
                    self.chosen.find_kept_functions,
                    changed=not is_onnx,
                )
                model = index_source(source, config)
            self.proto = source.proto
            self.chosen = Opened(**vars(self.chosen), model=model)
        except InvalidGraph as error:
            findings.add_error("model-invalid", error, hint=_FETCH)
        except InvalidArgument as error:
            is_sought = path or config.external_initializers_folder
            if is_sought or not self.names_weights:
                raise
            findings.add_error("file-not-sought", error)

    def _read_nodes(self) -> list[ContextNodeRecord]:
        """Decode all EPContext nodes, each as far as a load would read it, and note
        what a load refuses.
        """
        findings = self.findings
        records = read_context_nodes(
            self.proto.graph, partial(findings.add_error, "node-refused")
        )
        if self.opened is None:
            return records
        for record in records:
            if record.path:
                with findings.collect_of_plugin("plugin-broken", "subgraph-not-run"):
                    self.opened.model.graph_of(record)
        return records

    def _read_manifest(self) -> None:
        """Read the manifest, and note what is wrong with it, or with the model that it
        was sealed for.
        """
        findings = self.findings
        proto = self.proto
        view = self.content.view
        text = get_metadata(proto, MANIFEST) or get_metadata(proto, SEALED)
        with findings.collect("manifest-damaged", {ReplacedBinaryError: "seal-broken"}):
            self.manifest = manifest = find_manifest(
                proto,
                self.content.path,
                lambda: hashlib.sha256(view).hexdigest(),
                self.request.config.input_budget.manifest_entries,
                self.records,
            )
            seal = None if manifest is None else manifest.sealed
            # Nothing but the manifest may have been added.
            if seal is not None and not seal.is_of(view, text):
                findings.add(
                    "seal-broken",
                    (
                        "the model was changed after it was sealed: its bytes have "
                        "another digest."
                    ),
                    hint=(
                        "Fetch it again. If the change is right, `epctx seal --force` "
                        "seals it anew."
                    ),
                )
            elif manifest is None and text is not None:
                version = f"{parse_json(text)['version']!r:.40}"
                findings.add(
                    "manifest-unknown",
                    f"the model's manifest has the version {version}, and this epctx "
                    f"reads {VERSION}: its payloads were checked against no digests.",
                    hint="Upgrade epctx-core.",
                )
            elif manifest is None and self.records:
                findings.add(
                    "manifest-missing",
                    f"the model has no {MANIFEST} metadata, so its payloads were "
                    "checked against no digests.",
                    hint=(
                        "Models that epctx did not write have none; `epctx seal` adds "
                        "digests."
                    ),
                )

    def route_nodes(self) -> None:
        """Give each EPContext node to the EP that takes its source, as far as there is
        one.
        """
        routing = route_nodes(self.chosen, self.manifest, self.records)
        self.nodes = routing.pop("nodes")
        self.keepers = routing.pop("keepers")
        self.chosen = type(self.chosen)(**routing)

    def route(
        self, node: ContextNodeRecord, find: Callable[[ContextNodeRecord], str]
    ) -> str | None:
        """Return the EP that takes a node, as far as that is not broken; of the nodes
        of a source that no EP takes, the first one is noted.
        """
        code = "plugin-missing" if node.source else "source-missing"
        if not node.source or node.source not in self.unrouted:
            with self.findings.collect_of_plugin("plugin-broken", code, node=node.name):
                return super().route(node, find)
        self.unrouted.setdefault(node.source, []).append(node)
        return None

    def validate(self, request: Request, choice: ProviderChoice, info: str) -> None:
        """Note an EP's verdict on its text about the model."""
        findings = self.findings
        first = next(iter(self.nodes.get(choice.name, ())), None)
        node = None if first is None else first.name
        with (
            findings.collect_of_plugin("plugin-broken", "plugin-missing", node=node),
            findings.collect(
                "compatibility-unsupported", {Fail: "compatibility-outdated"}
            ),
        ):
            super().validate(request, choice, info)

    def check_types(self) -> None:
        """Check the types of the inputs and outputs of each node."""
        with self.findings.collect("model-invalid"), require_text_names():
            tables = types_of(self.proto.graph)
            for record in self.records:
                declared = tables.find_subgraph(record.path)
                for code, error in find_wrong_types(record, declared):
                    self.findings.add_error(code, error)

    def check_dependencies(self) -> None:
        """Check the stated dependencies of the model; a model need not state any.

        Whether the payloads of others left weights in their source is not known here,
        so that is not denied.
        """
        stated = read_dependencies(self.proto)
        if stated is None or not self.records:
            return
        needed = {
            SOURCE_MODEL: bool((self.manifest or NO_MANIFEST).source_weights),
            EXTERNAL_WEIGHTS: self.names_weights,
            CONTEXT_BINARY: any(
                r.main_context and not r.embed_mode for r in self.records
            ),
        }
        for word, is_needed in needed.items():
            if is_needed != (word in stated) and (is_needed or word != SOURCE_MODEL):
                self.findings.add(
                    "dependencies-wrong",
                    f"the model's {DEPENDENCIES_KEY} metadata is "
                    f"{';'.join(stated)!r:.80}, and {word} is "
                    f"{'needed' if is_needed else 'not needed'}.",
                    hint=(
                        "A tool moved weights or payloads and left the metadata as it "
                        "was: compile it again."
                    ),
                )

    def check_references(self) -> None:
        """Check that a node of each EP carries a payload, unless nodes were left
        out.
        """
        if "node-refused" in self.findings.codes:
            return
        for owner, records in {**self.unrouted, **self.nodes}.items():
            with self.findings.collect("primary-missing"):
                if owner:
                    check_primaries(records, owner)

    def find_payloads(self) -> None:
        """Find the payloads of all primaries and check every byte; those that a load
        refuses are noted and left out.
        """
        config = self.request.config
        findings = self.findings
        self.reader = PayloadReader(
            {record.name: record for record in self.records},
            folder=self.folder,
            manifest=self.manifest,
            scratch=self.chosen.providers.scratch,
            source_tensor=make_tensor_source(
                self.records, self.folder, config, self.manifest
            ),
            reading=Reading(
                verification=config.verification,
                data_reader=config.data_reader,
                opened=self.files,
            ),
        )

        others = {
            InvalidArgument: "file-not-sought",
            ReplacedBinaryError: "digest-mismatch",
        }
        # An exception of the host's callback is the host's.
        if config.data_reader is None:
            others[Fail] = "payload-refused"
        tried: set[PayloadKey] = set()
        for record in self.records:
            if not record.main_context:
                continue
            with findings.collect("payload-refused", others, node=record.name):
                if self.folder is None:
                    check_has_folder(record, config)
                key = get_payload_key(record)
                if key not in tried:
                    tried.add(key)
                    self._read_payload(record, key)
                if key in self.reader.loaded:
                    self.keys[record.name] = key

    def _read_payload(self, record: ContextNodeRecord, key: PayloadKey) -> None:
        """Read the payload of a node as a load does, report it, and note what a load
        ignores.
        """
        name, embedded = key
        folder = self.folder
        try:
            payload = self.reader.read(record)
        except ReplacedBinaryError:
            # It is another one than the model was written with.
            status = (
                folder.status(name, what=BINARY) if folder and not embedded else None
            )
            self.reports[key] = PayloadReport(
                name=name,
                embedded=embedded,
                size=status.st_size if status else len(record.cache or b""),
                digests=False,
            )
            raise
        self.reports[key] = PayloadReport(
            name=name, embedded=embedded, size=payload.nbytes, digests=payload.verified
        )

        if self.manifest is not None and self.reader.find_entry(record) is None:
            self.findings.add(
                "manifest-unlisted",
                f"the manifest says nothing about the payload {name!r}, so it was "
                "checked against no digests.",
                node=record.name,
                hint=(
                    "The model was put together from others, or changed; compile it "
                    "again to have all checked."
                ),
            )
        file = payload.mapped
        if (
            file
            and folder
            and os.path.relpath(file.path, folder.folder).startswith(STAGING_PREFIX)
        ):
            self.findings.add(
                "publication-unfinished",
                f"the context binary {name!r} is another one, and the right one is in "
                "what an unfinished compile left in the folder; loads take it from "
                "there.",
                node=record.name,
                hint=(
                    "Compile into the folder again, which finishes or takes back what "
                    "was left."
                ),
            )

    def note_reader(self, nodes: Iterable[ContextNode], choice: ProviderChoice) -> None:
        """Note in the reports which EP checked the payloads of some nodes."""
        origin = choice.record.origin
        for node in nodes:
            if node.main_context:
                key = self.keys[node.name]
                self.reports[key] = replace(self.reports[key], looked_into_by=origin)

    def load(
        self,
        ep: str,
        nodes: Sequence[ContextNode],
        load: Callable[[], Sequence[CompiledPartition]],
    ) -> Sequence[CompiledPartition]:
        """Have an EP load its nodes if it needs no device for it, and return what runs
        nothing.
        """
        if ep in self.loadable:
            node = nodes[0].name
            with self.findings.collect_of_plugin("container-refused", node=node):
                super().load(ep, nodes, load)
                self.note_reader(nodes, self.chosen.providers.choices[ep])
        return [CompiledPartition(None)] * len(nodes)


def make_subject(
    source: ModelInput, session: SessionOptions, registry: Registry, files: OpenedFiles
) -> Subject:
    """Return a model as it is before it is read.

    Args:
        source: the model, a path or bytes.
        session: the host's options.
        registry: the registry of EPs.
        files: gets the model's own file, and those that it names.

    Raises:
        EpctxError: a host plugin cannot be had.
    """
    request = Request.from_options(source, session, registry, session.providers or None)
    strictly = {
        SessionConfig.verification.key: Verification.FULL.value,
        SessionConfig.fail_on_suboptimal.key: "1",
        # Not all EPs are there that take nodes in a load.
        SessionConfig.disable_cpu_ep_fallback.key: "0",
    }
    config = replace(request.config, entries={**request.config.entries, **strictly})
    # Around the features that the host's options switch on.
    cls = type("FeatureSubject", (Subject, type(request.stages)), {})
    subject: Subject = cls()
    subject.files = files
    subject.request = replace(request, config=config, stages=subject)
    providers = subject.request.make_providers()
    subject.chosen = Chosen(**vars(subject.request), providers=providers)
    return subject


def _require_survival(subject: Subject, data: memoryview) -> None:
    """Have a process of its own read a model that this machine meets for the first
    time, where epctx-isolation is installed: native code may not survive it.

    Raises:
        InvalidGraph: the process did not survive.
        PackageMissing: the isolation that the host named is not installed.
        PluginError: the isolation failed.
    """
    config = subject.request.config
    path = subject.content.path
    try:
        entry, isolation = import_isolation(config, needed_by="verify")
    except PackageMissing:
        if config.isolated_by == SessionConfig.isolated_by.default:
            return
        raise
    engine = make_engine(EnginePolicy(**config.engine_settings))
    limits = {SessionConfig.isolation_seconds.key, SessionConfig.isolation_bytes.key}
    settings = {
        key: config.entries[key] for key in sorted(config.entries.keys() - limits)
    }
    receipt = make_reading_receipt(
        hashlib.sha256(data).hexdigest(),
        f"onnx {onnx.__version__}, {engine.name}, {settings}, "
        f"{config.custom_ops_libraries}",
    )
    if is_noted(receipt):
        return

    # A receipt is for the bytes of the model; its weights are not looked at.
    with blame_entry(entry, ISOLATION):
        is_loaded, end = isolation.try_reading(
            bytes(data) if path is None else os.path.abspath(path),  # noqa: PTH100 - links stay
            subject.request.session,
            seconds=min(
                config.isolation_seconds, READING_SECONDS + len(data) / BYTES_PER_SECOND
            ),
            max_bytes=config.isolation_bytes or READING_BYTES + 16 * len(data),
        )
    if end:
        where = describe_path(path)
        raise InvalidGraph(
            f"a process that only read {where} did not survive it: {end}.",
            path=path,
            hint=(
                "Do not load it. Native code of onnx or of the engine may be at fault; "
                "the limits are ep.isolate_timeout_seconds and ep.isolate_max_bytes."
            ),
        )

    if is_loaded:
        note([receipt])
