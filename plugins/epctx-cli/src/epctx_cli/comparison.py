"""Comparison of two models on the same inputs: outputs first, then the values of the
same name inside them.

A context model keeps the names of the values between its partitions. Prints nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from epctx_cli.arrays import (
    Lengths,
    describe_inputs,
    explain_made_lengths,
    load_inputs,
    make_inputs,
    merge_lengths,
)
from epctx_cli.node_counts import NodeCounts, count_nodes
from epctx_core import InferenceSession

if TYPE_CHECKING:
    from epctx_core import SessionOptions

_TINY = 1e-6
"""Keeps the relative difference finite where the reference is zero."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """An output is equal if its `max_abs` is at most `absolute`, or its `max_rel` at
    most `relative`.
    """

    absolute: float
    relative: float


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """First element beyond the tolerance.

    Attributes:
        index: its index in each dimension.
        a: its value in the first model; null in JSON for infinity and NaN.
        b: its value in the second model.
    """

    index: list[int]
    a: Any
    b: Any


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One output of two models.

    Attributes:
        name: name of the output.
        max_abs: largest absolute difference; None if the two cannot be subtracted, in
            JSON also for infinity.
        max_rel: that difference relative to the largest element of the second model
            and 1e-6, or None.
        equal: True within the tolerance.
        reason: the reason why the two cannot be subtracted, or empty.
        first: the first element beyond the tolerance, with both values; None if there
            is none.
    """

    name: str
    max_abs: float | None
    max_rel: float | None
    equal: bool
    reason: str = ""
    first: FirstDifference | None

    def describe(self) -> str:
        """Return the place of the first difference in words."""
        if self.first is None:
            return self.reason
        a = _words(self.first.a)
        b = _words(self.first.b)
        return f"at {self.first.index}: {a} and {b}"


@dataclass(frozen=True, kw_only=True)
class InnerDifference(Difference):
    """First value inside two models that differs.

    Attributes:
        compared: number of values of one name that were compared.
        from_a: node of the first model that produces it.
        from_b: node of the second model that produces it.
    """

    compared: int
    from_a: str
    from_b: str


def compare_all(
    a: Mapping[str, Any], b: Mapping[str, Any], tolerance: Tolerance
) -> list[Difference]:
    """Compare results by name, in the order of `a`; a result of only one side
    differs.
    """
    differences = [
        compare(name, value, b[name], tolerance)
        if name in b
        else _incomparable(name, "only the first model has it")
        for name, value in a.items()
    ]
    return differences + [
        _incomparable(name, "only the second model has it")
        for name in b
        if name not in a
    ]


def compare(name: str, a: Any, b: Any, tolerance: Tolerance) -> Difference:
    """Compare two results.

    NaN equals NaN at the same index, and infinity the same infinity.
    """
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return _compare_others(name, a, b, tolerance)

    if a.shape != b.shape:
        shapes = f"{list(a.shape)} and {list(b.shape)}"
        return _incomparable(name, f"the shapes are {shapes}")
    if a.dtype != b.dtype:
        return _incomparable(name, f"the types are {a.dtype} and {b.dtype}")
    if a.dtype.kind in "OUST":
        exact = Tolerance(absolute=0.0, relative=0.0)
        distance = np.asarray(a != b, np.float64)
        return _assess(name, a, b, distance, np.zeros(1), exact)

    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x = a.astype(wide)
    y = b.astype(wide)
    distance = _distance(a, b, x, y)
    return _assess(name, a, b, distance, np.abs(y), tolerance)


def _distance(a: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return |a - b| for each element, given both in wide precision."""
    with np.errstate(invalid="ignore", over="ignore"):
        # The difference of scalars is not an array.
        distance = np.asarray(np.abs(x - y))
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    distance[equal] = 0.0
    distance[np.isnan(distance)] = np.inf
    if a.dtype.kind in "iu":
        # 64-bit integers may differ by less than the precision of a float64.
        distance[(a != b) & (distance == 0.0)] = 1.0
    return distance


def _assess(
    name: str,
    a: np.ndarray,
    b: np.ndarray,
    distance: np.ndarray,
    magnitude: np.ndarray,
    tolerance: Tolerance,
) -> Difference:
    finite = np.atleast_1d(magnitude)
    finite = finite[np.isfinite(finite)]
    scale = float(finite.max(initial=0.0)) + _TINY
    largest = float(distance.max(initial=0.0))
    limit = max(tolerance.absolute, tolerance.relative * scale)
    beyond = np.atleast_1d(distance > limit)

    first = None
    if beyond.any():
        position = np.unravel_index(int(np.argmax(beyond)), beyond.shape)
        index = [int(i) for i in position][: a.ndim]
        first = FirstDifference(
            index=index,
            a=_value(a[tuple(index)]),
            b=_value(b[tuple(index)]),
        )
    return Difference(
        name=name,
        max_abs=largest,
        max_rel=largest / scale,
        equal=first is None,
        first=first,
    )


def _value(element: Any) -> Any:
    value = element.item() if hasattr(element, "item") else element
    if isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _words(value: Any) -> str:
    return f"{value:.8g}" if isinstance(value, float) else repr(value)


def _compare_others(name: str, a: Any, b: Any, tolerance: Tolerance) -> Difference:
    """Compare sequences element by element, anything else as equal or not."""
    are_sequences = isinstance(a, (list, tuple)) and isinstance(b, (list, tuple))
    if are_sequences and len(a) == len(b):
        return _compare_elements(name, a, b, tolerance)
    if type(a) is type(b) and a == b:
        return _equal(name)
    return _incomparable(name, "the values differ and are not tensors")


def _compare_elements(
    name: str, a: Sequence[Any], b: Sequence[Any], tolerance: Tolerance
) -> Difference:
    """Return the largest difference of the elements of two sequences of one length."""
    parts = [
        compare(f"{name}[{i}]", x, y, tolerance)
        for i, (x, y) in enumerate(zip(a, b, strict=True))
    ]
    worst = max(parts, key=lambda p: (not p.equal, p.max_abs or 0.0), default=None)
    if worst is None or (worst.equal and worst.max_abs is None):
        return _equal(name)

    reason = "" if worst.equal else f"{worst.name}: {worst.describe()}"
    return replace(worst, name=name, reason=reason, first=None)


def _equal(name: str) -> Difference:
    return Difference(name=name, max_abs=0.0, max_rel=0.0, equal=True, first=None)


def _incomparable(name: str, reason: str) -> Difference:
    return Difference(
        name=name,
        max_abs=None,
        max_rel=None,
        equal=False,
        reason=reason,
        first=None,
    )


Model: TypeAlias = "tuple[str, SessionOptions]"
"""Path and session options."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of two models.

    Attributes:
        differences: one for each output.
        inputs: of both runs.
        nodes: the numbers of nodes by EP, of each model.
    """

    differences: list[Difference]
    inputs: Mapping[str, Any]
    nodes: list[NodeCounts]


def compare_models(
    a: Model,
    b: Model,
    *,
    tolerance: Tolerance,
    note: Callable[[str], object],
    input_path: str | None = None,
    seed: int = 0,
) -> Comparison:
    """Run two models and compare their outputs; `b` is the reference.

    Args:
        a, b: the models.
        tolerance: the largest differences of equal outputs.
        note: gets a sentence about inputs that were made, before a model is run.
        input_path: a `.npz` file, or None to make inputs for both from the seed.
        seed: see `make_inputs`.

    Raises:
        EpctxError: a model cannot be loaded or run; see `InferenceSession`.
    """
    results: list[dict[str, Any]] = []
    nodes: list[NodeCounts] = []
    lengths: Lengths = {}

    def run(session: InferenceSession) -> None:
        names = [output.name for output in session.get_outputs()]
        with explain_made_lengths(lengths):
            results.append(dict(zip(names, session.run(None, inputs), strict=True)))
        nodes.append(count_nodes(session))

    with InferenceSession(*a) as session:
        expected = session.get_inputs()
        if input_path is not None:
            inputs = load_inputs(input_path, expected)
        else:
            lengths = merge_lengths(expected)
            if not all(each.tensor_type.is_static for each in expected):
                # A length that is open here may be fixed there.
                with InferenceSession(*b) as other:
                    lengths = merge_lengths(expected, other.get_inputs())
            inputs = make_inputs(expected, lengths, seed)
            note(describe_inputs(inputs, lengths, seed))
        run(session)
    # Models are large, and a device may take one session only.
    with InferenceSession(*b) as session:
        run(session)
    return Comparison(
        differences=compare_all(results[0], results[1], tolerance),
        inputs=inputs,
        nodes=nodes,
    )


# -- values inside
# ---------------------------------------------------------------------------------

_MOST_VALUES = 256
"""Largest number of values that are compared; of more, this many at even distances."""


def first_difference(
    a: Model, b: Model, inputs: Mapping[str, Any], tolerance: Tolerance
) -> InnerDifference | None:
    """Return the first differing value in the order of `a`, or None.

    Raises:
        EpctxError: a model cannot be run with further outputs.
    """
    first = _Probe(a)
    second = _Probe(b)
    common = [
        name
        for name in first.produced
        if name in second.produced
        and all(
            name not in probe.outputs and probe.info(name) is not None
            for probe in (first, second)
        )
    ]
    step = max(1, math.ceil(len(common) / _MOST_VALUES))
    names = common[::step]
    if not names:
        return None
    results = first.values(names, inputs), second.values(names, inputs)
    for name, x, y in zip(names, *results, strict=True):
        difference = compare(name, x, y, tolerance)
        if not difference.equal:
            return InnerDifference(
                **vars(difference),
                compared=len(names),
                from_a=first.produced[name],
                from_b=second.produced[name],
            )
    return None


class _Probe:
    """A model whose inner values can be run as outputs."""

    def __init__(self, model: Model) -> None:
        self._path, self._options = model
        self._proto = onnx.load(self._path, load_external_data=False)
        inferred = onnx.shape_inference.infer_shapes(self._proto, data_prop=True)
        self._types = {value.name: value.type for value in inferred.graph.value_info}
        self.outputs = {value.name for value in self._proto.graph.output}
        self.produced = {
            name: _node_label(n)
            for n in self._proto.graph.node
            for name in n.output
            if name
        }

    def info(self, name: str) -> onnx.ValueInfoProto | None:
        """Return a value as a graph output, or None if it is not a tensor of known
        type.
        """
        proto = self._types.get(name)
        if proto is None or not proto.HasField("tensor_type"):
            return None
        return onnx.ValueInfoProto(name=name, type=proto)

    def values(self, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        """Run the model and return these values."""
        probe = type(self._proto)()
        probe.CopyFrom(self._proto)
        probe.graph.output.extend(
            info for name in names if (info := self.info(name)) is not None
        )
        options = self._options
        # A model from bytes has no folder; these two options name that of its files.
        folder = str(Path(self._path).parent)
        options.add_session_config_entry("ep.context_enable", "0")
        options.add_session_config_entry("ep.context_file_path", str(Path(self._path)))
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", folder
        )
        with InferenceSession(probe.SerializeToString(), options) as session:
            return session.run(list(names), inputs)


def _node_label(node: onnx.NodeProto) -> str:
    """Return a node's name in messages."""
    source = next(
        (a.s.decode(errors="replace") for a in node.attribute if a.name == "source"), ""
    )
    label = f"{node.op_type} {node.name!r}"
    return f"{label} ({source})" if source else label
