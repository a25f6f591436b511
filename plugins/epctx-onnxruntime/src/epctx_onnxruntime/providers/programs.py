"""Nodes of a graph as programs that onnxruntime compiled for a vendor's EP.

onnxruntime cuts: a model whose nodes are all free is compiled in one call, and each
EPContext node that comes back is the program of a set of nodes. Otherwise each convex
group of nodes is compiled as a model of its own. Of an EP that writes no EPContext
nodes onnxruntime says which nodes it takes, and its programs are optimised models; of
one for which onnxruntime compiles no model at all, sessions over the nodes themselves.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import ModelProto, helper

from epctx_core.errors import quote
from epctx_core.plugin import ComputeCapability, Purpose, Refusal, number_nodes
from epctx_onnxruntime.engine import keep_distinct_names, place_weights
from epctx_onnxruntime.providers.layout import add_barriers, enclose, strip_barrier
from epctx_onnxruntime.providers.sharing import SourceModel, lend
from epctx_onnxruntime.real import onnxruntime
from epctx_onnxruntime.versions import compile_model

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import numpy as np
    from onnx import GraphProto, NodeProto

    from epctx_core.plugin import GraphView, NodeView, ProviderContext

DOMAIN = "com.microsoft"
CONTEXT = "EPContext"
INFO_KEY = "ep_compatibility_info."
_LEVELS = onnxruntime.GraphOptimizationLevel
_OF_SHAPES = frozenset({"Shape", "Size"})
_PLACED = frozenset(
    {"ep_cache_context", "embed_mode", "main_context", "partition_name", "source"}
)
"""Attributes of an EPContext node that say where its payload is; the core writes
them.
"""


CANNOT_SAVE = (
    "it runs models but cannot save what it compiled: a session without "
    "ep.isolate=compile gives it nodes"
)
"""Reason for which an EP that writes nothing is given no nodes by a compile."""


class VendorRefusal(Exception):
    """A set of nodes that onnxruntime does not compile for the EP; its text is the
    reason.
    """


@dataclass(frozen=True, eq=False)
class Binary:
    """Bytes that the vendor's compiler wrote, of one or several programs: a file, or in
    memory.
    """

    content: Path | bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Result of onnxruntime for a set of nodes.

    Attributes:
        binary: the payload.
        name: name of the graph in the payload; None for an optimised model.
        inputs, outputs: names at its boundary, in the vendor's order.
        attributes: the vendor's own of the EPContext node.
        main_context: that of the vendor.
        info: text of `ep_compatibility_info` for it, or None.
        shapes: those of its inputs and outputs that are static, by name.
        source: the model that was compiled; None for an optimised model.
    """

    binary: Binary
    name: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    main_context: int = 1
    info: str | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    source: SourceModel | None = None


@dataclass(kw_only=True)
class ProgramMaker:
    """Compiler of the nodes of one graph.

    Args:
        ep: the EP's name.
        native_ep: its name in onnxruntime.
        graph: the main graph of a model.
        context: for cancellation and progress.
        options: makes options of sessions with the EP; True asks for those of a
            compile.
        folder: folder for binaries, which outlives the programs.
        can_take: returns True for a node that the EP may take, or a reason.
        whole: whether to try the whole model first, with nodes that the EP may not
            take.
        writes_contexts: whether the EP is known to write EPContext nodes, so that a
            model that does not compile is not one that it only runs.
        unusable: why what the EP compiled cannot be used, so that it only runs nodes.
    """

    ep: str
    native_ep: str
    graph: GraphView
    context: ProviderContext
    options: Callable[[bool], onnxruntime.SessionOptions]
    folder: Path
    can_take: Callable[[NodeView], bool | str]
    whole: bool = True
    writes_contexts: bool = False
    unusable: str = ""

    def __post_init__(self) -> None:
        self._whole = self.graph.model()
        self._results = {value.name for value in self.graph.outputs}
        self._claimed: set[int] = set()
        # Where nothing is to be saved, an EP need not be able to.
        self._only_runs = bool(self.unusable) or not (
            self.writes_contexts or self._exports
        )

    @property
    def _exports(self) -> bool:
        settings = self.context.session_config
        return (
            self.context.purpose is Purpose.EXPORT
            or settings.get("ep.context_enable") == "1"
        )

    def make(self) -> list[ComputeCapability | Refusal]:
        """Compile the free nodes; return a claim for each program, and a refusal for
        the other nodes.
        """
        free = self.graph.nodes
        refused: dict[str, list[NodeView]] = {}
        for node in free:
            if (verdict := self.can_take(node)) is not True:
                refused.setdefault(
                    verdict or f"{node.op_type} is not supported", []
                ).append(node)
        if self.whole and len(free) == len(self._whole.graph.node):
            try:
                return self._compile(free, self._whole)
            except VendorRefusal as error:
                if not refused:
                    return [Refusal(str(error), free)]
        bad = {node.index for nodes in refused.values() for node in nodes}
        good = [node for node in free if node.index not in bad]
        return [
            *(Refusal(*item) for item in refused.items()),
            *self._compile_groups(good),
        ]

    def _compile_groups(
        self, nodes: Iterable[NodeView]
    ) -> list[ComputeCapability | Refusal]:
        """Compile each convex group of some nodes alone; one that onnxruntime refuses
        whole is a refusal.
        """
        groups = self.graph.convex_groups(nodes)
        claims: list[ComputeCapability | Refusal] = []
        for number, group in enumerate(groups):
            self.context.cancel.raise_if_requested()
            self.context.progress("compile", number, len(groups))
            try:
                claims += self._compile(group, self._extract(group))
            except VendorRefusal as error:
                claims.append(Refusal(str(error), group))
        return claims

    def _compile(
        self, nodes: Sequence[NodeView], model: ModelProto
    ) -> list[ComputeCapability | Refusal]:
        """Have a model of some nodes compiled, by default as it is; simplified first
        where it computes with shapes.

        Computing with shapes would cut the graph, and onnxruntime folds it in a
        session, around EPContext nodes, too. Where one level does not fit, the other is
        tried; where neither does, the EP may still run nodes.

        Raises:
            VendorRefusal: onnxruntime refuses the model whole.
        """
        if self._only_runs:
            return self._take(nodes, self._find_assigned(nodes, model))
        levels = [_LEVELS.ORT_DISABLE_ALL, _LEVELS.ORT_ENABLE_BASIC]
        if any(node.op_type in _OF_SHAPES for node in nodes):
            levels.reverse()
        before = set(self._claimed)
        try:
            return self._compile_at(levels[0], nodes, model, strict=True)
        except VendorRefusal:
            self.context.cancel.raise_if_requested()
            self._claimed = before
        try:
            return self._compile_at(levels[1], nodes, model, strict=False)
        except VendorRefusal as error:
            if self.writes_contexts:
                raise
            return self._take_running(nodes, model, error)

    def _compile_at(
        self,
        level: onnxruntime.GraphOptimizationLevel,
        nodes: Sequence[NodeView],
        model: ModelProto,
        *,
        strict: bool,
    ) -> list[ComputeCapability | Refusal]:
        numbered = ModelProto()
        numbered.CopyFrom(model)
        number = number_nodes(numbered)
        source, compiled, folder = self._call_compiler(numbered, level)
        left: set[int] = set()
        before = set(self._claimed)
        while contexts := [node for node in compiled.graph.node if _is_context(node)]:
            programs = self._read_programs(compiled, contexts, folder, source)
            try:
                claims = self._claim_all(programs, strict=True)
                return self._refuse_rest(nodes, claims)
            except VendorRefusal:
                self._claimed = set(before)

            # Values at a boundary may have another layout than the model's.
            also = {
                index
                for node in compiled.graph.node
                if not _is_context(node)
                for name in (node.name, *node.output)
                if (index := number(name)) is not None
            }
            separated = None if also <= left else add_barriers(numbered, left | also)
            left |= also
            if separated is None:
                return self._compile_apart(nodes, model, left, programs, strict=strict)
            source, compiled, folder = self._call_compiler(separated, level)
        return self._take(nodes, self._find_assigned(nodes, model))

    def _compile_apart(
        self,
        nodes: Sequence[NodeView],
        model: ModelProto,
        left: Collection[int],
        programs: Iterable[Program],
        *,
        strict: bool,
    ) -> list[ComputeCapability | Refusal]:
        """Compile the nodes that onnxruntime did not leave to others, each convex group
        alone.
        """
        made_by_others = {
            name for index in left for name in model.graph.node[index].output
        }
        ep_nodes = [node for node in nodes if made_by_others.isdisjoint(node.outputs)]
        # onnxruntime copies a dequantiser that several operators read, one of which is
        # another EP's. Here it is in one place, whence both read its result.
        read = {name for node in ep_nodes for name in node.inputs}
        copied = [
            node
            for node in nodes
            if node.op_type == "DequantizeLinear"
            and not made_by_others.isdisjoint(node.outputs)
            and not read.isdisjoint(node.outputs)
            and self.can_take(node) is True
        ]
        if len(ep_nodes) + len(copied) < len(nodes):
            ep_nodes += copied
        if len(ep_nodes) in (0, len(nodes)):
            claims = self._claim_all(programs, strict=strict)
        else:
            claims = self._compile_groups(ep_nodes)
        return self._refuse_rest(nodes, claims)

    def _read_programs(
        self,
        compiled: ModelProto,
        contexts: Iterable[NodeProto],
        folder: Path,
        source: SourceModel,
    ) -> list[Program]:
        binaries: dict[bytes, Binary] = {}
        shapes = _find_static_shapes(compiled.graph)
        infos = {entry.key: entry.value for entry in compiled.metadata_props}
        info = infos.get(INFO_KEY + self.native_ep)
        return [
            replace(
                _read_program(node, folder, binaries),
                info=info,
                shapes=_select(shapes, node),
                source=source,
            )
            for node in contexts
        ]

    def _claim_all(
        self, programs: Iterable[Program], *, strict: bool
    ) -> list[ComputeCapability | Refusal]:
        """Return the claims of programs; refusals for those that fit no set of nodes.

        Raises:
            VendorRefusal: one fits none, if strict.
        """
        claims: list[ComputeCapability | Refusal] = []
        for program in programs:
            inputs = tuple(map(strip_barrier, program.inputs))
            stripped = replace(program, inputs=inputs)
            try:
                claim = self._claim(stripped)
            except VendorRefusal as error:
                if strict:
                    raise
                claims.append(Refusal(str(error), self._find_enclosed(stripped)))
                continue
            if inputs == program.inputs:
                claims.append(claim)
                continue

            # A value of the model has two names in the binary, and a context model one.
            self._claimed -= {node.index for node in claim.nodes}
            claims += self._compile(claim.nodes, self._extract(claim.nodes))
        return claims

    def _refuse_rest(
        self, nodes: Iterable[NodeView], claims: Iterable[ComputeCapability | Refusal]
    ) -> list[ComputeCapability | Refusal]:
        """Return claims, and a refusal for all nodes that they do not name: of
        programs that fit no nodes, if there are any, else of onnxruntime.
        """
        named = {node.index for claim in claims for node in claim.nodes}
        rest = [node for node in nodes if node.index not in named]
        reasons = [
            claim.reason
            for claim in claims
            if isinstance(claim, Refusal) and not claim.nodes
        ]
        reasons.append(f"onnxruntime gives it to another EP than {self.ep}")
        refused = [Refusal(reasons[0], rest)] if rest else []
        return [*(claim for claim in claims if claim.nodes), *refused]

    def _call_compiler(
        self, model: ModelProto, level: onnxruntime.GraphOptimizationLevel
    ) -> tuple[SourceModel, ModelProto, Path]:
        """Return the model as onnxruntime gets it, the one with EPContext nodes, and
        the new folder of its binaries.

        Raises:
            VendorRefusal: onnxruntime refuses the model.
        """
        folder = Path(self.folder, str(len(list(self.folder.iterdir()))))
        folder.mkdir()
        ends = {v.name for v in (*self._whole.graph.input, *self._whole.graph.output)}
        model = enclose(model, ends)
        content, weights = self._detach(model)
        source = SourceModel(
            name=self._name(model, content),
            content=content,
            weights=weights,
            level=level.value,
        )
        try:
            return source, source.compile(self.options(True), folder), folder
        except MemoryError:
            raise
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise VendorRefusal(
                f"onnxruntime does not compile it for {self.ep}: {quote(error)}"
            ) from error

    def _name(self, model: ModelProto, content: bytes) -> str:
        """Return a name for a model, by its content: names of graphs are made of it,
        which have to be unique.
        """
        digest = hashlib.sha256(content)
        for tensor in model.graph.initializer:
            if (view := self.graph.initializer(tensor.name)) is not None:
                digest.update(view.digest.encode())
        return digest.hexdigest()[:16]

    def _declare_types(self, model: ModelProto) -> None:
        """Declare the known types of inner values: onnxruntime infers fewer, and EPs
        take an unknown shape for a scalar.
        """
        typed_names = {
            value.name for value in (*model.graph.value_info, *model.graph.output)
        }
        for name in (
            name
            for node in model.graph.node
            for name in node.output
            if name and name not in typed_names
        ):
            value = self.graph.value(strip_barrier(name))
            if value.elem_type is not None:
                info = helper.make_tensor_value_info(name, value.elem_type, value.shape)
                model.graph.value_info.append(info)

    def _detach(self, model: ModelProto) -> tuple[bytes, Mapping[str, np.ndarray]]:
        """Return a model's bytes, and its weights, which are lent to onnxruntime.

        The model has no path, so that onnxruntime makes names of content and not of a
        folder.
        """
        views = {
            t.name: self.graph.initializer(t.name) for t in model.graph.initializer
        }
        lent = {name: view.array() for name, view in views.items() if view is not None}
        weights, copy = place_weights(model, lent)
        self._declare_types(copy)
        keep_distinct_names(copy.graph)
        return copy.SerializeToString(), weights

    def _claim(self, program: Program) -> ComputeCapability:
        """Return the claim of the nodes behind an EPContext node.

        Raises:
            VendorRefusal: its boundary is not one of the graph's.
        """
        nodes = self._find_enclosed(program)
        constants, inputs, outputs = self._find_boundary(nodes)
        keeps = any(name in constants for name in program.inputs)
        if {*inputs, *(constants if keeps else ())} != {*program.inputs} or {
            *outputs
        } != {*program.outputs}:
            raise VendorRefusal(
                f"onnxruntime changes the graph around it for {self.ep}, so that the "
                "result fits no set of nodes"
            )
        self._claimed |= {node.index for node in nodes}
        return ComputeCapability(
            nodes, exact=True, keep_initializers=keeps, token=program
        )

    def _find_enclosed(self, program: Program) -> list[NodeView]:
        """Return the nodes between a program's inputs and outputs that no other program
        has, in order.
        """
        ends = {"", *program.inputs}
        enclosed: dict[int, NodeView] = {}
        ahead = [name for name in program.outputs if name not in ends]
        while ahead:
            producer = self.graph.producer(ahead.pop())
            if (
                producer is None
                or producer.index in enclosed
                or producer.index in self._claimed
            ):
                continue
            enclosed[producer.index] = producer
            ahead += [
                n
                for n in (*producer.inputs, *producer.implicit_inputs)
                if n not in ends
            ]
        free = {node.index for node in self.graph.nodes}
        # A constant that another set reads, too, would tie both to an order; each has
        # it as a weight.
        shared = {
            node.index
            for node in enclosed.values()
            if self._is_shared_constant(node, enclosed)
        }
        return [enclosed[index] for index in sorted(enclosed) if index in free - shared]

    def _is_shared_constant(
        self, node: NodeView, inside: Mapping[int, NodeView]
    ) -> bool:
        """Return whether a node makes constants alone, of which nodes outside of a set
        read one.
        """
        names = [name for name in node.outputs if name]
        return all(self.graph.initializer(name) is not None for name in names) and any(
            reader.index not in inside
            for name in names
            for reader in self.graph.consumers(name)
        )

    def _find_boundary(
        self, nodes: Sequence[NodeView]
    ) -> tuple[list[str], list[str], list[str]]:
        """Return the constants and other values that enter a set of nodes, and the
        values that leave it.
        """
        inside = {node.index for node in nodes}
        made = {name for node in nodes for name in node.outputs}
        read = dict.fromkeys(
            name for node in nodes for name in (*node.inputs, *node.implicit_inputs)
        )
        entering = [name for name in read if name and name not in made]
        constants = [
            name for name in entering if self.graph.initializer(name) is not None
        ]
        leaving = [
            name
            for node in nodes
            for name in node.outputs
            if name in self._results
            or (
                name
                and self.graph.initializer(name) is None
                and any(
                    reader.index not in inside for reader in self.graph.consumers(name)
                )
            )
        ]
        return (
            constants,
            [name for name in entering if name not in {*constants}],
            leaving,
        )

    def _extract(self, nodes: Sequence[NodeView]) -> ModelProto:
        """Return a model of a group of nodes."""
        constants, inputs, outputs = self._find_boundary(nodes)
        model = ModelProto(
            ir_version=self._whole.ir_version, opset_import=self._whole.opset_import
        )
        model.functions.extend(self._whole.functions)
        graph = model.graph
        graph.name = self._whole.graph.name
        wanted = {*constants}
        graph.initializer.extend(
            t for t in self._whole.graph.initializer if t.name in wanted
        )
        # Those that Constant nodes of other groups make.
        makers = [self.graph.producer(name) for name in constants]
        graph.node.extend(maker.proto() for maker in makers if maker is not None)
        graph.node.extend(node.proto() for node in nodes)
        for names, values in ((inputs, graph.input), (outputs, graph.output)):
            for name in names:
                value = self.graph.value(name)
                if value.elem_type is None:
                    raise VendorRefusal(
                        f"the type of {name!r} at its boundary is not known"
                    )
                values.append(
                    helper.make_tensor_value_info(name, value.elem_type, value.shape)
                )
        return model

    def _take_running(
        self, nodes: Sequence[NodeView], model: ModelProto, refusal: VendorRefusal
    ) -> list[ComputeCapability | Refusal]:
        """Take the nodes of a model that the EP runs, where onnxruntime does not
        compile it: that fails for each EP without EPContext nodes.

        Raises:
            VendorRefusal: the one given, as the EP runs no node either.
        """
        self.context.cancel.raise_if_requested()
        with suppress(VendorRefusal):
            if ep_nodes := self._find_assigned(nodes, model):
                self._only_runs = True
                return self._take(nodes, ep_nodes)
        raise refusal

    def _find_assigned(
        self, nodes: Sequence[NodeView], model: ModelProto
    ) -> list[NodeView]:
        """Return the nodes of a model that onnxruntime gives to the EP in a session.

        Raises:
            VendorRefusal: onnxruntime makes no session of the model with the EP.
        """
        by_output = {name: node for node in nodes for name in node.outputs if name}
        names = [
            [by_output.get(name) for name in node.output] for node in model.graph.node
        ]
        assigned = {
            node.index
            for number in self._ask_assignment(model)
            for node in names[number]
            if node is not None
        }
        return [
            node
            for node in nodes
            if node.index in assigned and self.can_take(node) is True
        ]

    def _take(
        self, nodes: Sequence[NodeView], ep_nodes: Sequence[NodeView]
    ) -> list[ComputeCapability | Refusal]:
        """Take the nodes that onnxruntime gives to an EP without EPContext nodes."""
        if self._only_runs and self.context.purpose is Purpose.EXPORT:
            # They stay in the context model, and a session with the EP takes them.
            reason = ": ".join(filter(None, (CANNOT_SAVE, self.unusable)))
            return self._refuse_rest(nodes, [Refusal(reason, ep_nodes)])

        claims: list[ComputeCapability | Refusal] = []
        for group in self.graph.convex_groups(ep_nodes) if ep_nodes else ():
            self.context.cancel.raise_if_requested()
            try:
                claims.append(
                    ComputeCapability(group, exact=True, token=self._save(group))
                )
            except VendorRefusal as error:
                claims.append(Refusal(str(error), group))
        return self._refuse_rest(nodes, claims)

    def _save(self, group: Sequence[NodeView]) -> Program | None:
        """Return the optimised model of a group of nodes; None for an EP that only
        runs models.
        """
        if self._only_runs:
            return None
        return Program(binary=Binary(self._optimise(self._extract(group))))

    def _ask_assignment(self, model: ModelProto) -> set[int]:
        """Return the numbers of a model's nodes that onnxruntime gives to the EP."""
        copy = ModelProto()
        copy.CopyFrom(model)
        number = number_nodes(copy)
        options = self.options(False)
        options.graph_optimization_level = (
            onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        )
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        content, weights = self._detach(copy)
        kept = lend(weights, options)
        try:
            session = onnxruntime.InferenceSession(content, options, enable_fallback=0)
        except MemoryError:
            raise
        except Exception as error:
            raise VendorRefusal(
                f"onnxruntime does not run it on {self.ep}: {quote(error)}"
            ) from error
        parts = [
            part
            for part in session.get_provider_graph_assignment_info()
            if part.ep_name == self.native_ep
        ]
        numbers = {number(node.name) for part in parts for node in part.get_nodes()}
        del kept
        return {index for index in numbers if index is not None}

    def _optimise(self, model: ModelProto) -> bytes:
        """Return an equivalent model with its weights, as onnxruntime optimises it for
        the EP.
        """
        options = self.options(True)
        content, weights = self._detach(model)
        kept = lend(weights, options)
        level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        try:
            compiler = onnxruntime.ModelCompiler(
                options, content, graph_optimization_level=level
            )
            optimised = compile_model(compiler)
        except MemoryError:
            raise
        except Exception as error:
            raise VendorRefusal(
                f"onnxruntime does not optimise it for {self.ep}: {quote(error)}"
            ) from error
        del kept
        for node in filter(_is_context, optimised.graph.node):
            for attribute in node.attribute:
                # The EP writes the name of its registration, and does not load it.
                if attribute.name == "source":
                    attribute.s = self.ep.encode()
        changed: bytes = optimised.SerializeToString()
        return changed


def _is_context(node: NodeProto) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, CONTEXT)


def _find_static_shapes(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(
            dim.HasField("dim_value") for dim in tensor.shape.dim
        ):
            shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes


def _select(
    shapes: Mapping[str, tuple[int, ...]], node: NodeProto
) -> dict[str, tuple[int, ...]]:
    return {
        name: shapes[name] for name in (*node.input, *node.output) if name in shapes
    }


def _read_program(
    node: NodeProto, folder: Path, binaries: dict[bytes, Binary]
) -> Program:
    """Return the program of an EPContext node that onnxruntime wrote.

    Args:
        node: the node.
        folder: the folder of binaries.
        binaries: those of the nodes before, by `ep_cache_context`; a node without one
            is in the first.
    """
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    cache = attributes.get("ep_cache_context") or next(iter(binaries), b"")
    if cache not in binaries:
        binaries[cache] = Binary(
            cache if attributes.get("embed_mode", 1) else folder / cache.decode()
        )
    name = attributes.get("partition_name", b"").decode() or node.name
    return Program(
        binary=binaries[cache],
        name=name,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes={
            key: value.decode() if isinstance(value, bytes) else value
            for key, value in attributes.items()
            if key not in _PLACED
        },
        main_context=attributes.get("main_context", 1),
    )
