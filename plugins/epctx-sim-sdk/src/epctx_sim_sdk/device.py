"""The simulated device: makes graphs runnable on the host's engine.

Equal graphs (structure and weights) share one prepared model, closed with its last
user. Knows no vendor and no file.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from epctx_core.errors import InvalidGraph
from epctx_core.plugin import CompiledPartition, Purpose
from epctx_core.plugin.protos import ModelProto, TensorProto, tensor_dtype_to_np_dtype
from epctx_sim_sdk.container import SMALL

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.plugin import Engine, PreparedModel, ProviderContext, TensorView
    from epctx_sim_sdk.compiler import SimGraph
    from epctx_sim_sdk.container import Container, GraphEntry

_log = logging.getLogger("epctx.sim")

_LIGHT_PRODUCTS = 16 << 20
"""Multiplications up to which a second thread costs more than it saves: a pool takes as
long to make.
"""

_BY_ROW = frozenset({"FusedGemm", "FusedMatMul", "Gemm", "MatMul"})
_UNKNOWN_WORK = frozenset(
    {
        "Conv", "ConvInteger", "ConvTranspose", "Einsum", "GRU", "If", "LSTM", "Loop",
        "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN", "Scan",
    }
)  # fmt: skip

Loader = Callable[[], tuple[ModelProto, Mapping[str, "np.ndarray"]]]


@dataclass(kw_only=True)
class _Shared:
    """A prepared model and how many use it."""

    prepared: PreparedModel
    users: int = 0


@dataclass(kw_only=True)
class Device:
    """Runs graphs for one EP instance.

    Args:
        engine: the host's engine.
    """

    engine: Engine
    _shared: dict[Hashable, _Shared] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self, container: Container, entry: GraphEntry) -> CompiledPartition:
        """Make a graph of an opened container runnable; its weights are used where they
        lie.

        Raises:
            InvalidGraph: the graph and its tables do not fit together.
        """
        boundary = (len(entry.inputs), len(entry.outputs))

        def read() -> tuple[ModelProto, Mapping[str, np.ndarray]]:
            arrays = container.arrays(entry)
            model = _parse(
                container.structure(entry), arrays, container.subject, entry.name
            )
            if (len(model.graph.input), len(model.graph.output)) != boundary:
                raise InvalidGraph(
                    f"{container.subject} is damaged: graph {entry.name!r} and the "
                    "tables have different boundaries."
                )
            _put_small_inline(model, arrays)
            return model, arrays

        used = [place for _, place in entry.weights]
        return self._use((container, boundary, entry.structure, *used), read)

    def compile(self, graph: SimGraph) -> CompiledPartition:
        """Make a compiled partition runnable without a container in between."""

        def read() -> tuple[ModelProto, Mapping[str, np.ndarray]]:
            arrays = {name: view.array() for name, view in graph.weights.items()}
            model = graph.model()
            _put_small_inline(model, arrays)
            return model, arrays

        key = (graph.structure, tuple(map(_identify, graph.weights.values())))
        return self._use(key, read)

    def _use(self, key: Hashable, read: Loader) -> CompiledPartition:
        with self._lock:
            shared = self._shared.get(key)
            if shared is None:
                model, arrays = read()
                # None has the engine judge, which goes by operators alone.
                heavy = False if _is_light(model) else None
                prepared = self.engine.prepare(model, arrays, heavy=heavy)
                shared = self._shared[key] = _Shared(prepared=prepared)
            shared.users += 1
        return CompiledPartition(
            run=shared.prepared.run, close=partial(self._release, key, shared)
        )

    def _release(self, key: Hashable, shared: _Shared) -> None:
        with self._lock:
            shared.users -= 1
            if shared.users or self._shared.pop(key, None) is None:
                return
        shared.prepared.close()

    def close(self) -> None:
        """Close what is still open."""
        with self._lock:
            remaining = list(self._shared.values())
            self._shared.clear()
        for shared in remaining:
            shared.prepared.close()


class GraphReader(Device):
    """Substitute for a device where there is none: reads graphs, equal ones once, and
    keeps nothing runnable.

    Args:
        engine: the host's engine.
        prepares: whether it is asked to take each graph, too, which is then let go of.
    """

    def __init__(self, engine: Engine, *, prepares: bool = False) -> None:
        super().__init__(engine=engine)
        self._prepares = prepares
        self._read: set[Hashable] = set()

    def _use(self, key: Hashable, read: Loader) -> CompiledPartition:
        if key not in self._read:
            model, arrays = read()
            if self._prepares:
                self.engine.prepare(model, arrays, heavy=False).close()
            self._read.add(key)
        return CompiledPartition(None)


def open_device(context: ProviderContext) -> Device:
    """Return the device of an EP instance; an export has one that reads graphs and runs
    none.
    """
    exports = context.purpose is Purpose.EXPORT
    return (GraphReader if exports else Device)(engine=context.engine)


def _identify(view: TensorView) -> Hashable:
    """Return a key that tells two weights apart without reading those in a file."""
    from epctx_sim_sdk.precision import HalfTensor  # loading needs none

    if isinstance(view, HalfTensor):
        return ("float16", _identify(view.base))
    return (view.extent or view.digest, view.elem_type, view.shape)


def _is_light(model: ModelProto) -> bool:
    """Return whether a graph's matrix products, each row of its inputs times each
    weight, are soon done.
    """
    graph = model.graph
    if any(
        node.op_type in _UNKNOWN_WORK or (node.domain and node.op_type not in _BY_ROW)
        for node in graph.node
    ):
        return False
    rows = 1
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if not all(dim.dim_value for dim in dims):
            return False
        rows_of_input = math.prod(dim.dim_value for dim in dims[:-1])
        rows = max(rows, rows_of_input)
    weights = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}
    products: int = sum(
        rows * sum(weights.get(name, rows) for name in node.input)
        for node in graph.node
        if node.op_type in _BY_ROW
    )
    return products <= _LIGHT_PRODUCTS


def _parse(
    content: bytes, arrays: Mapping[str, np.ndarray], subject: str, graph: str
) -> ModelProto:
    """Parse a structure and check that all its outside data are this container's
    weights.
    """
    try:
        model: ModelProto = ModelProto.FromString(content)
    except DecodeError as error:
        raise InvalidGraph(
            f"{subject} is damaged: its graph {graph!r} is no ONNX model."
        ) from error
    outside = {
        t.name: t
        for t in model.graph.initializer
        if t.data_location == TensorProto.EXTERNAL
    }
    fits = outside.keys() == arrays.keys() and all(
        tuple(tensor.dims) == arrays[name].shape
        and _is_of(tensor.data_type, arrays[name].dtype)
        for name, tensor in outside.items()
    )
    # Nothing lies outside without a location, so that most graphs need no search.
    hidden = content.count(b"location") != len(outside) and _has_hidden_outside_data(
        model, len(outside)
    )
    if not fits or hidden:
        raise InvalidGraph(
            f"{subject} is damaged: graph {graph!r} and the tables name different "
            "weights."
        )
    return model


def _is_of(elem_type: int, dtype: np.dtype[Any]) -> bool:
    try:
        return bool(tensor_dtype_to_np_dtype(elem_type) == dtype)
    except KeyError:  # no type of ONNX's
        return False


def _put_small_inline(model: ModelProto, arrays: Mapping[str, np.ndarray]) -> None:
    """Put small weights into a model: a compiler reads such values, as shapes or
    axes.
    """
    for tensor in model.graph.initializer:
        array = arrays.get(tensor.name)
        if array is not None and array.nbytes <= SMALL:
            tensor.CopyFrom(
                TensorProto(
                    name=tensor.name,
                    data_type=tensor.data_type,
                    dims=tensor.dims,
                    raw_data=array.tobytes(),
                )
            )


def _has_hidden_outside_data(model: ModelProto, initializers: int) -> bool:
    """Return whether tensors other than the main graph's initializers claim to lie in a
    file.
    """
    count = 0
    pending: list[object] = [model]
    while pending:
        message = pending.pop()
        if isinstance(message, TensorProto):
            count += message.data_location == TensorProto.EXTERNAL or bool(
                message.external_data
            )
            continue
        for descriptor, value in message.ListFields():  # type: ignore[attr-defined]
            if descriptor.message_type is not None:
                pending.extend(value if descriptor.is_repeated else [value])
    return count != initializers
