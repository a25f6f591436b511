"""onnxruntime's offline optimiser as a function from model to model.

Unchanged weights stay the caller's views; others are new. Knows no EP and keeps no
state.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core import GraphOptimizationLevel
from epctx_core.errors import NotImplementedByProvider
from epctx_core.ext import Weight
from epctx_core.plugin import OptimizedModel
from epctx_core.plugin.protos import ModelProto, TensorProto, make_tensor_value_info
from epctx_onnxruntime.custom_operators import register_libraries
from epctx_onnxruntime.graphs import (
    INLINE_LIMIT,
    LOCATION,
    PLACEHOLDER,
    all_graphs,
    is_detached,
    rename_apart,
    without_weights,
)
from epctx_onnxruntime.guards import drop_empty_names, folds_recurrent
from epctx_onnxruntime.real import IS_OLD, onnxruntime
from epctx_onnxruntime.versions import compile_model, ort_value, quiet_options

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from epctx_core.plugin import Extent, TensorView

_DESCRIPTORS = Path("/proc/self/fd")
_HAS_DESCRIPTORS = _DESCRIPTORS.is_dir()
REWRITE_LIMIT = 512 << 20
"""Most bytes of weights that may be rewritten: more would take too much memory."""

CONTRIB = "com.microsoft"
_FREE_INITIALIZERS = 4
"""First IR version in which initializers need not be inputs."""
_REWRITTEN = frozenset({"Conv", "ConvTranspose", "BatchNormalization"})
_TO_CONTRIB = (
    "AttentionFusion", "Avx2WeightS8ToU8Transformer", "BiasDropoutFusion",
    "BiasGeluFusion", "BiasSkipLayerNormFusion", "BiasSoftmaxFusion",
    "ConvActivationFusion", "ConvAddActivationFusion", "DQMatMulNBitsFusion",
    "DynamicQuantizeMatMulFusion", "EmbedLayerNormFusion", "FastGeluFusion",
    "GeluFusionL1", "GeluFusionL2", "GemmActivationFusion", "GqaValueLayoutTransformer",
    "GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion",
    "LayerNormFusionL1", "LayerNormFusionL2", "MatMulActivationFusion",
    "MatMulIntegerToFloatFusion", "MatMulNBitsFusion",
    "MatMulNBitsMlpFusion", "MatMulNBitsQkvFusion", "MatMulScaleFusion",
    "MatmulTransposeFusion", "NhwcTransformer", "QDQSelectorActionTransformer",
    "QuickGeluFusion", "SimplifiedLayerNormFusion", "SkipLayerNormFusion",
    "SliceConcatToSpaceToDepthFusion",
)  # fmt: skip
"""onnxruntime's optimisers that insert other operators than ONNX's, or change the
rounding of quantised values.
"""
_NOT_WORTH = "MatMulAddFusion"
"""Makes three nodes of two, for 1 us per run at rank 2 and nothing above."""

SWITCHED_OFF = ";".join((*_TO_CONTRIB, _NOT_WORTH))

_CRASHES_ON_HALVES = "MatmulTransposeFusion"
"""Crashes onnxruntime 1.32 at its highest level where the batch of float16 tensors is
moved before a MatMul, and no value_info has the product's shape.
"""


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """Operators that an optimised model may have beside ONNX's and those of the source.

    Attributes:
        contrib: onnxruntime's own operators (`com.microsoft`).
        anything: all of onnxruntime, for a model that is run in this process and not
            written to a file.
        libraries: libraries of the source's custom operators.
    """

    contrib: bool = False
    anything: bool = False
    libraries: Sequence[str] = ()


def optimize(
    model: ModelProto,
    weights: Mapping[str, TensorView],
    level: GraphOptimizationLevel,
    allowed: Allowed,
) -> OptimizedModel:
    """Return an equal model that computes faster.

    Names, order and types of inputs and outputs stay, and so does what a model says
    about itself. Without `contrib`, optimisers that introduce onnxruntime's own
    operators are switched off; if one of a version that is not known here does so all
    the same, a lower level is tried.

    Args:
        model: not changed; its detached initializers are found in `weights`.
        weights: views by initializer name. Those in files are read through the file
            system's cache.
        level: how far to go.
        allowed: what the result may hold.

    Raises:
        NotImplementedByProvider: onnxruntime refuses, the model is too large, or its
            weights were replaced.
        InvalidGraph: a file of weights was written to meanwhile.
    """
    if IS_OLD:
        raise NotImplementedByProvider(
            f"onnxruntime {onnxruntime.__version__} leaves addresses of this process "
            "in the models that it optimises"
        )
    rewritten = rewritten_bytes(model, weights)
    if rewritten > REWRITE_LIMIT:
        raise NotImplementedByProvider(
            f"{rewritten:,} bytes of weights would be rewritten in memory"
        )
    if folds_recurrent(model):
        raise NotImplementedByProvider(
            "a recurrent operator has constants alone for inputs, and onnxruntime "
            "ends the process if they are empty"
        )
    failure = NotImplementedByProvider("no level was tried")
    for attempt in _list_attempts(level, allowed):
        try:
            optimised = _Optimisation(model, weights, *attempt).run()
            _check_subgraphs(optimised.model)
        except NotImplementedByProvider as error:
            failure = error
        else:
            return optimised
    raise failure


def switch_off(
    options: onnxruntime.SessionOptions, model: ModelProto, names: str
) -> None:
    """Switch off some of onnxruntime's optimisers and, for models with float16
    tensors, one that crashes the process.
    """
    if _has_halves(model):
        names = f"{names};{_CRASHES_ON_HALVES}".strip(";")
    if names:
        options.add_session_config_entry(
            "optimization.disable_specified_optimizers", names
        )


def _has_halves(model: ModelProto) -> bool:
    """Return whether a model has float16 tensors: as inputs, outputs or initializers,
    or by a cast.
    """
    half = TensorProto.FLOAT16
    for _, graph in all_graphs(model.graph):
        values = (*graph.input, *graph.output)
        casts = [node for node in graph.node if node.op_type == "Cast"]
        if half in {
            *[value.type.tensor_type.elem_type for value in values],
            *[tensor.data_type for tensor in graph.initializer],
            *[a.i for node in casts for a in node.attribute if a.name == "to"],
        }:
            return True
    return False


def _check_subgraphs(model: ModelProto) -> None:
    """Raise NotImplementedByProvider for invalid control flow.

    onnxruntime writes some folded constants of subgraphs twice, and folded strings as
    raw bytes, and then cannot read them.
    """
    if not any(path for path, _ in all_graphs(model.graph)):
        return
    import onnx

    try:
        onnx.checker.check_model(without_weights(model))
    except (onnx.checker.ValidationError, ValueError) as error:
        raise NotImplementedByProvider(
            f"onnxruntime wrote an invalid subgraph: {' '.join(str(error).split())}"
        ) from error


def _list_attempts(
    level: GraphOptimizationLevel, allowed: Allowed
) -> Iterator[tuple[GraphOptimizationLevel, Allowed]]:
    yield level, allowed
    if level > GraphOptimizationLevel.ORT_ENABLE_EXTENDED:
        level = GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        yield level, allowed
    if level > GraphOptimizationLevel.ORT_ENABLE_BASIC:
        yield GraphOptimizationLevel.ORT_ENABLE_BASIC, allowed


def rewritten_bytes(model: ModelProto, weights: Mapping[str, TensorView]) -> int:
    """Return the bytes of weights that the optimiser may change."""
    names = {
        n for node in model.graph.node if node.op_type in _REWRITTEN for n in node.input
    }
    return sum(weights[name].nbytes for name in names if name in weights)


def hand_over(
    model: ModelProto,
    views: Mapping[str, TensorView],
    options: onnxruntime.SessionOptions,
) -> object:
    """Provide the weights of a session that optimises: onnxruntime's optimisers read no
    others.

    Args:
        model: its detached initializers are rewritten in place: they name their file,
            or are lent or inlined.
        views: by initializer name.
        options: of the session, which copies lent weights.

    Returns:
        An object to keep alive until the session is made.
    """
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", PLACEHOLDER.anchor
    )
    names = []
    values = []
    for tensor in filter(is_detached, model.graph.initializer):
        view = views[tensor.name]
        del tensor.external_data[:]
        extent = view.extent
        if extent is not None and Path(extent.file).anchor == PLACEHOLDER.anchor:
            location = (_find_file(view, extent), extent.offset, extent.length)
        elif view.dtype.isbuiltin == 1 and view.nbytes:
            location = (_PLACEHOLDER, 0, view.nbytes)
            names.append(tensor.name)
            values.append(ort_value(view.array()))
        else:
            tensor.ClearField("data_location")
            tensor.raw_data = b"".join(view.chunks())
            continue
        for key, value in zip(("location", "offset", "length"), location, strict=True):
            tensor.external_data.add(key=key, value=str(value))
    if names:
        options.add_external_initializers(names, values)
    return values


def _find_file(view: TensorView, extent: Extent) -> str:
    """Return the path below the root by which onnxruntime opens a weight's file.

    Through the descriptor of the mapped file where the system has paths of those: under
    the file's own name another one may lie by now, and the first again once it is
    checked. onnxruntime refuses the descriptor of a file that has no name any more.
    """
    if isinstance(view, Weight) and view.mapping and _HAS_DESCRIPTORS:
        return _strip_root(_DESCRIPTORS / str(view.mapping[0].descriptor))
    return _strip_root(Path(extent.file))


def check_files(views: Mapping[str, TensorView]) -> None:
    """Check that the files that onnxruntime opened by name are the mapped ones.

    Raises:
        NotImplementedByProvider: a file was replaced.
        InvalidGraph: a file was changed.
    """
    mappings = (view.mapping for view in views.values() if isinstance(view, Weight))
    for mapped in {mapping[0] for mapping in mappings if mapping is not None}:
        mapped.check_unchanged()
        if not mapped.is_at(Path(mapped.path)):
            raise NotImplementedByProvider(f"the file {mapped.path!r} was replaced")


@dataclass
class _Optimisation:
    """One run of the optimiser."""

    source: ModelProto
    views: Mapping[str, TensorView]
    level: GraphOptimizationLevel
    allowed: Allowed
    copied: list[bytes] = field(default_factory=list)

    def run(self) -> OptimizedModel:
        """Return the result.

        Raises:
            NotImplementedByProvider: onnxruntime fails, or uses operators that are not
                allowed.
        """
        options = quiet_options()
        register_libraries(options, self.allowed.libraries)
        off = _NOT_WORTH if self.allowed.contrib else SWITCHED_OFF
        switch_off(options, self.source, "" if self.allowed.anything else off)
        level = onnxruntime.GraphOptimizationLevel(int(self.level))
        try:
            model = ModelProto()
            model.CopyFrom(self.source)
            drop_empty_names(model)
            if model.ir_version < _FREE_INITIALIZERS:
                _remove_inputs(model, model)
                model.ir_version = _FREE_INITIALIZERS
            values = hand_over(model, self.views, options)
            compiler = onnxruntime.ModelCompiler(
                options,
                model.SerializeToString(),
                graph_optimization_level=level,
                get_initializer_location_func=self._choose_location,
            )
            optimised = compile_model(compiler)
        except Exception as error:  # onnxruntime's exceptions have no base
            check_files(self.views)
            raise NotImplementedByProvider(
                f"onnxruntime refuses it: {' '.join(str(error).split())}"
            ) from error
        del values
        check_files(self.views)
        return self._finish(optimised)

    def _choose_location(
        self,
        name: str,
        value: onnxruntime.OrtValue,
        info: onnxruntime.OrtExternalInitializerInfo | None,
    ) -> onnxruntime.OrtExternalInitializerInfo | None:
        """Return a location for a weight of the result, or None for a small one.

        The offset is 0 for an unchanged weight of the caller, else a position in
        `copied`, counted from 1.
        """
        if value.element_type() == TensorProto.STRING:
            return None
        size = value.tensor_size_in_bytes()
        if size <= INLINE_LIMIT:
            return None
        offset = 0
        if not self._is_unchanged(name, value, size, info):
            # onnxruntime frees the memory after this call.
            self.copied.append(ctypes.string_at(value.data_ptr(), size))
            offset = len(self.copied)
        return onnxruntime.OrtExternalInitializerInfo(LOCATION, offset, size)

    def _is_unchanged(
        self,
        name: str,
        value: onnxruntime.OrtValue,
        size: int,
        info: onnxruntime.OrtExternalInitializerInfo | None,
    ) -> bool:
        view = self.views.get(name)
        if view is None or view.nbytes != size or list(view.shape) != value.shape():
            return False
        if info is not None and (extent := view.extent) is not None:
            path = Path(_find_file(view, extent))
            return info.file_offset == extent.offset and Path(info.filepath) == path
        memory = memoryview((ctypes.c_char * size).from_address(value.data_ptr())).cast(
            "B"
        )
        start = 0
        for chunk in view.chunks():
            if memory[start : start + len(chunk)] != chunk:
                return False
            start += len(chunk)
        return True

    def _finish(self, optimised: ModelProto) -> OptimizedModel:
        new_domains = (
            set() if self.allowed.anything else self._find_new_domains(optimised)
        )
        if not self._allows(new_domains):
            raise NotImplementedByProvider(
                "onnxruntime inserted operators that are not allowed here"
            )
        weights = self._collect_weights(optimised)
        model = _restore_frame(optimised, self.source)
        rename_apart(model.graph)
        return OptimizedModel(model, weights)

    def _allows(self, new_domains: set[str]) -> bool:
        """Return whether an optimised model may have new operators of some domains."""
        # A model that imports com.microsoft for one operator must not get others.
        imported = {opset.domain for opset in self.source.opset_import} - {CONTRIB}
        own = {CONTRIB} if self.allowed.contrib else set()
        return new_domains <= {"", "ai.onnx", *imported, *own}

    def _find_new_domains(self, optimised: ModelProto) -> set[str]:
        """Return the domains of the operators that the source does not have."""
        before, after = (
            {(node.domain, node.op_type) for node in _list_nodes(model.graph)}
            for model in (self.source, optimised)
        )
        return {domain for domain, _ in after - before}

    def _collect_weights(self, optimised: ModelProto) -> dict[str, TensorView]:
        """Return the views behind the detached initializers of the main graph; store
        those of subgraphs in the model.
        """
        weights: dict[str, TensorView] = {}
        detached = [
            (path, t)
            for path, g in all_graphs(optimised.graph)
            for t in g.initializer
            if is_detached(t)
        ]
        for path, tensor in detached:
            name = tensor.name
            number = next(
                int(e.value) for e in tensor.external_data if e.key == "offset"
            )
            del tensor.external_data[:]
            if path and not number:
                raise NotImplementedByProvider(
                    f"a subgraph has the weight {name!r} of the graph around it"
                )
            if path:
                tensor.ClearField("data_location")
                tensor.raw_data = self.copied[number - 1]
                continue
            tensor.external_data.add(key="location", value=LOCATION)
            if number:
                weights[name] = Weight(
                    name, tensor.data_type, tuple(tensor.dims), self.copied[number - 1]
                )
            else:
                weights[name] = self.views[name]
        return weights


def _strip_root(path: Path) -> str:
    return path.relative_to(path.anchor).as_posix()


_PLACEHOLDER = _strip_root(PLACEHOLDER)


def _restore_frame(optimised: ModelProto, source: ModelProto) -> ModelProto:
    """Return a model with the optimised nodes and weights and the other properties of
    the source.
    """
    model = ModelProto()
    model.CopyFrom(source)
    graph = model.graph
    for name in ("node", "initializer", "value_info"):
        graph.ClearField(name)
        getattr(graph, name).extend(getattr(optimised.graph, name))
    values = {name for node in graph.node for name in (*node.input, *node.output)}
    del graph.quantization_annotation[:]
    annotations = source.graph.quantization_annotation
    graph.quantization_annotation.extend(
        a for a in annotations if a.tensor_name in values
    )
    if source.ir_version < _FREE_INITIALIZERS:
        _remove_inputs(model, source)
        graph.input.extend(
            make_tensor_value_info(t.name, t.data_type, list(t.dims))
            for t in graph.initializer
        )
    imported = {("" if o.domain == "ai.onnx" else o.domain) for o in model.opset_import}
    for domain in sorted(
        {n.domain for n in _list_nodes(graph)} - imported - {"ai.onnx"}
    ):
        version = next(
            (o.version for o in optimised.opset_import if o.domain == domain), 1
        )
        model.opset_import.add(domain=domain, version=version)
    called = {(n.domain, n.op_type) for n in _list_nodes(graph)}
    if not any((f.domain, f.name) in called for f in model.functions):
        model.ClearField("functions")
    return model


def _remove_inputs(model: ModelProto, source: ModelProto) -> None:
    """Remove the inputs that are initializers of the source."""
    constants = {tensor.name for tensor in source.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _list_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes of a graph and of all its subgraphs."""
    for _, inner in all_graphs(graph):
        yield from inner.node
