"""Engine on `onnx.reference`: slow; used if onnxruntime is not installed or lacks an
operator.

It has nearly all of ONNX's operators and no others. Operators that the evaluator of
onnx 1.23 lacks in some version or computes wrongly are corrected here; onnx's own node
tests, models of scikit-learn's and onnxscript's exporters and networks of programs
showed them. Results are as exact as numpy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml import op_svm_classifier
from onnx.reference.ops.op_scatter_elements import scatter_elements

from epctx_core.engines.control_flow import RunSubgraph, run_loop, run_scan
from epctx_core.errors import InvalidGraph, NotImplementedByProvider, quote
from epctx_core.graph.type_table import make_tensor_type
from epctx_core.graph.walks import (
    DEFAULT_DOMAINS,
    EXECUTABLE,
    copy_message,
    read_opset_imports,
    walk_model_nodes,
)
from epctx_core.graph.weights import is_detached
from epctx_core.plugin import BaseEngine, write_in_place

if TYPE_CHECKING:
    from epctx_core.engines.control_flow import Arrays, Memory

_ML = "ai.onnx.ml"
_ALWAYS = 1 << 31
_CORRECTIONS: list[tuple[Any, int]] = []
"""Operators in place of the evaluator's own, each with the version of the default
domain from which that one does.
"""


class ReferenceEngine(BaseEngine):
    """Prepares models on the reference implementation."""

    name = f"onnx.reference {onnx.__version__}"
    allocates = True

    def prepare(
        self,
        model: ModelProto,
        weights: Mapping[str, np.ndarray] | None = None,
        *,
        heavy: bool | None = None,  # noqa: ARG002 - there is no thread pool to choose
    ) -> ReferenceModel:
        """Create an evaluator; it needs the weights, which are copied into its
        model.
        """
        copy = copy_message(model)
        for tensor in copy.graph.initializer:
            if is_detached(tensor):
                if not weights or tensor.name not in weights:
                    raise InvalidGraph(
                        f"there is no data for the weight {tensor.name!r}."
                    )
                tensor.CopyFrom(
                    onnx.numpy_helper.from_array(weights[tensor.name], tensor.name)
                )

        version = read_opset_imports(copy).get("", 0)
        operators = [operator for operator, below in _CORRECTIONS if version < below]
        try:
            _refuse_missing(copy, version)
            return ReferenceModel(ReferenceEvaluator(copy, new_ops=operators), copy)
        except Exception as error:
            # The evaluator raises different classes for an operator that it lacks.
            raise NotImplementedByProvider(
                f"onnx.reference has no implementation: {quote(error)}"
            ) from error


class ReferenceModel:
    """An evaluator with positional inputs and outputs."""

    def __init__(self, evaluator: ReferenceEvaluator, model: ModelProto) -> None:
        self._inputs = [value.name for value in model.graph.input]
        self._evaluator = evaluator

    def run(self, inputs: Arrays, outputs: Memory | None = None) -> Arrays:
        """Run; inputs and results in the order of the model."""
        feeds = dict(zip(self._inputs, inputs, strict=True))
        results = [
            _copy_if_shared(result, inputs)
            for result in self._evaluator.run(None, feeds)
        ]
        return results if outputs is None else write_in_place(results, outputs)


def _copy_if_shared(result: Any, inputs: Arrays) -> Any:
    """Return a contiguous result that shares no memory with an input: Identity and
    Reshape give views.
    """
    if not isinstance(result, np.ndarray):
        return (
            result
            if isinstance(result, (list, dict)) or result is None
            else np.asarray(result)
        )
    if result.dtype.kind == "U":
        # Strings of all lengths, as onnxruntime gives them.
        return result.astype(object)
    if any(
        isinstance(i, np.ndarray) and np.may_share_memory(result, i) for i in inputs
    ):
        return result.copy()
    return np.ascontiguousarray(result).reshape(result.shape)


def _refuse_missing(model: ModelProto, version: int) -> None:
    """Raise NotImplementedError for versions that the evaluator computes wrongly and
    nothing here corrects.
    """
    for node in walk_model_nodes(model):
        is_one = node.op_type == "BatchNormalization" and node.domain in DEFAULT_DOMAINS
        if is_one and version < 14:  # noqa: PLR2004
            tests = version >= 7 or any(  # noqa: PLR2004 - there is no flag from 7 on
                a.name == "is_test" and a.i for a in node.attribute
            )
            if not tests or len([name for name in node.output if name]) > 1:
                raise NotImplementedError(
                    "BatchNormalization below version 14 is there for inference only."
                )


def _correct(
    op_type: str,
    domain: str = "",
    *,
    below: int = _ALWAYS,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that computes an operator; it is called with the inputs and,
    by name, the attributes.

    Args:
        op_type, domain: the operator.
        below: the version of the default domain from which the evaluator's own is
            right.
    """

    def correct(function: Callable[..., Any]) -> Callable[..., Any]:
        members = {"op_domain": domain, "_run": staticmethod(function)}
        if op_type in EXECUTABLE:
            members["need_context"] = lambda _: True
        _CORRECTIONS.append((type(op_type, (OpRun,), members), below))
        return function

    return correct


@_correct("GatherElements")
def _gather_elements(
    data: np.ndarray, indices: np.ndarray, axis: int = 0
) -> tuple[np.ndarray]:
    """The evaluator's own fails above 64 elements along the axis."""
    # Along the other axes the indices may be shorter than the data.
    window = tuple(
        slice(None) if i == axis % data.ndim else slice(n)
        for i, n in enumerate(indices.shape)
    )
    return (np.take_along_axis(data[window], indices, axis),)


@_correct("Flatten")
def _flatten(x: np.ndarray, *, axis: int) -> tuple[np.ndarray]:
    """The operator for tensors without elements, too, whose number of columns numpy
    cannot find.
    """
    return (x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])),)


@_correct("GlobalMaxPool")
def _global_max_pool(x: np.ndarray) -> tuple[np.ndarray]:
    """The evaluator's own is wrong for any but two dimensions in space."""
    return (x.max(tuple(range(2, x.ndim)), keepdims=True),)


@_correct("Scatter", below=11)
def _scatter(
    data: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int = 0
) -> tuple[np.ndarray]:
    """ScatterElements under its name before version 11, which the evaluator does not
    have.
    """
    return (scatter_elements(data, indices, updates, axis=axis),)  # type: ignore[no-untyped-call]


@_correct("DequantizeLinear", below=19)
def _dequantize_linear(
    x: np.ndarray,
    scale: np.ndarray,
    zero_point: np.ndarray | None = None,
    axis: int = 1,
    **_newer: Any,
) -> tuple[np.ndarray]:
    """Versions 10 and 13, which the evaluator refuses: by a scale and zero point for
    all or for each slice.
    """
    each = (
        [-1 if index == axis % x.ndim else 1 for index in range(x.ndim)]
        if scale.size > 1
        else []
    )
    centred = x.astype(np.float32)
    if zero_point is not None:
        centred -= zero_point.astype(np.float32).reshape(each)
    return ((centred * scale.reshape(each)).astype(scale.dtype),)


@_correct("BatchNormalization", below=14)
def _batch_normalization(
    x: np.ndarray,
    *statistics: np.ndarray,
    epsilon: float = 1e-5,
    spatial: int | None = 1,
    **_other: Any,
) -> tuple[np.ndarray]:
    """Versions below 14, of which the evaluator takes batches' own means where it
    should take the given ones.
    """
    each = (-1,) + (1,) * (x.ndim - 2) if spatial != 0 else statistics[0].shape
    scale, bias, mean, variance = [array.reshape(each) for array in statistics]
    return ((scale * (x - mean) / np.sqrt(variance + epsilon) + bias).astype(x.dtype),)


def _make_run(
    body: Any, *, context: Mapping[str, Any], attributes: Any = None, **_other: Any
) -> RunSubgraph:
    """Return a function that runs an operator's subgraph, whose inputs hide values
    outside of the same names.
    """

    def run(inputs: Sequence[Any]) -> list[Any]:
        values = {**context, **dict(zip(body.input_names, inputs, strict=True))}
        return list(body.run(None, values, attributes=attributes))

    return run


@_correct("Loop")
def _loop(*inputs: Any, body: Any, **scope: Any) -> tuple[Any, ...]:
    """The evaluator's own lets values outside hide carried ones of the same name, which
    onnxscript writes.

    It also joins results of iterations along their first dimension, and takes a
    condition left out as false.
    """
    types = [
        [make_tensor_type(each) for each in side]
        for side in (body.input_types, body.output_types)
    ]
    return tuple(run_loop(_make_run(body, **scope), inputs, *types))


@_correct("Scan", below=9)  # of two, the first one is used
def _scan_batch(
    lengths: Any, *inputs: Any, directions: Any = None, **given: Any
) -> tuple[Any, ...]:
    """Version 8, which the evaluator lacks: each row of a batch by itself, with zeros
    after its own length.
    """
    given["scan_input_directions"], results = directions, []
    count = len(inputs) - given["num_scan_inputs"]
    longest = inputs[-1].shape[1]
    for row, length in enumerate(
        [longest] * len(inputs[-1]) if lengths is None else lengths
    ):
        states = _scan(
            *(
                x[row, ...] if i < count else x[row, :length]
                for i, x in enumerate(inputs)
            ),
            **given,
        )
        steps = [
            np.pad(y, [(0, longest - len(y)), *[(0, 0)] * (y.ndim - 1)])
            for y in states[count:]
        ]
        results.append([*states[:count], *steps])

    return tuple(map(np.stack, zip(*results, strict=True)))


@_correct("Scan")
def _scan(*inputs: Any, body: Any, **given: Any) -> tuple[Any, ...]:
    """The evaluator's own knows neither axes nor directions, nor inputs without
    elements.
    """
    types = [make_tensor_type(each) for each in body.output_types]
    return tuple(run_scan(_make_run(body, **given), inputs, given, types))


@_correct("Optional")
def _optional(x: Any = None, **_type: Any) -> tuple[Any]:
    """The evaluator's own puts a value into a list, which the operators that take it
    out do not expect.
    """
    return (x,)


@_correct("ZipMap", _ML)
def _zip_map(
    x: np.ndarray,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
) -> tuple[list[dict[Any, float]]]:
    """One mapping from classes to numbers for each row; the evaluator lacks it."""
    labels = classlabels_strings or classlabels_int64s or ()
    return ([dict(zip(labels, row, strict=True)) for row in np.atleast_2d(x).tolist()],)


@_correct("DictVectorizer", _ML)
def _dict_vectorizer(
    x: Mapping[Any, Any],
    int64_vocabulary: Sequence[int] | None = None,
    string_vocabulary: Sequence[str] | None = None,
) -> tuple[np.ndarray]:
    """The evaluator's own fails for a key that the vocabulary lacks, and computes in
    double.
    """
    first = next(iter(x.values()), 0.0)
    values = [
        x.get(key, type(first)()) for key in string_vocabulary or int64_vocabulary or ()
    ]
    whole = isinstance(first, int | np.integer)
    return (
        np.array(
            [values],
            object if isinstance(first, str) else np.int64 if whole else np.float32,
        ),
    )


@_correct("CategoryMapper", _ML)
def _category_mapper(
    x: np.ndarray,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> tuple[np.ndarray]:
    """Strings to numbers or back by a table; the evaluator lacks it."""
    pairs: list[Any] = [
        (cats_strings, default_string, object),
        (cats_int64s, default_int64, np.int64),
    ]
    (results, default, dtype), (keys, *_) = (
        pairs if x.dtype.kind in "iu" else reversed(pairs)
    )
    table = dict(zip(keys, results, strict=True))
    return (
        np.array(
            [table.get(key, default) for key in x.ravel().tolist()], dtype
        ).reshape(x.shape),
    )


@_correct("CastMap", _ML)
def _cast_map(
    x: Mapping[int, Any],
    cast_to: str = "TO_FLOAT",
    map_form: str = "DENSE",
    max_map: int = 1,
) -> tuple[np.ndarray]:
    """Values of a mapping in the order of its keys; the evaluator lacks it."""
    types: dict[str, type] = {
        "TO_FLOAT": np.float32,
        "TO_INT64": np.int64,
        "TO_STRING": object,
    }
    make: type = str if cast_to == "TO_STRING" else float
    keys = range(max_map) if map_form == "SPARSE" else sorted(x)
    return (
        np.array([[make(x.get(key, make())) for key in keys]]).astype(types[cast_to]),
    )


@_correct("FeatureVectorizer", _ML)
def _feature_vectorizer(
    *inputs: np.ndarray, inputdimensions: Sequence[int] = ()
) -> tuple[np.ndarray]:
    """The evaluator's own takes a vector for a column, refuses more than two
    dimensions, and gives integers.
    """
    columns = []
    for values, width in zip(inputs, inputdimensions, strict=True):
        rows = 1 if values.ndim == 1 else values.shape[0]
        features = values.reshape(rows, math.prod(values.shape[values.ndim > 1 :]))[
            :, :width
        ]
        columns.append(np.pad(features, ((0, 0), (0, width - features.shape[1]))))
    return (np.concatenate(columns, axis=1).astype(np.float32),)


def _couple_probabilities(
    classifier: Any, scores: np.ndarray, class_count_: int
) -> np.ndarray:
    """Couple the classes' pairwise probabilities: the least squares of r[j, i] p[i] -
    r[i, j] p[j], p adding up to 1.

    The evaluator's own are wrong for three and more classes.
    """
    attributes = classifier._svm.atts  # noqa: SLF001 - the evaluator's own
    distances = np.asarray(scores, float) * attributes.prob_a + attributes.prob_b
    # The logistic function in a form that does not overflow.
    chances = np.clip(0.5 - 0.5 * np.tanh(0.5 * distances), 1e-7, 1 - 1e-7)
    pairwise = np.zeros((class_count_, class_count_))
    first, second = np.triu_indices(class_count_, 1)
    pairwise[first, second] = chances
    pairwise[second, first] = 1 - chances
    system = np.zeros((class_count_ + 1, class_count_ + 1))
    system[:-1, :-1] = -pairwise * pairwise.T + np.diag((pairwise**2).sum(axis=0))
    system[-1, :-1] = system[:-1, -1] = 1
    return np.asarray(
        np.linalg.solve(system, np.eye(class_count_ + 1)[-1])[:-1], scores.dtype
    )


_CORRECTIONS.append(
    (
        type(
            "SVMClassifier",
            (op_svm_classifier.SVMClassifier,),
            {"_probabilities": _couple_probabilities},
        ),
        _ALWAYS,
    )
)
