"""What an EP compiles and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import os

    import numpy as np
    import onnx

    from epctx_core.plugin.views import NodeView, TensorView, ValueInfo

RunFunction: TypeAlias = "Callable[[Sequence[np.ndarray], Sequence[np.ndarray] | None], Sequence[np.ndarray]]"


class Partition(Protocol):
    """A convex piece of the model that one EP compiles. Nothing may be derived from `name`."""

    @property
    def name(self) -> str:
        """Names the EPContext node, its partition_name and the graph inside the payload."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what it computes: equal for equal pieces of any model, whatever the names.

        Operators, versions, attributes, wiring, boundary types and weights; asking reads all weights.
        """

    @property
    def token(self) -> object:
        """What came with its `ComputeCapability`, the object itself; None unless that was `exact`."""

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """What flows in, in the order in which `run` gets it; weights are not among them."""

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """What flows out, in the order in which `run` gives it."""

    @property
    def nodes(self) -> Sequence[NodeView]:
        """The nodes in topological order."""

    @property
    def weights(self) -> Mapping[str, TensorView]:
        """The initializers that the nodes read, by name; also those kept as inputs.

        Each says where it comes from: `source_name`, `digest` and `extent`.
        """

    def value(self, name: str) -> ValueInfo:
        """Return any value's type, inner ones included; `UNKNOWN_TYPE` where inference found none."""

    def model(self, *, inline_weights: bool = False) -> onnx.ModelProto:
        """Return a model of this partition, the EP's own copy.

        Args:
            inline_weights: True for a model complete in itself, which costs memory for every weight.
                By default weights above 1 KiB stand in it as external tensors without data
                (`data_location` EXTERNAL): take those from `weights`.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file and its weights to `<stem>.weights` beside it, in bounded memory.

        For compilers that take files: `path` lies in `context.scratch()`.
        """


@dataclass(frozen=True)
class CompiledPartition:
    """A partition (or a loaded EPContext node), ready to run.

    Args:
        run: `run(inputs, outputs=None)` with C-contiguous numpy arrays in the order of the
            boundary. Inputs are read-only; results never alias inputs; given outputs are written in
            place and returned. The core checks what it gives. Stateless and callable from many threads.
            None only under purpose EXPORT.
        close: called once when the session ends, after the last run. Several partitions may have one, such as
            `runtime.close` of a runtime object that all of them run on: it is called once, after the others are closed.
    """

    run: RunFunction | None
    _: KW_ONLY
    close: Callable[[], None] | None = None
