"""`OnnxRuntimeProvider`, the base class of EPs of onnxruntime behind the hooks of
epctx.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_blobs import Blobs, write_blobs

from epctx_core.errors import (
    InvalidArgument,
    InvalidGraph,
    NotImplementedByProvider,
    quote,
)
from epctx_core.plugin import (
    Availability,
    BuildInfo,
    Compatibility,
    CompiledPartition,
    EnginePolicy,
    EPContextNode,
    ExecutionProvider,
    HardwareDevice,
    Purpose,
    Refusal,
    TensorType,
    hookimpl,
)
from epctx_onnxruntime.providers.library import (
    PluginLibrary,
    describe_target,
    digest_named_files,
    read_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epctx_core.plugin import (
        ComputeCapability,
        ContextNode,
        ContextReader,
        ContextWriter,
        GraphView,
        NodeView,
        Partition,
        Payload,
        ProviderContext,
        ValueInfo,
    )
    from epctx_onnxruntime.providers.programs import Binary, Program
    from epctx_onnxruntime.providers.sessions import VendorSession
    from epctx_onnxruntime.real import onnxruntime

MODELS = "epctx_onnx_models"
"""Attribute of nodes whose payload contains optimised models in ONNX format: their EP
writes no EPContext nodes.
"""
_MODELS = "models"
"""Name of their payload beside a vendor's binary."""
_KIND = "epctx-onnxruntime models 1"
_CHECK_OPTIONS = "Check its options against the vendor's documentation."


class OnnxRuntimeProvider(ExecutionProvider):
    """EP of onnxruntime: onnxruntime cuts and compiles, payloads are the vendor's own.

    A subclass says which EP, and declares the vendor's options under their own names.

    Attributes:
        library: the EP's library and name in onnxruntime.
        finds_values_by_name: whether a graph in a payload knows the names of its inputs
            and outputs. They are written into the nodes, so that a context model whose
            values were renamed loads here, if not in onnxruntime.
        file_options: options whose text has paths of files that the compiler reads:
            their content counts for caches.
        static_shapes_only: whether nodes with shapes that are not static are left out
            where the EP refuses a model whole.
        shares_binaries: whether onnxruntime compiles the models of a share group into
            one binary for the EP.
        writes_contexts: whether the EP is known to write EPContext nodes. What another
            one compiles is loaded before it counts; where that fails, or it compiles
            nothing, onnxruntime is asked which nodes it runs.
    """

    library: ClassVar[PluginLibrary]
    finds_values_by_name: ClassVar[bool] = False
    file_options: ClassVar[tuple[str, ...]] = ()
    static_shapes_only: ClassVar[bool] = False
    shares_binaries: ClassVar[bool] = False
    writes_contexts: ClassVar[bool] = False

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self._scratch = ExitStack()
        self._folder: Path | None = None
        self._compiled: list[tuple[Partition, Program]] = []
        self._sessions: list[VendorSession] = []
        self._only_runs = False

    # -- what subclasses may say otherwise

    @classmethod
    def vendor_options(cls, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the options as onnxruntime hands them to the EP: text, without those
        that are not set.
        """
        flags = {option.name for option in cls.options if option.type is bool}
        return {
            name: str(int(value)) if name in flags else str(value)
            for name, value in options.items()
            if value is not None
        }

    @classmethod
    def run_options(cls, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the options, in the same form, of sessions that compile no context
        model: by default those of a compile.
        """
        return cls.vendor_options(options)

    @classmethod
    def select_devices(
        cls,
        devices: Sequence[onnxruntime.OrtEpDevice],
        options: Mapping[str, Any],  # noqa: ARG003 - for subclasses
    ) -> Sequence[onnxruntime.OrtEpDevice]:
        """Return the devices, of those listed, that a session uses: the first."""
        return devices[:1]

    @classmethod
    def make_session_options(
        cls,
        options: Mapping[str, Any],
        *,
        compiles: bool = False,
        name: str | None = None,
    ) -> onnxruntime.SessionOptions:
        """Return options of onnxruntime's own session with the EP; the log is silent,
        as errors carry the vendor's reasons.

        Args:
            options: the EP's, checked and typed.
            compiles: True for a compile of a context model.
            name: under which the library is registered; see
                `PluginLibrary.list_devices`.
        """
        from epctx_onnxruntime.versions import FATAL_ONLY, make_options

        made = make_options()
        made.log_severity_level = FATAL_ONLY
        devices = cls.select_devices(cls.library.list_devices(name), options)
        vendor = cls.vendor_options if compiles else cls.run_options
        cls.library.add_to(made, devices, vendor(options))
        return made

    def can_take(self, graph: GraphView, node: NodeView) -> bool | str:
        """Return whether to offer a node to the EP where it refuses a model whole, or
        the reason not to.
        """
        for name in filter(None, (*node.inputs, *node.outputs)):
            value = graph.value(name)
            if self.static_shapes_only and not value.type.is_static:
                return f"the shape of {name!r} is not static"
        return True

    def join_binaries(self, binaries: Sequence[Path], folder: Path) -> Path | None:  # noqa: ARG002 - for subclasses
        """Return one binary, in the folder, with the graphs of several; None: they stay
        several.
        """
        return None

    def describe_program(self, program: Program) -> Mapping[str, Any]:
        """Return the attributes of a program's EPContext node: those of the vendor."""
        return program.attributes

    def may_try_whole(self, graph: GraphView) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether onnxruntime may be given the whole graph to cut; False where
        that would end the process.
        """
        return True

    # -- what is asked without an instance

    @classmethod
    def availability(cls, purpose: Purpose) -> Availability:  # noqa: ARG003
        """Return whether the package is there, its library loads, and a device is
        listed.
        """
        try:
            cls.library.list_devices()
        except NotImplementedByProvider as error:
            return Availability(False, reason=error.message, hint=error.hint or "")
        return Availability(True)

    @classmethod
    def devices(cls) -> Sequence[HardwareDevice]:
        """Return the devices that onnxruntime lists for the EP and that its options can
        select.

        Raises:
            NotImplementedByProvider: the package is missing, or no device is listed.
        """
        devices = cls.library.list_devices()
        found = []
        for listed in devices:
            options = cls.get_device_options(listed)
            if listed not in cls.select_devices(devices, options):
                continue
            hardware = listed.device
            found.append(
                HardwareDevice(
                    type=hardware.type.name,
                    vendor=hardware.vendor,
                    vendor_id=hardware.vendor_id,
                    device_id=hardware.device_id,
                    metadata={**read_metadata(listed), **cls.describe_device(listed)},
                    options=options,
                )
            )
        return found

    @classmethod
    def describe_device(
        cls,
        device: onnxruntime.OrtEpDevice,  # noqa: ARG003 - for subclasses
    ) -> Mapping[str, str]:
        """Return what the EP's metadata does not say of a device: nothing."""
        return {}

    @classmethod
    def get_device_options(
        cls,
        device: onnxruntime.OrtEpDevice,  # noqa: ARG003 - for subclasses
    ) -> Mapping[str, object]:
        """Return the options by which `select_devices` selects a device: none."""
        return {}

    @classmethod
    def get_build_info(cls, options: Mapping[str, Any]) -> BuildInfo:
        """Return the versions of the package and of onnxruntime, digests of the library
        and options' files, and the target.

        Keys of caches have it, too: a library replaced within a version compiles anew.
        """
        facts = cls.identify(options)
        digests = [
            f"{key} {facts[key][:16]}"
            for key in ("library", "settings")
            if key in facts
        ]
        return BuildInfo(
            sdk=", ".join(
                filter(
                    None,
                    (facts["package"], *digests, f"onnxruntime {facts['onnxruntime']}"),
                )
            ),
            driver=facts["driver"],
            target=facts["target"],
        )

    @classmethod
    def identify(cls, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Return facts besides the options that change where what the EP compiles may
        change: for keys of caches.

        Returns:
            `onnxruntime`, `package`, `library` and `files` (see
            `PluginLibrary.identify`), `target` and `driver` (see `identify_target`);
            with files named by options `settings`, a digest of their content.

        Raises:
            NotImplementedByProvider: the EP is not available.
        """
        facts = {**cls.library.identify(), **cls.identify_target(options)}
        if digest := digest_named_files(
            filter(None, map(options.get, cls.file_options))
        ):
            facts["settings"] = digest
        return facts

    @classmethod
    def identify_target(cls, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Return what the EP compiles for: by default the device that a session uses.

        Returns:
            `target`, and `driver`, the version of the driver that payloads need, empty
            where nobody tells.

        Raises:
            NotImplementedByProvider: the EP is not available.
        """
        devices = cls.select_devices(cls.library.list_devices(), options)
        # Without one it is known to onnxruntime alone.
        return describe_target(devices[0]) if devices else {"target": "", "driver": ""}

    @classmethod
    def validate_compatibility(
        cls, info: str, options: Mapping[str, Any]
    ) -> Compatibility:
        """Return the verdict of the EP by onnxruntime's own call; none where the EP
        cannot judge on this device.
        """
        from epctx_onnxruntime.real import native

        devices = cls.select_devices(cls.library.list_devices(), options)
        try:
            return Compatibility(
                int(native.get_model_compatibility_for_ep_devices(list(devices), info))
            )
        except Exception as error:  # noqa: BLE001 - QNN's fails where there is no NPU, as onnxruntime's sessions do not ask
            logging.getLogger(f"epctx.ep.{cls.name}").info(
                "it cannot judge a compiled model: %s", quote(error)
            )
            return Compatibility.EP_NOT_APPLICABLE

    # -- hooks

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take what onnxruntime compiles for the EP."""
        from epctx_onnxruntime.custom_operators import register_libraries
        from epctx_onnxruntime.providers.programs import ProgramMaker

        if graph.parent_node is not None:
            return [Refusal("onnxruntime compiles no subgraphs for EPs", graph.nodes)]
        if not graph.nodes:
            return []

        def make_options(compiles: bool) -> onnxruntime.SessionOptions:
            options = self.session_options(compiles=compiles)
            # Or onnxruntime would refuse the whole model for a node that stays on the
            # CPU.
            register_libraries(options, self._libraries)
            return options

        maker = ProgramMaker(
            ep=self.library.ep,
            native_ep=self.library.get_name(self.library.list_devices()),
            graph=graph,
            context=self.context,
            options=make_options,
            folder=self._get_folder(),
            can_take=lambda node: self.can_take(graph, node),
            whole=self.may_try_whole(graph),
            writes_contexts=self.writes_contexts,
        )
        claims = maker.make()
        if not self.writes_contexts and (fault := self._read_back(graph, claims)):
            claims = replace(maker, unusable=fault).make()
        if all(isinstance(claim, Refusal) for claim in claims):
            self.check_options()
        return claims

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Return what `get_capability` compiled, ready to run unless it is exported."""
        for partition in partitions:
            if partition.token is None:
                self._only_runs = True
            else:
                self._compiled.append((partition, partition.token))  # type: ignore[arg-type]
        if self.context.purpose is Purpose.EXPORT:
            return [CompiledPartition(None)] * len(partitions)
        return [self._run(partition) for partition in partitions]

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Describe the vendor's nodes; programs of one binary share a payload.

        Raises:
            NotImplementedByProvider: binaries of several models are to be one payload,
                or there is none, as the EP only runs models.
        """
        if self._only_runs:
            raise NotImplementedByProvider(
                f"{self.name} runs models but cannot save what it compiled.",
                ep=self.name,
                hint="Run the model with it as it is, without ep.context_enable.",
            )
        payloads: dict[Binary, Payload] = {}
        nodes = []
        payload = None
        models: dict[str, bytes] = self.context.workspace.get_or_create("models", dict)
        wanted = [name for names in writer.graphs_by_model for name in names]
        shared = self._share(writer)
        if shared is None:
            self._join()
        # Nodes of one model have one text.
        infos = (program.info for _, program in self._compiled)
        info = next((text for text in infos if text is not None), None)
        # The payload without a name is the vendor's binary, where there is one.
        has_binary = shared is not None or any(
            program.name is not None for _, program in self._compiled
        )
        for partition, program in self._compiled:
            if program.name is None:
                payload = payload or writer.payload(_MODELS if has_binary else None)
                models[partition.name] = program.binary.content  # type: ignore[assignment]
                nodes.append(
                    EPContextNode(
                        partition,
                        payload,
                        attributes={MODELS: 1},
                        compatibility_info=info,
                    )
                )
            else:
                if shared is not None:
                    payloads[program.binary] = shared
                nodes.append(self._describe(partition, program, payloads, writer))
        if writer.final and (
            written := {name: models[name] for name in wanted if name in models}
        ):
            write_blobs(payload or writer.payload(), written, kind=_KIND)
        return nodes

    def _join(self) -> None:
        """Put the programs of a model that was compiled in pieces into one binary,
        where the EP can.
        """
        binaries = dict.fromkeys(
            program.binary for _, program in self._compiled if program.name is not None
        )
        files = [
            binary.content for binary in binaries if isinstance(binary.content, Path)
        ]
        if not files[1:] or len(files) < len(binaries):
            return
        if joined := self.join_binaries(files, self._get_folder()):
            binary = type(next(iter(binaries)))(joined)
            self._compiled = [
                (p, replace(program, binary=binary)) for p, program in self._compiled
            ]

    def _share(self, writer: ContextWriter) -> Payload | None:
        """Return the payload of a share group, which is compiled at its end; None where
        the binary of this model alone is right.

        Raises:
            NotImplementedByProvider: they cannot.
        """
        from epctx_onnxruntime.providers.sharing import (
            collect_sources,
            compile_together,
        )

        sources = collect_sources(self._compiled, self.context.workspace, writer)
        if sources is None:
            return None
        if not self.shares_binaries:
            raise NotImplementedByProvider(
                f"{self.name} writes a binary for each model, and cannot put those of "
                "a share group into one.",
                ep=self.name,
                hint="Compile the models without a share group.",
            )
        payload = writer.payload()
        if writer.final:
            binary = compile_together(
                sources,
                self.make_session_options,
                self.context,
                self._libraries,
                Path(self._get_folder(), "shared"),
            )
            payload.add_file(binary)
        return payload

    def _describe(
        self,
        partition: Partition,
        program: Program,
        payloads: dict[Binary, Payload],
        writer: ContextWriter,
    ) -> EPContextNode:
        from epctx_onnxruntime.providers.sessions import VALUES

        binary = program.binary
        is_first = binary not in payloads
        if is_first:
            # A second binary is that of another group of nodes.
            payloads[binary] = payload = writer.payload(
                f"{len(payloads)}" if payloads else None
            )
            if isinstance(binary.content, Path):
                payload.add_file(binary.content)
            else:
                payload.write(binary.content)
        attributes = self.describe_program(program)
        if self.finds_values_by_name:
            values = *partition.inputs, *partition.outputs
            attributes = {**attributes, VALUES: [value.name for value in values]}
        return EPContextNode(
            partition,
            payloads[binary],
            main_context=int(is_first or program.main_context),
            attributes=attributes,
            graph_name=program.name,
            compatibility_info=program.info,
            shapes=program.shapes,
        )

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Create a session over each node, as onnxruntime would load it."""
        loaded = []
        for node in nodes:
            self.context.cancel.raise_if_requested()
            loaded.append(self._keep(self._load(node, reader)))
        return loaded

    @hookimpl
    def set_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Pass declared options on to each session; vendors' EPs may end the process at
        others.

        Raises:
            ValueError: the EP declares none, or refuses one.
        """
        if not self.dynamic_options:
            raise ValueError(f"{self.name} declares no dynamic options")
        for session in self._sessions:
            try:
                session.set_dynamic_options(options)
            except Exception as error:
                # Onnxruntime's exceptions have no base of their own.
                raise ValueError(quote(error)) from error

    @hookimpl
    def shutdown(self) -> None:
        """Free sessions and binaries."""
        self._sessions.clear()
        self._compiled.clear()
        self._scratch.close()

    # -- sessions

    def session_options(
        self, threads: int = 1, *, compiles: bool = False
    ) -> onnxruntime.SessionOptions:
        """Return options of a session with the EP, or of a compile with it; see
        `make_session_options`.
        """
        options = self.make_session_options(self.context.options, compiles=compiles)
        options.intra_op_num_threads = self.context.intra_op_num_threads or threads
        return options

    def open_context(
        self,
        name: str,
        attributes: Mapping[str, Any],
        boundary: tuple[Sequence[ValueInfo], Sequence[ValueInfo]],
        content: Path | bytes,
    ) -> VendorSession:
        """Create a session over one EPContext node; see `sessions.open_context`."""
        from epctx_onnxruntime.providers.sessions import open_context
        from epctx_onnxruntime.providers.sharing import SHARE

        options = self.session_options()
        if not self._compiled and self.context.session_config.get(SHARE) == "1":
            # The EP takes the graph out of what it loaded for an earlier session.
            options.add_session_config_entry(SHARE, "1")
        return self._create(
            partial(open_context, name, attributes, boundary, content), options
        )

    def _create(
        self,
        create: Callable[[onnxruntime.SessionOptions], VendorSession],
        options: onnxruntime.SessionOptions,
    ) -> VendorSession:
        """Create a session; the model is not blamed for what the EP's options are to
        blame for.

        Raises:
            InvalidArgument: onnxruntime does not create the EP with its options, or
                loads the model without them.
            InvalidGraph: onnxruntime or the EP refuses the model.
        """
        try:
            return create(options)
        except InvalidGraph as error:
            self.check_options()
            given = self._name_options()
            if given and self._loads_by_default(create):
                raise InvalidArgument(
                    f"{error.node!r} does not load with {given} set, and loads "
                    f"without: {quote(error.__cause__ or error)}",
                    ep=self.name,
                    node=error.node,
                    hint=_CHECK_OPTIONS,
                ) from error
            raise

    def _loads_by_default(
        self, create: Callable[[onnxruntime.SessionOptions], VendorSession]
    ) -> bool:
        with suppress(InvalidArgument, InvalidGraph):
            create(self.make_session_options(self._defaults())).close()
            return True
        return False

    def _defaults(self) -> dict[str, Any]:
        return {option.name: option.default for option in self.options}

    def _name_options(self) -> str:
        """Return the names of the EP's options that are not at their defaults."""
        defaults = self._defaults()
        return ", ".join(
            repr(name)
            for name, value in self.context.options.items()
            if value != defaults.get(name)
        )

    def check_options(self) -> None:
        """Find out whether it is the options for which onnxruntime compiled nothing, or
        does not load a model.

        Raises:
            InvalidArgument: onnxruntime does not even create the EP with them.
        """
        from epctx_onnxruntime.providers.sessions import try_options

        try:
            try_options(self.session_options())
        except Exception as error:
            raise InvalidArgument(
                f"onnxruntime cannot create {self.name} with "
                f"{self._name_options() or 'no options'} set: {quote(error)}",
                ep=self.name,
                hint=_CHECK_OPTIONS,
            ) from error

    @property
    def _libraries(self) -> Sequence[str]:
        """Libraries of custom operators that the host registered."""
        policy = getattr(self.context.engine, "policy", EnginePolicy())
        return tuple(policy.custom_ops_libraries)

    def _get_folder(self) -> Path:
        if self._folder is None:
            self._folder = self._scratch.enter_context(self.context.scratch())
        return self._folder

    def _read_back(
        self, graph: GraphView, claims: Sequence[ComputeCapability | Refusal]
    ) -> str:
        """Return why a program that was compiled of a graph does not load; empty where
        all do.
        """
        for claim in claims:
            program: Any = None if isinstance(claim, Refusal) else claim.token
            if program is None:
                continue
            self.context.cancel.raise_if_requested()
            boundary = (
                [graph.value(name) for name in program.inputs],
                [graph.value(name) for name in program.outputs],
            )
            try:
                self._open(program, program.name or graph.name, boundary).close()
            except (InvalidArgument, InvalidGraph) as error:
                return error.message
        return ""

    def _run(self, partition: Partition) -> CompiledPartition:
        """Return a session over what `get_capability` compiled of a partition, or over
        its nodes.
        """
        from epctx_onnxruntime.providers.sessions import open_partition

        program: Any = partition.token
        if program is None:
            create = partial(open_partition, partition)
            return self._keep(self._create(create, self.session_options(0)))
        boundary = partition.inputs, partition.outputs
        return self._keep(self._open(program, partition.name, boundary))

    def _open(
        self,
        program: Program,
        name: str,
        boundary: tuple[Sequence[ValueInfo], Sequence[ValueInfo]],
    ) -> VendorSession:
        """Create a session over a program."""
        if program.name is None:
            return self._open_model(program.binary.content, name)
        # The vendor may have proved more than epctx.
        shapes = program.shapes
        inputs, outputs = (
            [
                v._replace(type=TensorType(v.elem_type, shapes.get(v.name, v.shape)))
                for v in side
            ]
            for side in boundary
        )
        attributes = {
            **program.attributes,
            "partition_name": program.name,
            "source": self.library.ep,
        }
        return self.open_context(
            program.name, attributes, (inputs, outputs), program.binary.content
        )

    def _open_model(self, content: Any, name: str) -> VendorSession:
        """Create a session over an optimised model; see `sessions.open_bytes`."""
        from epctx_onnxruntime.providers.sessions import open_bytes

        create = partial(open_bytes, bytes(content), name)
        return self._create(create, self.session_options(0))

    def _load(self, node: ContextNode, reader: ContextReader) -> VendorSession:
        from epctx_onnxruntime.providers.sessions import (
            EMBED_LIMIT,
            VALUES,
            name_values,
        )

        payload = reader.payload(node)
        if node.attributes.get(MODELS):
            content = Blobs(payload, kind=_KIND)[node.partition_name]
            return self._open_model(content, node.name)
        binary = (
            Path(payload.as_file())
            if payload.is_file or payload.view.nbytes > EMBED_LIMIT
            else bytes(payload.view)
        )
        attributes = {
            **node.attributes,
            "partition_name": node.partition_name,
            "source": self.library.ep,
        }
        boundary = name_values(node, attributes.pop(VALUES, None))
        return self.open_context(node.partition_name, attributes, boundary, binary)

    def _keep(self, session: VendorSession) -> CompiledPartition:
        self._sessions.append(session)
        return CompiledPartition(session.run, close=session.close)
