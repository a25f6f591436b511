"""Engine on onnxruntime: sessions over weights in place, in memory or mapped."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from epctx_core.errors import InvalidArgument, InvalidGraph, NotImplementedByProvider
from epctx_core.plugin import BaseEngine, current_options, write_in_place
from epctx_core.plugin.protos import (
    ELEMENT_TYPES,
    TensorProto,
    make_tensor_value_info,
    tensor_dtype_to_np_dtype,
)
from epctx_onnxruntime.graphs import LOCATION, PLACEHOLDER, all_graphs, is_detached
from epctx_onnxruntime.newest_versions import fit_versions
from epctx_onnxruntime.real import native, onnxruntime
from epctx_onnxruntime.versions import (
    CPU_EP,
    CPU_MEMORY,
    FATAL_ONLY,
    NAME,
    make_options,
    native_value,
    ort_value,
    quiet_options,
)

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

    from epctx_core import GraphOptimizationLevel
    from epctx_core.plugin import (
        EnginePolicy,
        OptimizedModel,
        TensorView,
    )

PREPACK_LIMIT = 64 << 20
"""Bytes of weights up to which prepacking (faster runs, a private copy, 1 ms per MiB)
pays.
"""

_KEPT_BINDINGS = 4
"""Bindings that a model keeps: a decoder has one or two."""

_GUARDED = frozenset(
    {
        "DynamicQuantizeLSTM",
        "FeatureVectorizer",
        "GRU",
        "LSTM",
        "LayerNormalization",
    }
)
"""Operators with which onnxruntime may end the process; see `guards`."""

_TENSORS = {f"tensor({name})": number for number, name in ELEMENT_TYPES.items()}
"""The element type of each tensor as onnxruntime writes it."""

_FOREIGN = frozenset(
    f"tensor({name})"
    for name in (
        "bfloat16",
        "float8e4m3fn",
        "float8e4m3fnuz",
        "float8e5m2",
        "float8e5m2fnuz",
        "float8e8m0",
    )
)
_SUB_BYTE_NAMES = (
    "int4",
    "uint4",
    "int2",
    "uint2",
    "float4e2m1",
    "float6e2m3",
    "float6e3m2",
)
_SUB_BYTE = frozenset(f"tensor({name})" for name in _SUB_BYTE_NAMES)
_NOT_PASSED = frozenset(
    number
    for name, number in TensorProto.DataType.items()
    if name.lower() in _SUB_BYTE_NAMES
)


class OnnxRuntimeEngine(BaseEngine):
    """Prepares models on onnxruntime."""

    name = NAME
    checks = optimizes = runs_custom_ops = allocates = True

    def __init__(self, policy: EnginePolicy) -> None:
        super().__init__(policy)
        if policy.custom_ops_libraries:
            # Few hosts have any.
            from epctx_onnxruntime.custom_operators import check_libraries

            check_libraries(tuple(policy.custom_ops_libraries))

    def prepare(
        self,
        model: ModelProto,
        weights: Mapping[str, np.ndarray] | None = None,
        *,
        heavy: bool | None = None,
    ) -> OnnxRuntimeModel:
        """Create an onnxruntime session over a model and mapped weights; see
        `Engine.prepare`.
        """
        arrays, model = place_weights(model, weights or {})
        prepacks = self.prepacks(sum(array.nbytes for array in arrays.values()))
        options = self.session_options(model, heavy, prepacks=prepacks)
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path",
            str(PLACEHOLDER.parent),
        )
        values = {name: ort_value(array) for name, array in arrays.items()}
        for name, value in values.items():
            options.add_initializer(name, value)
        return OnnxRuntimeModel(
            create_session(model, options), model, (weights, arrays, values)
        )

    def pays_to_optimize(self, model: ModelProto) -> bool:
        """Return whether to optimise a model before it is prepared: the only one of a
        session, or a heavy one of few.
        """
        from epctx_onnxruntime.rules import OPTIMIZED_PIECES, is_heavy

        pieces = self.policy.pieces
        return pieces == 1 or (pieces <= OPTIMIZED_PIECES and is_heavy(model))

    def prepare_whole(
        self, model: ModelProto, weights: Mapping[str, TensorView]
    ) -> tuple[OnnxRuntimeModel, Sequence[ValueInfoProto]]:
        """Prepare the whole model of a session; see `BaseEngine.prepare_whole`."""
        try:
            prepared = self.prepare_optimized(model, weights)
            return prepared, prepared.describe_outputs(model.graph.output)
        except UnicodeDecodeError as error:
            # The core says which name it is.
            raise NotImplementedByProvider(f"a name is not UTF-8: {error}") from error

    def prepare_optimized(
        self, model: ModelProto, weights: Mapping[str, TensorView]
    ) -> OnnxRuntimeModel:
        """Prepare an optimised form of a model for this process alone; see
        `BaseEngine.prepare_optimized`.
        """
        from epctx_core import GraphOptimizationLevel
        from epctx_onnxruntime.optimiser import Allowed, optimize, rewritten_bytes

        if self.is_alone:
            return self._optimize_in_session(model, weights, prepacks=True)
        # Weights in files are mapped, and an optimised model leaves them there. Numpy's
        # own types can be lent.
        in_memory = all(
            view.extent is None and view.dtype.isbuiltin == 1
            for view in weights.values()
        )
        size = sum(view.nbytes for view in weights.values())
        if in_memory and size - rewritten_bytes(model, weights) <= PREPACK_LIMIT:
            return self._optimize_in_session(
                model, weights, prepacks=self.prepacks(size)
            )
        optimised = optimize(
            model,
            weights,
            GraphOptimizationLevel.ORT_ENABLE_ALL,
            Allowed(anything=True, libraries=self.policy.custom_ops_libraries),
        )
        return self.prepare(
            optimised.model,
            {name: view.array() for name, view in optimised.weights.items()},
        )

    def _optimize_in_session(
        self, model: ModelProto, weights: Mapping[str, TensorView], *, prepacks: bool
    ) -> OnnxRuntimeModel:
        """Prepare a model in a session that optimises by itself.

        Such a session copies weights in memory and maps those in files. It is faster
        than to optimise the model first, since nothing is written in between.
        """
        from epctx_onnxruntime.optimiser import check_files, hand_over, switch_off

        copy = type(model)()
        copy.CopyFrom(model)
        fit_versions(copy)
        options = self.session_options(copy, None, prepacks=prepacks)
        options.graph_optimization_level = (
            onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        )
        switch_off(options, copy, "")
        lent = hand_over(copy, weights, options)
        session = create_session(copy, options)
        del lent
        check_files(weights)
        return OnnxRuntimeModel(session, copy, None)

    @property
    def is_alone(self) -> bool:
        """True for the only model of a session, unless the host wants to save memory:
        onnxruntime runs it its own way.
        """
        return self.policy.pieces == 1 and self.policy.prefer_latency is not False

    def prepacks(self, weight_bytes: int) -> bool:
        """Return whether to prepack this many bytes of weights."""
        preferred = self.policy.prefer_latency
        return weight_bytes <= PREPACK_LIMIT if preferred is None else preferred

    def has_kernels(self, model: ModelProto) -> bool:
        """Return whether all operators of a model without detached weights have kernels
        for its types.
        """
        options = quiet_options()
        self._register_libraries(options)
        options.graph_optimization_level = (
            onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        )
        fit_versions(model)
        try:
            create_session(model, options)
        except NotImplementedByProvider:
            return False
        return True

    def can_pass(self, elem_type: int | None) -> bool:
        """Return whether values of a type can be inputs and outputs; True for None,
        another type than a tensor.
        """
        return elem_type not in _NOT_PASSED

    def session_options(
        self, model: ModelProto, heavy: bool | None, *, prepacks: bool
    ) -> onnxruntime.SessionOptions:
        """Return the options of a session that runs a model without optimising it."""
        policy = self.policy
        options = make_options()
        options.log_severity_level = FATAL_ONLY
        self._register_libraries(options)
        # onnxruntime's optimisers read weights through files only, never through
        # `add_initializer`.
        options.graph_optimization_level = (
            onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        )
        options.intra_op_num_threads = self._count_threads(model, heavy)
        if options.intra_op_num_threads == 1:
            options.inter_op_num_threads = 1
        elif policy.pieces > 1:
            # Several spinning pools compete for the cores.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if not prepacks:
            options.add_session_config_entry("session.disable_prepacking", "1")
        return options

    def _count_threads(self, model: ModelProto, heavy: bool | None) -> int:
        """Return the number of threads; 0 for one per core."""
        policy = self.policy
        if policy.intra_op_num_threads or (policy.pieces == 1 and heavy is None):
            return policy.intra_op_num_threads
        if heavy is None:
            from epctx_onnxruntime.rules import fills_threads

            heavy = fills_threads(model)
        return 0 if heavy else 1

    def optimize_model(  # type: ignore[override]
        self,
        model: ModelProto,
        weights: Mapping[str, TensorView],
        level: GraphOptimizationLevel,
        *,
        contrib: bool = False,
    ) -> OptimizedModel:
        """Return an equivalent model that is faster; see
        `BaseEngine.optimize_model`.
        """
        from epctx_onnxruntime.optimiser import Allowed, optimize

        return optimize(
            model,
            weights,
            level,
            Allowed(contrib=contrib, libraries=self.policy.custom_ops_libraries),
        )

    @classmethod
    def has_operator(cls, domain: str, op_type: str, version: int) -> bool:
        """Return whether onnxruntime has a schema; see `BaseEngine.has_operator`."""
        from epctx_onnxruntime.contrib_types import has_schema

        return has_schema(domain, op_type, version)

    def resolve_types(self, inferred: ModelProto) -> None:  # type: ignore[override]
        """Declare values of custom operators and those of `com.microsoft`; see
        `BaseEngine.resolve_types`.
        """
        from epctx_onnxruntime.contrib_types import resolve_types
        from epctx_onnxruntime.custom_operators import check_libraries

        resolve_types(
            inferred, check_libraries(tuple(self.policy.custom_ops_libraries))
        )

    def find_libraries(
        self, model: ModelProto, skipped: Container[tuple[str, str]]
    ) -> dict[str, str]:
        """Return the libraries of custom operators by domain; see
        `BaseEngine.find_libraries`.
        """
        from epctx_onnxruntime.custom_operators import find_libraries

        return find_libraries(model, skipped, self.policy.custom_ops_libraries)

    def _register_libraries(self, options: onnxruntime.SessionOptions) -> None:
        """Register the host's libraries of custom operators."""
        if self.policy.custom_ops_libraries:
            from epctx_onnxruntime.custom_operators import register_libraries

            register_libraries(options, self.policy.custom_ops_libraries)

    @classmethod
    def set_seed(cls, seed: int) -> bool:
        """Set onnxruntime's seed; see `BaseEngine.set_seed`."""
        onnxruntime.set_seed(seed)
        return True


class OnnxRuntimeModel:
    """Session with the memory that it reads, with positional inputs and outputs."""

    def __init__(
        self, session: onnxruntime.InferenceSession, model: ModelProto, owned: object
    ) -> None:
        self._inputs = [value.name for value in model.graph.input]
        self._outputs = [value.name for value in model.graph.output]
        values = (*session.get_inputs(), *session.get_outputs())
        for value in values:
            if value.type in _SUB_BYTE:
                raise NotImplementedByProvider(
                    f"onnxruntime cannot pass {value.name!r}, which is {value.type}, "
                    "to or from Python."
                )
        self._has_foreign_types = any(value.type in _FOREIGN for value in values)
        # Text and sequences have no memory that onnxruntime could share.
        self._binds = all(
            value.type.startswith("tensor(") and value.type != "tensor(string)"
            for value in values
        )
        # A tuple frees its last member first: the session before the memory that it
        # reads.
        self._state = (owned, session)
        # Not by the Python class, which checks names again: measured 2.4 against 3.4 us
        # per run.
        self._native = getattr(session, "_sess", session)
        self._call = self._native.run
        self._options = onnxruntime.RunOptions()
        self._bindings: dict[tuple[int, ...], _Binding] = {}

    def describe_outputs(
        self, declared: Sequence[ValueInfoProto]
    ) -> list[ValueInfoProto]:
        """Return declared outputs with the types that onnxruntime knows of them.

        Raises:
            NotImplementedByProvider: a constant is declared as another type, which
                onnxruntime does not look at.
        """
        _, session = self._state
        described = []
        for value, known in zip(declared, session.get_outputs(), strict=True):
            elem_type = _TENSORS.get(known.type)
            declared = value.type.tensor_type
            is_declared = value.HasField("type")
            if elem_type not in {None, declared.elem_type} and is_declared:
                raise NotImplementedByProvider(
                    f"{value.name!r}, which is {known.type}, is declared otherwise"
                )
            # One of unknown rank has no lengths, either: one that is declared with some
            # is declared wrongly.
            has_lengths = bool(known.shape or declared.shape.dim)
            if elem_type is None or (is_declared and not has_lengths):
                described.append(value)
                continue
            made = make_tensor_value_info(value.name, elem_type, known.shape)
            if not known.shape:
                made.type.tensor_type.ClearField("shape")
            described.append(made)
        return described

    def run(
        self,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray | None] | None = None,
    ) -> Sequence[np.ndarray]:
        """Run; inputs and results in the order of the model; see `RunnableModel.run`.

        Raises:
            InvalidArgument: an operator that would end the process has an input without
                rows.
        """
        current = current_options()
        options = (
            self._options if current is None else current.follow(onnxruntime.RunOptions)
        )
        try:
            results: list[np.ndarray]
            takes = outputs is not None and self._binds
            if takes or self._has_foreign_types:
                # onnxruntime's `run` takes no memory, and numpy's own element types
                # alone.
                memory = outputs if takes else None
                results = self._run_into(
                    inputs, memory or [None] * len(self._outputs), options
                )
            else:
                names = self._inputs
                # Small models have one input, for which zip would take most of the
                # time.
                feeds = (
                    {names[0]: inputs[0]}
                    if len(names) == 1 == len(inputs)
                    else dict(zip(names, inputs, strict=True))
                )
                results = self._call(self._outputs, feeds, options)
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            from epctx_onnxruntime.guards import GUARD

            _, guard, rest = str(error).partition(GUARD)
            if not guard:
                raise
            node = rest.partition("' Status")[0].rpartition(" ")[0]
            raise InvalidArgument(
                f"the input of {node} is empty, for which onnxruntime would end the "
                "process.",
                hint="Do not run the model without rows.",
            ) from error
        return results if outputs is None or takes else write_in_place(results, outputs)

    def _run_into(
        self,
        inputs: Sequence[np.ndarray],
        memory: Sequence[np.ndarray | None],
        options: onnxruntime.RunOptions,
    ) -> list[np.ndarray]:
        """Run, so that onnxruntime writes results into given arrays."""
        arrays = (*inputs, *memory)
        key = tuple([id(array) for array in arrays])
        # Taken out for the run: another thread that has the same arrays makes its own.
        bound = self._bindings.pop(key, None)
        if bound is None or not bound.is_of(arrays):
            bound = self._bind(inputs, memory)

        self._native.run_with_iobinding(bound.native, options)
        if all(target is not None for target in memory):
            self._keep(key, bound)
            return list(memory)  # type: ignore[arg-type]
        results = bound.native.get_outputs()
        return [
            _make_array(results[index]) if target is None else target
            for index, target in enumerate(memory)
        ]

    def _bind(
        self, inputs: Sequence[np.ndarray], memory: Sequence[np.ndarray | None]
    ) -> _Binding:
        binding = native.SessionIOBinding(self._native)
        for name, array in zip(self._inputs, inputs, strict=True):
            binding.bind_ortvalue_input(name, native_value(array))
        for name, target in zip(self._outputs, memory, strict=True):
            if target is None:
                binding.bind_output(name, CPU_MEMORY)
            else:
                binding.bind_ortvalue_output(name, native_value(target))
        arrays: list[Any] = [*inputs, *memory]
        return _Binding(
            binding,
            [(weakref.ref(a), a.shape, a.dtype) for a in arrays if a is not None],
        )

    def _keep(self, key: tuple[int, ...], bound: _Binding) -> None:
        """Keep a binding for the next run on the same arrays: a decoder's sets of
        memory take turns, and to bind them takes longer than to run a small network.
        """
        for oldest in [*self._bindings][: 1 - _KEPT_BINDINGS]:
            # Another thread may have been faster.
            self._bindings.pop(oldest, None)
        self._bindings[key] = bound


class _Binding(NamedTuple):
    """Native binding, with the arrays that it refers to the memory of.

    Attributes:
        native: onnxruntime's binding.
        arrays: weak references, so that a host's memory is freed when the host says,
            with the shapes and types that were bound. Numpy reallocates no array that
            has weak references.
    """

    native: Any
    arrays: Sequence[tuple[weakref.ref[np.ndarray], tuple[int, ...], np.dtype[Any]]]

    def is_of(self, arrays: Sequence[Any]) -> bool:
        """Return whether the binding is still one of these arrays."""
        for array, (reference, shape, dtype) in zip(arrays, self.arrays, strict=True):
            if (
                array.shape != shape
                or array.dtype is not dtype
                or reference() is not array
            ):
                return False
        return True


def place_weights(
    model: ModelProto, weights: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], ModelProto]:
    """Return the arrays of detached weights, and a model that contains those that
    cannot be used in place.
    """
    arrays: dict[str, np.ndarray] = {}
    copy = type(model)()
    copy.CopyFrom(model)
    fit_versions(copy)
    for tensor in copy.graph.initializer:
        if not is_detached(tensor):
            continue
        if tensor.name not in weights:
            raise InvalidGraph(f"there is no data for the weight {tensor.name!r}.")
        array = weights[tensor.name]
        if tensor_dtype_to_np_dtype(tensor.data_type) != array.dtype:
            raise InvalidGraph(
                f"the weight {tensor.name!r} is given as {array.dtype}, the model says "
                f"{TensorProto.DataType.Name(tensor.data_type)}."
            )
        if array.nbytes == 0 or tensor.data_type in _NOT_PASSED:
            # onnxruntime needs these packed, or has no memory to point to.
            from onnx import numpy_helper

            tensor.CopyFrom(
                numpy_helper.from_array(np.ascontiguousarray(array), tensor.name)
            )
        else:
            # Aligned: an external weight may begin anywhere in its file.
            arrays[tensor.name] = np.require(array, requirements=("C", "A"))
            # The location in the model (of an older payload) may not exist.
            del tensor.external_data[:]
            tensor.external_data.add(key="location", value=LOCATION)
    return arrays, copy


def _make_array(value: Any) -> np.ndarray:
    """Return a native value of onnxruntime as an array of its own."""
    dtype = tensor_dtype_to_np_dtype(value.element_type())
    if dtype.isbuiltin == 1:
        array: np.ndarray = value.numpy()
        return array
    shape = tuple(value.shape())
    size = math.prod(shape) * dtype.itemsize
    data = bytearray(ctypes.string_at(value.data_ptr(), size) if size else b"")
    return np.frombuffer(data, dtype).reshape(shape)


def create_session(
    model: ModelProto, options: onnxruntime.SessionOptions
) -> onnxruntime.InferenceSession:
    """Create a session.

    Raises:
        NotImplementedByProvider: onnxruntime refuses the model: it lacks an operator,
            type or version, or the model is invalid.
    """
    operators = keep_distinct_names(model.graph)
    if model.functions or not operators.isdisjoint(_GUARDED):
        from epctx_onnxruntime.guards import drop_empty_names, guard_recurrent

        drop_empty_names(model)
        guard_recurrent(model)
    try:
        # onnxruntime's fallback tries the same again and prints to stdout.
        content = model.SerializeToString()
        return onnxruntime.InferenceSession(
            content, options, providers=[CPU_EP], enable_fallback=0
        )
    except MemoryError:
        raise
    except Exception as error:
        # Onnxruntime's exception classes have no base of their own.
        text = " ".join(str(error).split())
        raise NotImplementedByProvider(
            f"onnxruntime refuses a part of the model: {text}"
        ) from error


def keep_distinct_names(main: GraphProto) -> set[str]:
    """Remove the names of a graph's nodes if two are equal, which ONNX allows and
    onnxruntime does not.

    Returns:
        The operators of the graphs.
    """
    operators: set[str] = set()
    for _, graph in all_graphs(main):
        operators.update([node.op_type for node in graph.node])
        names = [node.name for node in graph.node if node.name]
        if len(set(names)) < len(names):
            for node in graph.node:
                node.name = ""
    return operators
