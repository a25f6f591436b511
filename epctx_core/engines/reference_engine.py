"""The engine on `onnx.reference`: slow; what runs where onnxruntime is not installed, or lacks an operator.

It has nearly all of ONNX's operators and no others. Those that it lacks in some version or computes wrongly without a word
(onnx 1.23) are written anew here: found by onnx's own node tests, and by what scikit-learn's and onnxscript's exporters
write. What it lacks it refuses; results are as exact as numpy's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TypeProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml import op_svm_classifier
from onnx.reference.ops.op_scatter_elements import scatter_elements

from epctx_core.errors import InvalidGraph, NotImplementedByProvider
from epctx_core.graph.weights import is_detached
from epctx_core.plugin import BaseEngine, write_in_place

_ML = "ai.onnx.ml"


class ReferenceEngine(BaseEngine):
    """Prepares models on the reference implementation."""

    name = f"onnx.reference {onnx.__version__}"

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
        opsets = {opset.domain or "ai.onnx": opset.version for opset in own.opset_import}
        version = opsets.get("ai.onnx", 0)
        operators = [kind for kind, below in _REPLACED.items() if below is None or version < below]
        try:
            return ReferenceModel(ReferenceEvaluator(own, new_ops=operators), own, weights)
        except Exception as error:
            # The evaluator raises a different class for each way in which it lacks an operator.
            text = " ".join(str(error).split())
            raise NotImplementedByProvider(f"onnx.reference has no implementation: {text}") from error


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


class GatherElements(OpRun):
    """The evaluator's own fails above 64 elements along the axis."""

    op_domain = ""

    def _run(self, data: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        axis %= data.ndim
        # Along the other axes the indices may be shorter than the data.
        window = tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(indices.shape))
        return (np.take_along_axis(data[window], indices, axis),)


class Flatten(OpRun):
    """The operator for tensors without elements, too, whose number of columns numpy cannot find."""

    op_domain = ""

    def _run(self, x: np.ndarray, *, axis: int) -> tuple[np.ndarray]:
        return (x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])),)


class Scatter(OpRun):
    """ScatterElements under its name before version 11, which the evaluator does not have."""

    op_domain = ""

    def _run(
        self, data: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int = 0
    ) -> tuple[np.ndarray]:
        result: np.ndarray = scatter_elements(data, indices, updates, axis=axis)  # type: ignore[no-untyped-call]
        return (result,)


class DequantizeLinear(OpRun):
    """Versions 10 and 13, which the evaluator refuses: by a scale and zero point for all or for each slice."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        zero_point: np.ndarray | None = None,
        axis: int = 1,
        **_newer: Any,
    ) -> tuple[np.ndarray]:
        each = [-1 if place == axis % x.ndim else 1 for place in range(x.ndim)] if scale.size > 1 else []
        centred = x.astype(np.float32)
        if zero_point is not None:
            centred -= zero_point.astype(np.float32).reshape(each)
        return ((centred * scale.reshape(each)).astype(scale.dtype),)


class BatchNormalization(OpRun):
    """Versions below 14, of which the evaluator takes batches' own means where it should take the given ones."""

    op_domain = ""

    def __init__(self, onnx_node: Any, run_params: dict[str, Any]) -> None:
        super().__init__(onnx_node, run_params)
        trains = run_params["opsets"][""] < 7 and not getattr(self, "is_test", 0)  # noqa: PLR2004 - there is no flag from 7 on
        if trains or len([name for name in onnx_node.output if name]) > 1:
            raise NotImplementedError("BatchNormalization below version 14 is there for inference only.")

    def _run(  # noqa: PLR0913 - as onnx.reference calls an operator
        self,
        x: np.ndarray,
        scale: np.ndarray,
        bias: np.ndarray,
        mean: np.ndarray,
        variance: np.ndarray,
        epsilon: float = 1e-5,
        spatial: int | None = 1,
        **_other: Any,
    ) -> tuple[np.ndarray]:
        each = (-1,) + (1,) * (x.ndim - 2) if spatial != 0 else scale.shape
        given = [array.reshape(each) for array in (scale, bias, mean, variance)]
        result = given[0] * (x - given[2]) / np.sqrt(given[3] + epsilon) + given[1]
        return (result.astype(x.dtype),)


class _BodyRunner(OpRun):
    """An operator with a body; it runs that over its own inputs, which hide what values outside are called."""

    op_domain = ""
    body: Any
    _run_body: Any  # the evaluator makes this method for each attribute that is a graph

    def need_context(self) -> bool:
        """Ask for the values outside."""
        return True

    def run_body(self, own: Mapping[str, Any], given: Mapping[str, Any]) -> list[Any]:
        """Return the body's results."""
        results: list[Any] = self._run_body(
            {**(given.get("context") or {}), **own},
            attributes=given.get("attributes"),
            bindings=given.get("bindings"),
        )
        return results


class Loop(_BodyRunner):
    """The evaluator's own lets values outside hide carried ones of the same name, which onnxscript writes.

    It also joins results of iterations along their first dimension, and takes a condition left out as false.
    """

    def _run(
        self, most: np.ndarray | None, condition: np.ndarray | None, *carried: Any, **given: Any
    ) -> tuple[Any, ...]:
        names = self.body.input_names
        values = list(carried)
        scans: list[list[Any]] = [[] for _ in self.body.output_names[1 + len(carried) :]]
        going, number = condition is None or bool(condition), 0
        while going and (most is None or number < most):
            own = dict(zip(names, [np.array(number, np.int64), np.array(True), *values], strict=True))
            last, *results = self.run_body(own, given)
            values, parts = results[: len(values)], results[len(values) :]
            for scan, part in zip(scans, parts, strict=True):
                scan.append(part)
            going, number = bool(last), number + 1
        types = self.body.output_types[1 + len(carried) :]
        return (*values, *(_stacked(scan, kind) for scan, kind in zip(scans, types, strict=True)))


class Scan(_BodyRunner):
    """The evaluator's own knows neither axes nor directions, nor inputs without elements. Version 8 is not there."""

    num_scan_inputs: int
    scan_input_axes: Sequence[int] | None
    scan_input_directions: Sequence[int] | None
    scan_output_axes: Sequence[int] | None
    scan_output_directions: Sequence[int] | None

    def __init__(self, onnx_node: Any, run_params: dict[str, Any]) -> None:
        OpRun.__init__(self, onnx_node, run_params)
        if run_params["opsets"][""] < 9:  # noqa: PLR2004 - the version that lost the batch dimension
            raise NotImplementedError("Scan of version 8 is not there.")

    def _run(self, *args: Any, **given: Any) -> tuple[Any, ...]:
        count = len(args) - self.num_scan_inputs
        values, sources = list(args[:count]), args[count:]
        inward = _scan_settings(self.scan_input_axes, self.scan_input_directions, len(sources))
        slices = [
            np.moveaxis(source, axis, 0)[:: -1 if backwards else 1]
            for source, (axis, backwards) in zip(sources, inward, strict=True)
        ]
        scans: list[list[np.ndarray]] = [[] for _ in self.body.output_names[count:]]
        for number in range(len(slices[0])):
            own = dict(zip(self.body.input_names, [*values, *(s[number] for s in slices)], strict=True))
            results = self.run_body(own, given)
            values = results[:count]
            for scan, part in zip(scans, results[count:], strict=True):
                scan.append(part)
        outward = _scan_settings(self.scan_output_axes, self.scan_output_directions, len(scans))
        stacked = [
            _stacked(scan[::-1] if backwards else scan, kind, axis)
            for scan, kind, (axis, backwards) in zip(
                scans, self.body.output_types[count:], outward, strict=True
            )
        ]
        return (*values, *stacked)


def _scan_settings(
    axes: Sequence[int] | None, directions: Sequence[int] | None, count: int
) -> Iterator[tuple[int, int]]:
    return zip(axes or [0] * count, directions or [0] * count, strict=True)


def _stacked(parts: Sequence[np.ndarray], kind: TypeProto, axis: int = 0) -> np.ndarray:
    """Return the results of all iterations along a new dimension; without any, none of the declared type."""
    if parts:
        return np.stack(parts, axis)
    shape = [d.dim_value for d in kind.tensor_type.shape.dim]
    return np.empty(
        [*shape[:axis], 0, *shape[axis:]], helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
    )


class Optional(OpRun):
    """The evaluator's own puts a value into a list, which the operators that take it out do not expect."""

    op_domain = ""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:  # noqa: A002, ARG002 - ONNX's attribute
        return (x,)


class ZipMap(OpRun):
    """One mapping from classes to numbers a row; the evaluator has none."""

    op_domain = _ML

    def _run(
        self,
        x: np.ndarray,
        classlabels_int64s: Sequence[int] | None = None,
        classlabels_strings: Sequence[str] | None = None,
    ) -> tuple[list[dict[Any, float]]]:
        labels = classlabels_strings or classlabels_int64s or ()
        return ([dict(zip(labels, row, strict=True)) for row in np.atleast_2d(x).tolist()],)


class DictVectorizer(OpRun):
    """The evaluator's own fails for a key that the vocabulary lacks, and computes in double."""

    op_domain = _ML

    def _run(
        self,
        x: Mapping[Any, Any],
        int64_vocabulary: Sequence[int] | None = None,
        string_vocabulary: Sequence[str] | None = None,
    ) -> tuple[np.ndarray]:
        values = [x.get(key) for key in string_vocabulary or int64_vocabulary or ()]
        first = next(iter(x.values()), 0.0)
        whole = isinstance(first, int | np.integer)
        dtype: type = object if isinstance(first, str) else np.int64 if whole else np.float32
        made = [type(first)() if value is None else value for value in values]
        return (np.array([made], dtype),)


class CategoryMapper(OpRun):
    """Strings to numbers or back by a table; the evaluator has none."""

    op_domain = _ML

    def _run(
        self,
        x: np.ndarray,
        cats_int64s: Sequence[int] = (),
        cats_strings: Sequence[str] = (),
        default_int64: int = -1,
        default_string: str = "_Unused",
    ) -> tuple[np.ndarray]:
        if x.dtype.kind in "iu":
            names = dict(zip(cats_int64s, cats_strings, strict=True))
            found: list[Any] = [names.get(number, default_string) for number in x.ravel().tolist()]
            return (np.array(found, object).reshape(x.shape),)
        numbers = dict(zip(cats_strings, cats_int64s, strict=True))
        found = [numbers.get(name, default_int64) for name in x.ravel().tolist()]
        return (np.array(found, np.int64).reshape(x.shape),)


class CastMap(OpRun):
    """The values of a mapping in the order of its keys; the evaluator has none."""

    op_domain = _ML

    def _run(
        self, x: Mapping[int, Any], cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
    ) -> tuple[np.ndarray]:
        kinds: dict[str, type] = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}
        empty: Any = "" if cast_to == "TO_STRING" else 0
        keys = range(max_map) if map_form == "SPARSE" else sorted(x)
        values = [x.get(key, empty) for key in keys]
        made = [str(value) for value in values] if cast_to == "TO_STRING" else [float(v) for v in values]
        return (np.array([made]).astype(kinds[cast_to]),)


class FeatureVectorizer(OpRun):
    """The evaluator's own takes a vector for a column, refuses more than two dimensions, and gives integers."""

    op_domain = _ML

    def _run(self, *inputs: np.ndarray, inputdimensions: Sequence[int] = ()) -> tuple[np.ndarray]:
        columns = []
        for values, width in zip(inputs, inputdimensions, strict=True):
            rows = 1 if values.ndim == 1 else values.shape[0]
            found = values.reshape(rows, math.prod(values.shape[values.ndim > 1 :]))[:, :width]
            columns.append(np.pad(found, ((0, 0), (0, width - found.shape[1]))))
        return (np.concatenate(columns, axis=1).astype(np.float32),)


class SVMClassifier(op_svm_classifier.SVMClassifier):
    """The evaluator's own gives wrong probabilities for three and more classes."""

    def _probabilities(self, scores: np.ndarray, class_count_: int) -> np.ndarray:
        """Couple the classes' pairwise probabilities: the least squares of r[j, i] p[i] - r[i, j] p[j], p adding up to 1."""
        pairwise = np.full((class_count_, class_count_), 0.0)
        pairs = zip(*np.triu_indices(class_count_, 1), strict=True)
        attributes: Any = self._svm.atts
        for (i, j), score, a, b in zip(pairs, scores, attributes.prob_a, attributes.prob_b, strict=False):
            # The logistic function in a form that does not overflow.
            chance = 0.5 - 0.5 * np.tanh(0.5 * (float(score) * a + b))
            pairwise[i, j] = np.clip(chance, 1e-7, 1 - 1e-7)
            pairwise[j, i] = 1 - pairwise[i, j]
        system = np.zeros((class_count_ + 1, class_count_ + 1))
        system[:-1, :-1] = -pairwise * pairwise.T + np.diag((pairwise**2).sum(axis=0))
        system[-1, :-1] = system[:-1, -1] = 1
        solved = np.linalg.solve(system, np.eye(class_count_ + 1)[-1])
        return np.asarray(solved[:-1], scores.dtype)


_REPLACED: dict[type[OpRun], int | None] = {
    Flatten: None,
    GatherElements: None,
    Scatter: 11,
    DequantizeLinear: 19,
    BatchNormalization: 14,
    Loop: None,
    Scan: None,
    Optional: None,
    ZipMap: None,
    DictVectorizer: None,
    CategoryMapper: None,
    CastMap: None,
    FeatureVectorizer: None,
    SVMClassifier: None,
}
"""Each class, and the version of the default domain from which the evaluator's own does."""
