"""An EP of epctx in one session of onnxruntime."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from epctx_core import SessionOptions, default_registry
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    RuntimeException,
)
from epctx_core.ext import (
    SESSION_OPTIONS,
    CpuEngine,
    ModelFolder,
    Request,
    choose,
    prepare_claimed,
)
from epctx_core.plugin import EnginePolicy, Purpose, TensorType
from epctx_core.plugin.protos import ELEMENT_TYPES, ModelProto
from onnxruntime_ep_epctx.contexts import (
    check_folder,
    export,
    find_context_nodes,
    keep_context_nodes,
    name_nodes,
)
from onnxruntime_ep_epctx.graph import (
    FusedNode,
    GraphCopy,
    read_fused_node,
    read_graph,
    read_metadata,
)
from onnxruntime_ep_epctx.runs import Kernel

if TYPE_CHECKING:
    from epctx_core import PluginRecord
    from epctx_core.plugin.protos import NodeProto
    from onnxruntime_ep_epctx.capi import Address, Onnxruntime

STRICT = "epctx_strict"
"""Option of every EP: "1" to refuse a session in which the EP takes no node."""
_REFUSED = (
    # Only what ends a group would share: a session that loads has its own in any case.
    "ep.stop_share_ep_contexts",
    "ep.enable_weightless_mode",
    "ep.enable_weightless_ep_context_nodes",
)
"""Options of what an EP cannot do in onnxruntime."""
_OF_HOST = (
    "ep.context_enable",
    "ep.context_embed_mode",
    "ep.context_file_path",
    "ep.context_model_external_initializers_file_name",
)
"""Options that onnxruntime carries out itself, or that go to `export`."""
_FOLDER = "session.model_external_initializers_file_folder_path"
_BOUNDARY = {
    "bfloat16",
    "bool",
    "double",
    "float",
    "float16",
    "int16",
    "int32",
    "int64",
    "int8",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
}
"""Element types that a partition takes and gives; others stay inside, or on the CPU."""


class _FusionOptions(ctypes.Structure):
    """`OrtNodeFusionOptions`."""

    _fields_ = (
        ("ort_version_supported", ctypes.c_uint32),
        ("drop_constant_initializers", ctypes.c_bool),
    )


class HostedEp:
    """EP in a session of onnxruntime, which owns the graph and runs what is left.

    onnxruntime goes on without an EP that fails before `compile`: whatever goes wrong
    before is raised there.

    Args:
        record: the EP.
        entries: the config entries of the session; options of the EP are among them.

    Attributes:
        fail_runs: has onnxruntime ask at a run, since it passes over a failed claim.
        context_nodes: EPContext nodes of the last compile; none if none were asked for.
        kept_text: text that onnxruntime has yet to copy.
    """

    def __init__(self, record: PluginRecord, entries: Mapping[str, str]) -> None:
        self.name = record.name
        self._requested = record.qualified_name
        prefix = f"ep.{record.name.lower()}."
        self._options = {
            key.removeprefix(prefix): value
            for key, value in entries.items()
            if key.startswith(prefix)
        }
        self._is_strict = self._options.pop(STRICT, "0") == "1"
        self._entries = entries
        self._failure: BaseException | None = None
        self._claims_any = False
        self._is_load = False
        self._info_key = f"ep_compatibility_info.{self.name}"
        self._stated_info = ""
        self._copy = GraphCopy(model=ModelProto(), nodes=[])
        self._work: Any = None
        self.fail_runs: Callable[[], object] = bool
        self.context_nodes: Sequence[NodeProto] = ()
        self.kept_text = b""
        self._open: list[Any] = []
        self._compiled: list[Any] = []

    # -- what onnxruntime asks
    # ------------------------------------------------------------------------------

    def claim(
        self,
        ort: Onnxruntime,
        graph: Address,
        info: Address,
    ) -> None:
        """Say which nodes of a graph the EP takes.

        Args:
            ort: the onnxruntime that asks.
            graph: its graph.
            info: gets the claims.
        """
        try:
            copy = self._copy = self._read(ort, graph)
            nodes = copy.nodes
            claims = list(self._find_claims(copy))
            if claims and copy.is_subgraph and not self._is_load:
                around = self._read(ort, graph, encloses=True)
                claims = claims if self._takes_inside(around) else []
            self._claims_any |= bool(claims)
            self._check_strict(copy)
        except BaseException as error:  # noqa: BLE001 - raised in `compile`, where onnxruntime listens
            self._failure = drop_frames(error)
            self.fail_runs()
            # Each by itself: some may be another EP's already.
            nodes = [*filter(None, ort.list_members("Graph", "Nodes", graph))]
            self._is_load = True
            claims = [[i] for i in range(len(nodes))]
        for claim in claims:
            taken = [nodes[i] for i in claim]
            _add_claim(ort, info, taken, drops_constants=not self._is_load)

    def compile(self, ort: Onnxruntime, fused: Sequence[Address]) -> list[Kernel]:
        """Compile or load what was claimed; return a kernel for each fused node.

        Raises:
            EpctxError: the EP refused, or a plugin is broken, now or in `claim`.
        """
        if self._failure is not None:
            raise self._failure
        nodes = [read_fused_node(ort, node) for node in fused]
        copy = self._copy
        self.context_nodes = ()
        if self._exports and not self._is_load:
            model = export(copy, self._make_options(copy), self._entries)
            self.context_nodes = name_nodes(model, nodes)
            metadata = {each.key: each.value for each in model.metadata_props}
            self._stated_info = metadata.get(self._info_key, "")
            if self._entries.get("session.compile_only") == "1":
                return [_make_idle_kernel(self.name, node) for node in nodes]
            self._work.close()
            compiled = GraphCopy(model=model, nodes=[])
            self._work = self._assign(keep_context_nodes(compiled), Purpose.LOAD)
        elif self._exports:
            self.context_nodes = name_nodes(copy.model, nodes)
            target = self._entries.get("ep.context_file_path", "")
            check_folder(self.context_nodes, copy.path, target)
        return self._prepare(nodes)

    @property
    def _exports(self) -> bool:
        return self._entries.get("ep.context_enable") == "1"

    @property
    def _purpose(self) -> Purpose:
        """Purpose of an instance that compiles."""
        return Purpose.EXPORT if self._exports else Purpose.RUN

    @property
    def compatibility_info(self) -> str:
        """Text about what was compiled, for later validation."""
        return self._stated_info if self.context_nodes else ""

    def call_hook(self, hook: str, **arguments: Any) -> None:
        """Call a hook that the EP has, of each instance that compiled or loaded
        something: a subgraph has an instance of its own.

        Raises:
            EpctxError: the EP failed before onnxruntime listened, and got no node.
        """
        if self._failure is not None:
            raise self._failure
        for work in self._compiled:
            work.providers.instances.call(self.name, hook, **arguments)

    def close(self) -> None:
        """Shut the EP's instances down."""
        while self._open:
            self._open.pop().close()

    # -- stages
    # ---------------------------------------------------------------------------------

    def _read(
        self,
        ort: Onnxruntime,
        graph: Address,
        *,
        encloses: bool = False,
    ) -> GraphCopy:
        # onnxruntime's Python API does not ask before it loads.
        self._stated_info = read_metadata(ort, graph, self._info_key)
        try:
            folder = self._entries.get(_FOLDER)
            return read_graph(ort, graph, folder, encloses=encloses)
        except UnicodeError as error:
            raise InvalidGraph(
                f"a name in the model is not UTF-8: {error}.",
                ep=self.name,
                hint="Export the model again with other names.",
            ) from error

    def _find_claims(self, copy: GraphCopy) -> Iterator[Sequence[int]]:
        """Yield the indices of nodes that the EP takes together."""
        self._refuse_options()
        if not copy.nodes:
            return
        cls = default_registry.load(default_registry.resolve(self._requested))
        compiled = find_context_nodes(copy.model, cls)
        self._is_load = bool(compiled)
        if compiled:
            kept = keep_context_nodes(copy, compiled)
            self._work = self._assign(kept, Purpose.LOAD)
            # A weight that onnxruntime folded may be an input of the node.
            yield from ([index] for index in compiled)
            return

        self._work = self._assign(copy, self._purpose)
        graph = self._work.model.graph
        # By their outputs: epctx may have brought the nodes into another order.
        places = {
            name: place
            for place, node in enumerate(copy.model.graph.node)
            for name in node.output
        }
        for partition in self._work.assignment.partitions:
            values = (*partition.inputs, *partition.outputs)
            # Those in subgraphs are claimed when onnxruntime asks about these.
            if partition.graph is graph and all(map(_can_cross, values)):
                yield [places[max(node.outputs)] for node in partition.nodes]

    def _takes_inside(self, enclosing: GraphCopy) -> bool:
        """Return whether the EP takes nodes inside an If, Loop or Scan: one that takes
        it whole refuses them by their parent, which a subgraph alone does not show.
        """
        work = self._assign(enclosing, self._purpose)
        main = work.model.graph
        taken = any(each.graph is not main for each in work.assignment.claimed)
        self._open.pop().close()
        return taken

    def _refuse_options(self) -> None:
        for key in _REFUSED:
            if self._entries.get(key, "0") not in ("", "0"):
                raise InvalidArgument(
                    f"{key} has no meaning for {self.name} inside onnxruntime.",
                    ep=self.name,
                    hint="Leave it out, or compile with epctx.",
                )

    def _check_strict(self, copy: GraphCopy) -> None:
        if self._is_strict and not copy.is_subgraph and not self._claims_any:
            raise Fail(
                f"{self.name} takes no node of the model, and its option {STRICT}=1 "
                "asks it to.",
                ep=self.name,
                hint="`epctx explain` shows why. Leave the option out to run the model "
                "on other EPs.",
            )

    def _make_options(self, copy: GraphCopy) -> SessionOptions:
        """Return the session options of epctx for a model of onnxruntime's."""
        options = SessionOptions()
        options.add_provider(self._requested, self._options)
        for key, value in self._entries.items():
            if key in SESSION_OPTIONS and key.startswith("ep.") and key not in _OF_HOST:
                options.add_session_config_entry(key, value)
        if copy.folder:
            options.add_session_config_entry(_FOLDER, str(copy.folder))
        return options

    def _assign(self, copy: GraphCopy, purpose: Purpose) -> Any:
        """Have an instance of the EP say what it takes."""
        options = self._make_options(copy)
        requested = [(self._requested, self._options)]
        request = Request.from_options(copy.data, options, default_registry, requested)
        self._open.append(request)
        chosen = choose(request, purpose)
        opened = chosen.open()
        if purpose is not Purpose.LOAD:
            routed = opened.keep_nodes()
        else:
            infos = [self._stated_info] if self._stated_info else []
            chosen.check_compatibility({self.name: infos})
            routed = opened.route()
        engine = CpuEngine(EnginePolicy(**request.config.engine_settings))
        started = routed.start(engine)
        return started.assign(started.settled)

    def _prepare(self, nodes: Sequence[FusedNode]) -> list[Kernel]:
        work = self._work
        steps = prepare_claimed(work, self._find_folder(), None, lambda: None)
        self._compiled.append(work)
        types: Callable[[str], TensorType] = work.model.graph.types.get
        by_output: dict[str, Any] = {
            output: step
            for step in steps.get(work.model.graph, {}).values()
            for output in step.outputs
        }
        return [
            Kernel(
                by_output[node.outputs[0]],
                given=node.inputs,
                wanted=node.outputs,
                types=types,
            )
            for node in nodes
        ]

    def _find_folder(self) -> ModelFolder | None:
        """Return the folder of context binaries.

        Raises:
            InvalidArgument: the model has none and names files.
        """
        option = self._entries.get("ep.context_file_path", "")
        path = Path(self._copy.path)
        if option:
            # A folder is written with a separator at its end.
            named = Path(option)
            return ModelFolder(named if option[-1] == os.sep else named.parent)
        if path.name:
            return ModelFolder(path.parent, path)
        if any(node.file_name for node in self._work.model.context_nodes):
            raise InvalidArgument(
                "the model was given as bytes, and keeps payloads in files.",
                hint="Set ep.context_file_path to the path that it would have.",
            )
        return None


def drop_frames(error: BaseException) -> BaseException:
    """Return a kept exception with its traceback as a note instead.

    Frames lead to those of the host, whose session would then live as long as the
    exception, and never end where the session's own EP keeps it.
    """
    text = "".join(traceback.format_exception(error)).rstrip()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and each.__traceback__ is not None:
            each.__traceback__ = None
            pending += (each.__cause__, each.__context__)

    # An EP may raise one object again and again.
    if not getattr(error, "__notes__", None):
        error.add_note(text)
    return error


def _can_cross(value: Any) -> bool:
    element = value.type.elem_type
    return element is not None and ELEMENT_TYPES[element] in _BOUNDARY


def _add_claim(
    ort: Onnxruntime,
    info: Address,
    nodes: Sequence[Address],
    *,
    drops_constants: bool,
) -> None:
    options = _FusionOptions(
        ort_version_supported=24,
        drop_constant_initializers=drops_constants,
    )
    addresses = (ctypes.c_void_p * len(nodes))(*nodes)
    ort.call(
        "EpGraphSupportInfo_AddNodesToFuse",
        info,
        addresses,
        len(nodes),
        ctypes.byref(options),
    )


def _make_idle_kernel(ep: str, node: FusedNode) -> Kernel:
    """Return the kernel of a node that is compiled for another session."""

    def run(*_: Any) -> Sequence[Any]:
        raise RuntimeException(f"{ep} compiled {node.name!r} and has not loaded it.")

    unknown = TensorType(None, None)
    step = SimpleNamespace(run=run, inputs=node.inputs, outputs=node.outputs, label=ep)
    return Kernel(
        step,
        given=node.inputs,
        wanted=node.outputs,
        types=lambda _: unknown,
    )
