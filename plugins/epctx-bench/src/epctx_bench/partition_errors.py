"""Errors of a context model by partition: those that a partition makes, and those that
it inherits.

Each partition is run alone on the values that the source model computes for its inputs.
Models are opened anew for each partition, the boundary of which they give as outputs:
memory holds the values of one boundary, for one input, and a device one session. What
one session computed waits in files for the next.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from onnx import ValueInfoProto

from epctx_core import InferenceSession, inspect_model
from epctx_core.errors import EpctxError, InvalidArgument

if TYPE_CHECKING:
    from epctx_core import ContextNodeInfo, SessionOptions

Model: TypeAlias = "tuple[str, SessionOptions]"
"""Path and session options."""
Arrays: TypeAlias = Mapping[str, Any]
"""Arrays by the names of values."""
Inputs: TypeAlias = Sequence[Callable[[], Arrays]]
"""Functions that return inputs of a model, by name."""

_IN_A_BODY = "it is in a subgraph, whose values cannot be outputs of a model."
_TINY = 1e-6
"""Keeps relative differences finite where the reference is zero."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """Difference of a value from its reference.

    Attributes:
        max_abs: largest absolute difference; None in JSON for infinity.
        mean_abs: mean absolute difference; None in JSON for infinity.
        max_rel: largest absolute difference, relative to the largest element of the
            reference and 1e-6; None in JSON for infinity.
        snr_db: signal-to-noise ratio in dB; None in JSON for infinity, such as that of
            equal values.
        cosine: cosine of the angle between the two as vectors.
    """

    max_abs: float
    mean_abs: float
    max_rel: float
    snr_db: float
    cosine: float


@dataclass(frozen=True, kw_only=True)
class Deviations:
    """Differences over all inputs.

    Attributes:
        worst: the worst of each number: the smallest ratio and cosine, and the largest
            of the others.
        mean: the mean of each number.
    """

    worst: Deviation
    mean: Deviation


@dataclass(frozen=True, kw_only=True)
class PartitionError:
    """Errors of an output of a partition.

    In each element the total error is the sum of own and inherited error.

    Attributes:
        partition: name of the EPContext node.
        ep: its source, the name of an EP.
        output: name of the output.
        own: the partition alone on the reference's inputs, against the reference.
        inherited: the partition in the whole model, against the partition alone.
        total: the partition in the whole model, against the reference.
        worst_input: index of the input with the smallest `snr_db` of the own error.
    """

    partition: str
    ep: str
    output: str
    own: Deviations
    inherited: Deviations
    total: Deviations
    worst_input: int


@dataclass(frozen=True, kw_only=True)
class Uncompared:
    """Partition that cannot be compared.

    Attributes:
        partition: name of the EPContext node.
        reason: the reason.
        body: the subgraph that holds it; empty in the main graph.
    """

    partition: str
    reason: str
    body: str = ""


@dataclass(frozen=True, kw_only=True)
class PartitionErrors:
    """Errors of all partitions.

    Attributes:
        rows: one for each partition and output, the largest own error first, that of
            the smallest `snr_db`.
        uncompared: partitions that cannot be compared, such as all within subgraphs.
        inputs: number of inputs.
    """

    rows: list[PartitionError]
    uncompared: list[Uncompared]
    inputs: int


def compare_partitions(
    context: Model,
    reference: Model,
    inputs: Inputs,
) -> PartitionErrors:
    """Compare each partition of a context model with the part of its source that it
    replaced.

    Partitions within subgraphs have no rows: values there are no outputs of a model.

    Args:
        context: the context model, with the EPs that load it.
        reference: its source, with the EPs that it is to run on, mostly none.
        inputs: one or more, each loaded twice for each partition.

    Raises:
        InvalidArgument: the model has no EPContext node.
        EpctxError: a model cannot be read.
    """
    contexts = inspect_model(context[0]).ep_contexts
    if not contexts:
        raise InvalidArgument(
            "there are no partitions to compare: the model has no EPContext node.",
            path=context[0],
            hint="Name the context model first, and then its source.",
        )

    rows: list[PartitionError] = []
    uncompared = []
    for node in contexts:
        if node.body:
            failure = Uncompared(partition=node.name, reason=_IN_A_BODY, body=node.body)
            uncompared.append(failure)
            continue
        try:
            rows += _compare_partition(node, context, reference, inputs)
        except EpctxError as error:
            failure = Uncompared(partition=node.name, reason=error.message)
            uncompared.append(failure)
    rows.sort(key=_rank)
    return PartitionErrors(
        rows=rows,
        uncompared=uncompared,
        inputs=len(inputs),
    )


def _rank(row: PartitionError) -> tuple[float, float]:
    """Return the key by which rows are sorted.

    Not the largest difference alone: one element that is rounded the other way is more
    than a small error of all.
    """
    worst = row.own.worst
    return worst.snr_db, -worst.max_rel


def _compare_partition(
    node: ContextNodeInfo,
    context: Model,
    reference: Model,
    inputs: Inputs,
) -> list[PartitionError]:
    """Return the errors of a partition's outputs."""
    from epctx_files import extract

    with tempfile.TemporaryDirectory(prefix="epctx-compare-") as folder:
        path = f"{folder}/part.onnx"
        extract(context[0], path, node=node.name)
        graph = onnx.load(path, load_external_data=False).graph
        part = path, context[1]
        with open_values(reference, [*graph.input, *graph.output]) as right:
            results = _run_alone(part, right, inputs, graph, folder)
        # One after the other: a device may have no memory for both.
        with open_values(context, graph.output) as session:
            measured = [
                _measure(run_values(session, load()), *read())
                for load, read in zip(inputs, results, strict=True)
            ]

    rows = []
    for value in graph.output:
        name = value.name
        own, inherited, total = zip(*(each[name] for each in measured), strict=True)
        ratios = [each.snr_db for each in own]
        row = PartitionError(
            partition=node.name,
            ep=node.source,
            output=name,
            own=_summarize(own),
            inherited=_summarize(inherited),
            total=_summarize(total),
            worst_input=ratios.index(min(ratios)),
        )
        rows.append(row)
    return rows


def _run_alone(
    part: Model,
    right: InferenceSession,
    inputs: Inputs,
    boundary: onnx.GraphProto,
    folder: str,
) -> list[Callable[[], Sequence[Arrays]]]:
    """Run a partition on the reference's values; return for each input a function that
    reads its outputs, as the partition and as the reference computes them.
    """
    results = []
    with InferenceSession(*part) as session:
        for index, load in enumerate(inputs):
            expected = run_values(right, load())
            given = {value.name: expected[value.name] for value in boundary.input}
            made = run_values(session, given)
            names = [value.name for value in boundary.output]
            results.append(_store(f"{folder}/{index}", names, [made, expected]))
    return results


def _store(
    path: str, names: Sequence[str], results: Sequence[Arrays]
) -> Callable[[], Sequence[Arrays]]:
    """Write results to a file, and return a function that reads them."""
    forms = []
    with Path(path).open("wb") as file:
        for values in results:
            # By their bytes: files of NumPy do not know types such as bfloat16.
            file.writelines(values[name].tobytes() for name in names)
            forms.append(
                {name: (values[name].dtype, values[name].shape) for name in names}
            )

    def read() -> Sequence[Arrays]:
        with Path(path).open("rb") as file:
            return [
                {
                    name: np.frombuffer(
                        file.read(dtype.itemsize * math.prod(shape)), dtype
                    ).reshape(shape)
                    for name, (dtype, shape) in form.items()
                }
                for form in forms
            ]

    return read


def _measure(
    found: Arrays, made: Arrays, expected: Arrays
) -> dict[str, tuple[Deviation, Deviation, Deviation]]:
    """Return own, inherited and total error of each output for one input."""
    errors = {}
    for name, right_value in expected.items():
        own = measure_deviation(made[name], right_value)
        inherited = measure_deviation(found[name], made[name])
        total = measure_deviation(found[name], right_value)
        errors[name] = own, inherited, total
    return errors


def open_values(model: Model, values: Iterable[ValueInfoProto]) -> InferenceSession:
    """Return a session of a model whose outputs are values inside it.

    Args:
        model: the model.
        values: values of the model; its inputs are left out.

    Raises:
        EpctxError: the model cannot be loaded, or has no such values.
    """
    path = model[0]
    options = model[1].copy()
    proto = onnx.load(path, load_external_data=False)
    given = {value.name for value in proto.graph.input}
    # A node whose output has no type is refused.
    proto.graph.value_info.extend(proto.graph.output)
    del proto.graph.output[:]
    proto.graph.output.extend(value for value in values if value.name not in given)

    options.add_session_config_entry("ep.context_enable", "0")
    # A model from bytes has no folder; these two options name that of its files.
    options.add_session_config_entry("ep.context_file_path", path)
    folder = str(Path(path).parent)
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", folder
    )
    return InferenceSession(proto.SerializeToString(), options)


def run_values(session: InferenceSession, feed: Arrays) -> dict[str, Any]:
    """Run a session and return its inputs and outputs by name."""
    names = [each.name for each in session.get_outputs()]
    results = session.run(names, feed)
    return {**feed, **dict(zip(names, results, strict=True))}


def measure_deviation(value: Any, reference: Any) -> Deviation:
    """Return the difference of an array of numbers from another one of its shape.

    NaN equals NaN at the same index, and infinity the same infinity.

    Raises:
        InvalidArgument: the shapes differ.
    """
    if value.shape != reference.shape:
        shapes = f"{value.shape} and {reference.shape}"
        raise InvalidArgument(f"values of the shapes {shapes} cannot be compared.")
    x = value.astype(np.float64).ravel()
    y = reference.astype(np.float64).ravel()
    # An infinite difference is a result.
    with np.errstate(all="ignore"):
        distance = np.abs(x - y)
        distance[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
        distance[np.isnan(distance)] = np.inf
        x[~np.isfinite(x)] = 0.0
        y[~np.isfinite(y)] = 0.0
        noise = float(np.linalg.norm(distance))
        signal = float(np.linalg.norm(y))
        size = float(np.linalg.norm(x))
        ratio = np.divide(max(signal, _TINY), noise)
        decibels = 20 * float(np.log10(ratio))
    product = size * signal
    cosine = float(x @ y) / max(product, _TINY)

    largest = float(distance.max(initial=0.0))
    scale = float(np.abs(y).max(initial=0.0)) + _TINY
    return Deviation(
        max_abs=largest,
        mean_abs=float(distance.sum()) / max(distance.size, 1),
        max_rel=largest / scale,
        snr_db=decibels,
        cosine=cosine if noise else 1.0,
    )


def _summarize(deviations: Sequence[Deviation]) -> Deviations:
    """Return worst and mean of each number."""
    worst = {}
    mean = {}
    for key in vars(deviations[0]):
        numbers = [getattr(each, key) for each in deviations]
        select = min if key in {"snr_db", "cosine"} else max
        worst[key] = select(numbers)
        mean[key] = sum(numbers) / len(numbers)
    return Deviations(worst=Deviation(**worst), mean=Deviation(**mean))
