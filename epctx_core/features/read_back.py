"""Reading back: before anything is published, EPs load the payloads that they wrote, so
that a successful compile can be loaded.

A payload is read where it was written, in staging or in memory. An EP that loads
without a device loads its nodes whole, by an instance that compiled nothing; another
one checks its payloads as for a verification. What runs on this machine is run once, as
a shape that inference got wrong would be found by the first run after a load.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from epctx_core.context.manifest import read_manifest
from epctx_core.context.node import ContextNodeRecord, read_indexed_nodes
from epctx_core.context.payload_files import LoadedPayload
from epctx_core.context.payload_reader import (
    PayloadReader,
    get_payload_key,
    make_plugin_nodes,
)
from epctx_core.errors import (
    EpctxError,
    EPFail,
    Fail,
    InvalidGraph,
    InvalidProtobuf,
    NotImplementedByProvider,
    PluginError,
)
from epctx_core.graph.model_io import require_text_names
from epctx_core.graph.type_table import make_declared_types
from epctx_core.graph.walks import list_operators, walk_indexed_nodes
from epctx_core.plugin import (
    ContextNode,
    ContextReader,
    EnginePolicy,
    Purpose,
    Severity,
    TensorView,
    ValueInfo,
)
from epctx_core.process import resume_collection
from epctx_core.registry.guard import plugin_error
from epctx_core.sessions.compatibility import LOOK, look_into
from epctx_core.sessions.plan import make_mismatch_error
from epctx_core.sessions.providers import ProviderSession, check_progress
from epctx_core.sessions.signature import describe_array, has_shape
from epctx_core.sessions.source import infer_model_types
from epctx_core.sessions.stages import Stages
from epctx_core.sessions.workspaces import SessionWorkspace

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.context.manifest import PayloadKey
    from epctx_core.context.payload_writer import PayloadWriter
    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.routing import ProviderChoice

_log = logging.getLogger("epctx.compile")


class ReadBack(Stages):
    """Stages that read back what a compile wrote; `ep.context_read_back=0` leaves that
    out.
    """

    def check_compiled(
        self, assignment: Assignment, names: Collection[str], providers: ProviderSession
    ) -> None:
        """Run partitions once, on zeros, and compare the shapes of the results with
        those that the context model declares.

        Those of EPs that gave something to run are run; open lengths are 1. One that
        fails over such inputs proves nothing.

        Raises:
            InvalidGraph: a result has another shape than inference gives.
            ModelLoadCanceled: the host asked to stop.
        """
        super().check_compiled(assignment, names, providers)
        if not providers.config.read_back:
            return
        for partition, compiled in assignment.compiled.items():
            run = compiled.run
            if run is None or partition.node_name not in names:
                continue
            inputs = _make_zeros(partition.inputs)
            if inputs is None:
                continue
            providers.cancel.raise_if_requested()
            try:
                results = list(run(inputs, None))
            except Exception as error:  # noqa: BLE001 - any: the inputs may make no sense
                _log.debug("%s was not run on zeros: %s", partition.node_name, error)
                continue
            _compare_shapes(partition, results, providers.choices[partition.ep])

    @require_text_names()
    def check_written(
        self,
        proto: ModelProto,
        names: Collection[str],
        written: Mapping[bytes, PayloadWriter],
        providers: ProviderSession,
        left: Mapping[str, TensorView],
    ) -> None:
        """Have each EP read back the payloads that it wrote.

        Raises:
            PluginError: an EP cannot read what it wrote.
            Fail: the system returns other bytes than were written.
            ModelLoadCanceled: the host asked to stop.
        """
        super().check_written(proto, names, written, providers, left)
        if not written or not providers.config.read_back:
            return
        records: dict[str, dict[str, ContextNodeRecord]] = {}
        operators = list_operators(proto.graph)
        walk = walk_indexed_nodes(proto.graph, operators)
        placed = (item for item in walk if item[2].name in names)
        for record in read_indexed_nodes(placed):
            records.setdefault(record.source, {})[record.name] = record

        policy = EnginePolicy(**providers.config.engine_settings)
        infer = partial(infer_model_types, proto, policy, operators=operators)
        types = make_declared_types(proto, infer, operators=operators)
        manifest = read_manifest(proto)
        with ExitStack() as scratch:
            for ep, ep_records in records.items():
                reader = PayloadReader(
                    ep_records,
                    folder=None,
                    manifest=None,
                    scratch=scratch,
                    source_tensor=left.__getitem__,
                )
                reader.loaded = _open_payloads(ep_records.values(), written, scratch)
                nodes = make_plugin_nodes([*ep_records.values()], types, ep, manifest)
                with resume_collection():
                    _read(ep, nodes, reader, providers)


def _compare_shapes(
    partition: GraphPartition, results: Sequence[object], choice: ProviderChoice
) -> None:
    for name, result in zip(partition.output_names, results, strict=False):
        expected = ValueInfo(name, partition.graph.types.get_proven(name))
        if isinstance(result, np.ndarray) and not has_shape(result, expected.type):
            where = f"a run of {partition.node_name} on zeros"
            actual = describe_array(result.dtype, result.shape)
            raise make_mismatch_error(choice.record, expected, actual, where)


def _make_zeros(values: Sequence[ValueInfo]) -> list[np.ndarray] | None:
    """Return inputs of these types; None where one is of unknown rank or no tensor."""
    arrays = []
    for value in values:
        if value.dtype is None or value.shape is None:
            return None
        lengths = [length if isinstance(length, int) else 1 for length in value.shape]
        arrays.append(np.zeros(lengths, value.dtype))
    return arrays


def _open_payloads(
    records: Iterable[ContextNodeRecord],
    written: Mapping[bytes, PayloadWriter],
    scratch: ExitStack,
) -> dict[PayloadKey, LoadedPayload]:
    """Return the payloads by their keys."""
    made: dict[PayloadKey, LoadedPayload] = {}
    for cache, record in {r.cache: r for r in records if r.cache is not None}.items():
        writer = written[cache]
        key = get_payload_key(record)
        entry = writer.make_entry()
        payload = LoadedPayload(
            key[0], writer.get_written(), digest=entry.root, scratch=scratch
        )
        payload.in_memory = payload.mapped is None and not writer.embedded
        try:
            entry.check_head(payload.view)
        except InvalidGraph as error:
            raise Fail(
                f"the payload {writer.name!r} was written and reads back otherwise: "
                f"{error.message}",
                node=record.name,
                hint="Check the disk of the output folder.",
            ) from error
        made[key] = payload
    return made


def _read(
    ep: str,
    nodes: Sequence[ContextNode],
    reader: ContextReader,
    providers: ProviderSession,
) -> None:
    """Have one EP read its nodes: whole, or as far as it checks payloads."""
    choice = providers.choices[ep]
    whole = choice.cls.loads_without_device
    try:
        with ExitStack() as stack:
            # It opens no device, and shares nothing with the compiling instance.
            context = replace(
                providers.contexts[ep],
                purpose=Purpose.EXPORT,
                progress=check_progress,
                workspace=stack.enter_context(closing(SessionWorkspace())),
            )
            context.cancel.raise_if_requested()
            if whole:
                session = ProviderSession(
                    providers.session,
                    providers.registry,
                    host_plugins=providers.instances.host_plugins,
                )
                stack.enter_context(closing(session))
                session.add(choice, context)
                session.load_nodes(ep, nodes, reader, Purpose.EXPORT)
                return
            for finding in look_into(choice, context, nodes, reader) or ():
                if finding.severity is Severity.ERROR:
                    raise InvalidGraph(  # noqa: TRY301 - as those that EPs raise
                        finding.message, node=finding.node, ep=ep, hint=finding.hint
                    )
    except (
        InvalidGraph,
        InvalidProtobuf,
        NotImplementedByProvider,
        EPFail,
        PluginError,
    ) as error:
        # What an EP raises names it; a host plugin may refuse the call, too.
        if error.ep is None and providers.instances.host_plugins:
            raise
        raise _blame(choice, error, error.node or nodes[0].name) from error


def _blame(choice: ProviderChoice, error: EpctxError, node: str) -> PluginError:
    """Return the error for an EP; a local of the frame that raises it would be a cycle
    around the weights there.
    """
    label = choice.record.label
    fault = plugin_error(
        f"{label} cannot read back what it wrote for {node}: "
        f"{error.message.removeprefix(f'{label} ')}",
        choice.record,
        hook="load_context" if choice.cls.loads_without_device else LOOK,
        hint=(
            "Nothing was published. Report it to the plugin's vendor with the model, "
            "or leave the EP out; ep.context_read_back=0 publishes what was not read."
        ),
    )
    fault.node = node
    return fault
