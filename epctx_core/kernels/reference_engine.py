"""The engine on `onnx.reference`: slow; what runs where onnxruntime is not installed, or lacks an operator.

It has nearly all of ONNX's operators and no others. Those that it is known to compute wrongly, or lacks though exporters
write them, are replaced (`reference_operators`). What it lacks it refuses; results are as exact as numpy's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from epctx_core.errors import InvalidGraph, NotImplementedByProvider
from epctx_core.graph.weights import is_detached
from epctx_core.kernels.engines import write_in_place

if TYPE_CHECKING:
    from onnx import ModelProto


class ReferenceEngine:
    """Prepares models on the reference implementation; implements `epctx_core.plugin.Engine`."""

    name = f"onnx.reference {onnx.__version__}"
    checks = False

    def prepare(
        self,
        model: ModelProto,
        weights: Mapping[str, np.ndarray] | None = None,
        *,
        heavy: bool | None = None,  # noqa: ARG002 - there is no thread pool to choose
    ) -> ReferenceModel:
        """Create an evaluator; weights are copied into its model, which it cannot do without."""
        own = type(model)()
        own.CopyFrom(model)
        for tensor in own.graph.initializer:
            if is_detached(tensor):
                if not weights or tensor.name not in weights:
                    raise InvalidGraph(f"no data was given for the weight {tensor.name!r}.")
                tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name], tensor.name))
        from epctx_core.kernels.reference_operators import replacements

        operators = replacements({opset.domain: opset.version for opset in own.opset_import})
        try:
            return ReferenceModel(ReferenceEvaluator(own, new_ops=operators), own, weights)
        except Exception as error:
            # The evaluator raises a different class for each way in which it lacks an operator.
            text = " ".join(str(error).split())
            raise NotImplementedByProvider(f"onnx.reference has no implementation: {text}") from error

    def has_kernels(self, model: ModelProto) -> bool:
        """Whether there is an implementation of all operators of a model without detached weights."""
        try:
            self.prepare(model)
        except NotImplementedByProvider:
            return False
        return True

    def can_pass(self, elem_type: int | None) -> bool:  # noqa: ARG002 - the signature is the protocol's
        """Whether tensors of a type come in and go out: all do."""
        return True


class ReferenceModel:
    """An evaluator with positional inputs and outputs."""

    def __init__(self, evaluator: ReferenceEvaluator, model: ModelProto, owned: object = None) -> None:
        self._owned = owned
        self._inputs = [value.name for value in model.graph.input]
        self._evaluator = evaluator

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Sequence[np.ndarray]:
        """Run; inputs and results in the order of the model."""
        feeds = dict(zip(self._inputs, inputs, strict=True))
        results = [_own(result, inputs) for result in self._evaluator.run(None, feeds)]
        return results if outputs is None else write_in_place(results, outputs)


def _own(result: Any, inputs: Sequence[np.ndarray]) -> Any:
    """Return a contiguous result that shares no memory with an input: Identity and Reshape give views."""
    if not isinstance(result, np.ndarray):
        return result if isinstance(result, (list, dict)) or result is None else np.asarray(result)
    if result.dtype.kind == "U":
        # Strings of all lengths, as onnxruntime gives them.
        return result.astype(object)
    if any(isinstance(i, np.ndarray) and np.may_share_memory(result, i) for i in inputs):
        return result.copy()
    return np.ascontiguousarray(result).reshape(result.shape)
