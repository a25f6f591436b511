"""Quantised twins: what onnxruntime's static quantiser makes of cases with float32
inputs, in QDQ format.

A twin's truth is what onnxruntime gives for it without optimisations, which is what its
nodes say one by one. With optimisations onnxruntime computes some twins in other
arithmetic, and a few wrongly; `make_twins` has the numbers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from epctx_conformance.cases.case import Case, Data
from epctx_onnxruntime.checking.comparison import difference
from importlib_metadata import version
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

PRECISIONS = {"a8w8": "QUInt8", "a16w8": "QUInt16"}
"""By the end of a twin's name the type of its activations; its weights are INT8."""

LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators that a network spends its time in."""

LONGEST_WAY = 4
"""Steps of its quantisation that a result may be off behind so many quantised
operators, or more.

What an EP adds up in another order may fall on the other side of a border between two
steps, at each of them: one step behind one operator. onnxruntime's own answers, with
and without optimisations, are four apart at most where both are right.
"""

_ROUNDING = 1e-6
"""Share of a number by which float32 may miss it: it is large beside a step of 16
bits.
"""

_FOLDED = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2)}
"""The inputs that are weights in a network; ONNX's cases pass them as inputs of the
model.
"""

_ONLY_SHAPES = frozenset({"Shape", "Size"})
"""Operators that read no element: the quantiser would take a weight that they read for
an activation.
"""

_INTO = "QuantizeLinear"
_OUT_OF = "DequantizeLinear"
_STANDARD_16_BITS = 21
"""The operator set from which ONNX's own quantisers have 16 bits; before, those of
com.microsoft do.
"""


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A line of an index of twins.

    Attributes:
        of: name of the case that was quantised.
        inputs: names of the twin's inputs; weights are none.
        atol: for each output, how far it may be from the truth.
        layers: how many of `LAYERS` are between quantisers, with shapes that are known
            before a run.
    """

    of: str
    inputs: list[str]
    atol: list[float]
    layers: int


@dataclass(frozen=True, kw_only=True)
class Index:
    """Twins of some cases.

    Attributes:
        key: what they depend on: versions, this module's text, the cases' names.
        asked: how many were tried.
        twins: by name those that have a pair of QuantizeLinear and DequantizeLinear.
        failed: by name why there is none.
    """

    key: str
    asked: int
    twins: dict[str, Twin]
    failed: dict[str, str]


class _NoTwinError(Exception):
    """The text says why."""


def load_twins(folder: Path, load: Callable[[], Mapping[str, Case]]) -> dict[str, Case]:
    """Return the twins of cases by name, `CASE.a8w8` and `CASE.a16w8`; made if the
    folder has not these.

    Args:
        folder: of `make_twins`.
        load: gives the cases.
    """
    cases = load()
    return {
        name: Case(
            name=name,
            model=(folder / f"{name}.onnx").read_bytes,
            data=partial(
                _make_data,
                cases[twin.of],
                folder / f"{name}.onnx",
                frozenset(twin.inputs),
            ),
            rtol=_ROUNDING,
            atol=tuple(twin.atol),
        )
        for name, twin in make_twins(cases, folder).twins.items()
    }


def make_twins(cases: Mapping[str, Case], folder: Path) -> Index:
    """Quantise all cases with float32 inputs, and write the twins and their index into
    a folder.

    Where the folder has them already, for these versions, nothing is made. Needs
    onnxruntime with its quantiser.

    Of ONNX 1.23's twins with onnxruntime 1.32, eight do not load with optimisations,
    and two are computed wrongly: Gemm over integers takes a bias of any scale for one
    of input times weight (51 of 255 steps off), and Gemm of 16-bit activations without
    a bias rounds them to 8 bits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = _compute_key(cases)
    written_index = read_index(folder)
    if written_index is not None and written_index.key == key:
        return written_index
    index = Index(key=key, asked=0, twins={}, failed={})
    with _silence_quantizer():
        for name, case in cases.items():
            index = _add_twins(index, name, case, folder)
    written = json.dumps(asdict(index), indent=1) + "\n"
    (folder / "index.json").write_text(written, "utf-8")
    return index


def read_index(folder: Path) -> Index | None:
    """Return the index in a folder; None if there is none."""
    path = folder / "index.json"
    if not path.exists():
        return None
    fields = json.loads(path.read_text("utf-8"))
    twins = {name: Twin(**each) for name, each in fields["twins"].items()}
    return Index(**{**fields, "twins": twins})


def _compute_key(cases: Mapping[str, Case]) -> str:
    """Return a text that is another one when other twins would be made."""
    content = [version(each) for each in ("onnx", "onnxruntime", "numpy")]
    content += [Path(__file__).read_text("utf-8"), *cases]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


@contextmanager
def _silence_quantizer() -> Iterator[None]:
    """Silence the quantiser, which warns about models that are as they should be."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _add_twins(index: Index, name: str, case: Case, folder: Path) -> Index:
    """Return an index with the twins of one more case, or with the reasons why there
    are none.
    """
    model = onnx.load_model_from_string(case.model())
    if all(
        value.type.tensor_type.elem_type != TensorProto.FLOAT
        for value in model.graph.input
    ):
        return index
    twins = dict(index.twins)
    failed = dict(index.failed)
    check = cache(partial(_check_case, case))
    for end in PRECISIONS:
        try:
            check()
            twins[f"{name}.{end}"] = _make_twin(
                case, model, end, folder / f"{name}.{end}.onnx"
            )
        except Exception as error:  # noqa: BLE001 - neither the quantiser's nor onnxruntime's have a base
            reason = " ".join(str(error).split())
            if not isinstance(error, _NoTwinError):
                reason = f"{type(error).__name__}: {reason}"
            failed[f"{name}.{end}"] = reason[:200]
    return replace(
        index, asked=index.asked + len(PRECISIONS), twins=twins, failed=failed
    )


def _check_case(case: Case) -> None:
    """Raise if onnxruntime gives wrong results for a case: then it gives no truth for
    the twins either.
    """
    for data in case.data():
        try:
            outputs = _run(case.model(), _copy_arrays(data.inputs))
        except Exception:  # noqa: BLE001 - what it does not run may be newer operators in the twin
            return
        for number, pair in enumerate(zip(outputs, data.outputs, strict=True)):
            if wrong := difference(*pair, case.for_output(number)):
                raise _NoTwinError(f"onnxruntime does not pass the case: {wrong}")


def _make_twin(case: Case, source: ModelProto, end: str, path: Path) -> Twin:
    """Write a twin and return its line of the index."""
    sets = [data.inputs for data in case.data()]
    model, constants = with_constant_weights(source, sets[0])
    sets = sets[:1] if constants else sets
    quantised = quantise(
        model, [_leave_out(each, constants) for each in sets], PRECISIONS[end]
    )
    pairs = [node for node in quantised.graph.node if node.op_type in {_INTO, _OUT_OF}]
    before = [node for node in model.graph.node if node.op_type in {_INTO, _OUT_OF}]
    if len(pairs) == len(before):
        raise _NoTwinError("the quantiser finds nothing to quantise")
    path.write_bytes(quantised.SerializeToString(deterministic=True))
    inputs = [value.name for value in quantised.graph.input]
    (truth, *_) = _make_data(case, path, frozenset(inputs))
    return Twin(
        of=case.name,
        inputs=inputs,
        atol=_compute_tolerances(quantised, truth.outputs, case),
        layers=_count_layers(model, quantised),
    )


def quantise(
    model: ModelProto, sets: Sequence[Mapping[str, Any]], activations: str
) -> ModelProto:
    """Quantise statically, with INT8 weights, all operators of a model that compute.

    Args:
        model: in float32.
        sets: inputs to calibrate with.
        activations: a name of onnxruntime's `QuantType`.

    Raises:
        Exception: what onnxruntime's quantiser raises.
    """
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = map(_copy_arrays, sets)

        def get_next(self) -> Any:
            return next(self.left, None)

    opset = next((each.version for each in model.opset_import if not each.domain), 0)
    is_new = "16" not in activations or opset >= _STANDARD_16_BITS
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "twin.onnx")
        quantize_static(
            onnx.load_model_from_string(model.SerializeToString()),
            written,
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=sorted(
                {node.op_type for node in model.graph.node} - _ONLY_SHAPES
            ),
            activation_type=QuantType[activations],
            weight_type=QuantType.QInt8,
            extra_options={
                "ForceQuantizeNoInputCheck": True,
                "QDQKeepRemovableActivations": True,
                "UseQDQContribOps": not is_new,
            },
        )
        return onnx.load(written)


def with_constant_weights(
    model: ModelProto, inputs: Mapping[str, Any]
) -> tuple[ModelProto, frozenset[str]]:
    """Return a model whose weights are constants as in a network, and the names of its
    former inputs.

    A weight is an input of the model that layers alone read as their weight or bias;
    its shape may be read, too.

    Args:
        model: it is left as it is.
        inputs: their values by name.
    """
    copy = onnx.load_model_from_string(model.SerializeToString())
    uses = defaultdict(set)
    for node in copy.graph.node:
        for position, name in enumerate(
            () if node.op_type in _ONLY_SHAPES else node.input
        ):
            uses[name].add(position in _FOLDED.get(node.op_type, ()))
    inputs_without_value = {value.name for value in copy.graph.input} - {
        tensor.name for tensor in copy.graph.initializer
    }
    weights = frozenset(name for name in inputs_without_value if uses[name] == {True})
    kept = [value for value in copy.graph.input if value.name not in weights]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    copy.graph.initializer.extend(
        numpy_helper.from_array(inputs[name], name) for name in sorted(weights)
    )
    return copy, weights


def _make_data(case: Case, path: Path, names: frozenset[str]) -> list[Data]:
    """Return a twin's inputs, and what onnxruntime gives for them without
    optimisations.
    """
    model = path.read_bytes()
    sets = [data.inputs for data in case.data()]
    folded = any(not names.issuperset(each) for each in sets)
    made = []
    for each in sets[:1] if folded else sets:
        inputs = {name: value for name, value in each.items() if name in names}
        made.append(Data(inputs=inputs, outputs=_run(model, _copy_arrays(inputs))))
    return made


def _run(model: bytes, inputs: Mapping[str, Any]) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, inputs))


def _copy_arrays(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of arrays: onnxruntime's BatchNormalization in training mode writes
    into its inputs.
    """
    return {
        name: x.copy() if isinstance(x, np.ndarray) else x for name, x in inputs.items()
    }


def _leave_out(inputs: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name not in names}


def _compute_tolerances(
    model: ModelProto, truth: Sequence[Any], case: Case
) -> list[float]:
    """Return for each output how far it may be from the truth.

    As many steps as quantised operators are before it, `LONGEST_WAY` at most. A float
    that no DequantizeLinear gives has the case's own tolerance; everything else is
    exact.
    """
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    scales = {tensor.name: tensor for tensor in graph.initializer}
    sources = {value.name for value in graph.input} | scales.keys()
    depths: dict[str, int] = {}
    for node in graph.node:
        before = max((depths.get(name, 0) for name in node.input), default=0)
        counts = node.op_type == _INTO and node.input[0] not in sources
        depths.update(dict.fromkeys(node.output, before + counts))
    tolerances = []
    for value, result in zip(graph.output, truth, strict=True):
        node = producers.get(value.name)
        if node is not None and node.op_type == _OUT_OF and node.input[1] in scales:
            scale = numpy_helper.to_array(scales[node.input[1]])
            step = float(scale.max())
            way = min(max(depths[value.name], 1), LONGEST_WAY)
            tolerances.append(step * way)
        else:
            tolerances.append(_compute_tolerance(result, case))
    return tolerances


def _compute_tolerance(result: Any, case: Case) -> float:
    if not (
        isinstance(result, np.ndarray)
        and result.dtype.kind == "f"
        and np.isfinite(result).any()
    ):
        return 0.0

    finite = result[np.isfinite(result)]
    largest = np.abs(finite).max()
    return float(case.rtol * largest + np.max(case.atol))


def _count_layers(model: ModelProto, quantised: ModelProto) -> int:
    """Return how many layers stand between quantisers, with shapes that are known
    before a run.
    """
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    static = {
        value.name
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
        if _is_static(value.type.tensor_type)
    }
    static |= {
        tensor.name
        for graph in (model.graph, quantised.graph)
        for tensor in graph.initializer
    }
    producers = {name: node for node in quantised.graph.node for name in node.output}
    readers = defaultdict(set)
    for node in quantised.graph.node:
        for name in node.input:
            readers[name].add(node.op_type)
    return sum(
        node.op_type in LAYERS
        and all(
            name in producers and producers[name].op_type == _OUT_OF
            for name in node.input
            if name
        )
        and readers[node.output[0]] == {_INTO}
        and static.issuperset(_list_values(node, producers))
        for node in quantised.graph.node
    )


def _list_values(node: NodeProto, producers: Mapping[str, NodeProto]) -> Iterator[str]:
    """Yield the names that the inputs and the result of a layer had before
    quantisation, or those of quantised weights.
    """
    for name in node.input[:2]:
        source = name
        while source in producers and producers[source].op_type in {_INTO, _OUT_OF}:
            source = producers[source].input[0]
        yield source
    yield node.output[0].removesuffix("_QuantizeLinear_Input")


def _is_static(kind: onnx.TypeProto.Tensor) -> bool:
    return kind.HasField("shape") and all(
        dim.HasField("dim_value") for dim in kind.shape.dim
    )
