"""The simulated compiler: from a partition to the SDK's own graph.

Opens no device and reads no weight: large weights stay views until the graph is written or run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from epctx_core.errors import EPFail
from epctx_sim_sdk.canonical import canonicalise
from epctx_sim_sdk.device import SMALL
from epctx_sim_sdk.planning import activation_peak
from epctx_sim_sdk.precision import store_as_half

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epctx_core.plugin import Engine, Partition, TensorView, ValueInfo

MOST_OPTIMIZED = 256
"""Graphs of one EP instance that are optimised; a network in more pieces gains too little for the time."""

_WORTH_NODES = 8
_WORTH_OPERATORS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(kw_only=True, slots=True)
class SimGraph:
    """A compiled partition. Never changed; not frozen, because a network can have very many.

    Attributes:
        structure: a serialised ONNX model without names of its own and without large weights.
        weights: the views behind the structure's external initializers, by their names there.
        partition: what was compiled; kept, because the views are valid only as long as it lives.
    """

    structure: bytes
    weights: Mapping[str, TensorView]
    partition: Partition

    @property
    def name(self) -> str:
        """The graph's name in a container. Making it may read all weights, so only writing asks for it."""
        return self.partition.name

    @property
    def activation_bytes(self) -> int:
        """Device memory for activations, planned for the network's own operators."""
        return activation_peak(self.partition.model())

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """What flows in, in order."""
        return self.partition.inputs

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """What flows out, in order."""
        return self.partition.outputs

    def model(self) -> onnx.ModelProto:
        """Return the structure as a new ONNX model."""
        model: onnx.ModelProto = onnx.ModelProto.FromString(self.structure)
        return model


class SimCompiler:
    """Compiles the partitions of one EP instance; small equal ones are converted once.

    Args:
        ep: the EP type, for messages.
        fp16: store float32 weights as float16. Nothing is optimised then, which would undo it.
        engine: optimises graphs of some size for the host's CPU; None to keep all as they are.
        weightless: leave out what is the source's own. Nothing is optimised then, which would make
            other weights of them.
    """

    def __init__(
        self, ep: str, *, fp16: bool = False, engine: Engine | None = None, weightless: bool = False
    ) -> None:
        self._ep = ep
        self._fp16 = fp16
        self._weightless = weightless
        self._engine = None if fp16 or weightless else engine
        self._optimized = 0
        self._structures: dict[str, bytes] = {}

    def compile(self, partition: Partition) -> SimGraph:
        """Convert a partition; see `compile_partition`."""
        # With larger weights the digest would have to read them.
        weights = partition.weights
        small = not weights or all(weight.nbytes <= SMALL for weight in weights.values())
        known = self._structures.get(partition.digest) if small else None
        if known is not None:
            return SimGraph(structure=known, weights={}, partition=partition)
        engine = self._engine if self._optimized < MOST_OPTIMIZED and _is_worth_it(partition) else None
        self._optimized += engine is not None
        graph = compile_partition(
            partition, ep=self._ep, fp16=self._fp16, engine=engine, weightless=self._weightless
        )
        if small and not graph.weights:
            self._structures[partition.digest] = graph.structure
        return graph


def _is_worth_it(partition: Partition) -> bool:
    nodes = partition.nodes
    return len(nodes) > _WORTH_NODES or any(node.op_type in _WORTH_OPERATORS for node in nodes)


def compile_partition(
    partition: Partition,
    *,
    ep: str,
    fp16: bool = False,
    engine: Engine | None = None,
    weightless: bool = False,
) -> SimGraph:
    """Convert a partition to the SDK's graph.

    Args:
        partition: as the core gave it.
        ep: the EP type, for messages.
        fp16: store float32 weights as float16.
        engine: optimises the graph; None to keep it as it is.
        weightless: keep no value of the source's small weights in the structure either.

    Raises:
        EPFail: the partition holds something that the container cannot.
    """
    model = partition.model()
    _check_boundary(partition, model, ep)
    external = {
        tensor.name: partition.weights[tensor.name]
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    weights: Mapping[str, TensorView] = store_as_half(model, external) if fp16 else external
    optimized = engine.optimize(model, external) if engine is not None else None
    if optimized is not None:
        model, weights = optimized
    if weightless:
        weights = {**weights, **_detach_small(model, partition.weights)}
    names = canonicalise(model)
    stored = {names[old]: view for old, view in weights.items() if old in names}
    for view in stored.values():
        _check_weight(view, partition, ep)
    return SimGraph(
        structure=model.SerializeToString(deterministic=True),
        weights=dict(sorted(stored.items(), key=lambda item: int(item[0][1:]))),
        partition=partition,
    )


def _detach_small(model: onnx.ModelProto, own: Mapping[str, TensorView]) -> dict[str, TensorView]:
    """Take the values of the source's weights that are inline out of a model; return the weights by name."""
    detached: dict[str, TensorView] = {}
    for tensor in model.graph.initializer:
        view = own.get(tensor.name)
        if view is None or view.source_name is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        # Packed types, and tensors of nothing, stay where they are.
        if view.nbytes and math.prod(view.shape) * view.dtype.itemsize == view.nbytes:
            tensor.CopyFrom(
                onnx.TensorProto(
                    name=tensor.name,
                    data_type=tensor.data_type,
                    dims=tensor.dims,
                    data_location=onnx.TensorProto.EXTERNAL,
                )
            )
            detached[tensor.name] = view
    return detached


def _check_boundary(partition: Partition, model: onnx.ModelProto, ep: str) -> None:
    given = ([v.name for v in model.graph.input], [v.name for v in model.graph.output])
    declared = ([v.name for v in partition.inputs], [v.name for v in partition.outputs])
    if given != declared:
        raise EPFail(
            f"{ep} cannot compile partition {partition.name!r}: its model has inputs and outputs {given},"
            f" the partition {declared}.",
            ep=ep,
            node=partition.name,
        )


def _check_weight(view: TensorView, partition: Partition, ep: str) -> None:
    count = math.prod(view.shape)
    if count * view.dtype.itemsize != view.nbytes:
        raise EPFail(
            f"{ep} cannot compile partition {partition.name!r}: weight {view.name!r} has {view.nbytes} bytes"
            f" for {count} elements of {view.dtype}, and the container holds no packed types.",
            ep=ep,
            node=partition.name,
            hint="Leave nodes with weights of less than 8 bits a value to another EP.",
        )
