"""Cases whose first dimension is open: the models of other cases with a symbol for it,
run with several numbers of rows.

What a model gives for one row and for none is what onnxruntime gives, else
`onnx.reference`; an engine counts only if it gets the case's own rows right. Where it
refuses a number of rows, a typed error is as good as a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx
from epctx_conformance.cases.case import Case, Data
from epctx_onnxruntime.checking.comparison import difference
from onnx.reference import ReferenceEvaluator

ROWS = "rows"
"""The symbol."""

NEED_STEPS = frozenset({"GRU", "LSTM"})
"""Operators with which onnxruntime 1.32, without steps, ends the process or gives what
happens to be in memory.
"""

_Run: TypeAlias = Callable[[dict[str, Any]], Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class _Opened:
    model: onnx.ModelProto
    rows: int
    inputs: frozenset[str]


def open_cases(cases: Mapping[str, Case]) -> dict[str, Case]:
    """Return a case `NAME.open` for each case whose first dimension can be opened, in
    the order given.

    That of the first tensor is opened, and that of all inputs with as many rows. The
    model must still be valid then: what it declares for other values is left out. Each
    has the case's own rows, one row and none.
    """
    opened = {name: _open(case) for name, case in cases.items()}
    return {
        f"{name}.open": replace(
            cases[name],
            name=f"{name}.open",
            model=partial(_serialise, each.model),
            data=partial(_make_data, cases[name], each),
        )
        for name, each in opened.items()
        if each is not None
    }


def _serialise(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString())


def _open(case: Case) -> _Opened | None:
    """Return a case's model with a symbol for its rows, or None."""
    model = onnx.load_from_string(case.model())
    rows = 0
    names = set()
    inputs = next(iter(case.data()), Data(inputs={}, outputs=[])).inputs
    for value in model.graph.input:
        dimensions = value.type.tensor_type.shape.dim
        if value.name not in inputs or not dimensions:
            continue
        rows = rows or dimensions[0].dim_value
        if rows and dimensions[0].dim_value == rows:
            dimensions[0].dim_param = ROWS
            names.add(value.name)
    if not names:
        return None
    del model.graph.value_info[:]
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    try:
        inferred_model = onnx.shape_inference.infer_shapes(
            model, check_type=True, strict_mode=True, data_prop=True
        )
        for value, inferred in zip(
            model.graph.output, inferred_model.graph.output, strict=True
        ):
            value.CopyFrom(inferred)
        onnx.checker.check_model(model, full_check=True)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        ValueError,
    ):
        return None
    return _Opened(model=model, rows=rows, inputs=frozenset(names))


def _make_data(case: Case, opened: _Opened) -> list[Data]:
    """Return a case's own rows, and one row and none with what is to come of them."""
    whole = case.data()[0]
    sets = [whole]
    engines = []
    for run in _make_engines(opened.model):
        outputs = _try(run, whole.inputs)
        if outputs is not None and not difference(outputs, whole.outputs, case):
            engines.append(run)
    for rows in (1, 0):
        if rows < opened.rows:
            inputs = {
                name: x[:rows] if name in opened.inputs else x
                for name, x in whole.inputs.items()
            }
            sets += _expect(engines, opened.model, inputs, rows)
    return sets


def _expect(
    engines: Sequence[_Run], model: onnx.ModelProto, inputs: dict[str, Any], rows: int
) -> list[Data]:
    """Return inputs with what the first engine gives that does not refuse them; if an
    earlier one does, so may others.

    Nothing if that has another shape than the model proves: so many rows make no sense
    to it.
    """
    operators = {node.op_type for node in model.graph.node}
    if not rows and not NEED_STEPS.isdisjoint(operators):
        engines = ()

    answers = (_try(run, inputs) for run in engines)
    for turn, outputs in enumerate(answers):
        if outputs is not None:
            fits = all(map(partial(_fits, rows=rows), model.graph.output, outputs))
            return [Data(inputs=inputs, outputs=outputs, may_refuse=turn > 0)] * fits
    return [Data(inputs=inputs, outputs=[], may_refuse=True)]


def _fits(declared: onnx.ValueInfoProto, value: Any, rows: int) -> bool:
    tensor_type = declared.type.tensor_type
    if not isinstance(value, np.ndarray) or not tensor_type.HasField("shape"):
        return True

    dimensions = tensor_type.shape.dim
    if len(dimensions) != value.ndim:
        return False

    for dimension, length in zip(dimensions, value.shape, strict=True):
        if dimension.dim_param == ROWS:
            proven = rows
        elif dimension.HasField("dim_value"):
            proven = dimension.dim_value
        else:
            continue
        if length != proven:
            return False
    return True


def _make_engines(model: onnx.ModelProto) -> Iterator[_Run]:
    """Yield functions that run a model; the one to believe first comes first."""
    try:
        import onnxruntime

        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=providers
        )
    except Exception:  # noqa: BLE001, S110 - it lacks an operator, or is not installed
        pass
    else:
        yield partial(session.run, None)
    try:
        evaluator: Any = ReferenceEvaluator(model)
        yield partial(evaluator.run, None)
    except Exception:  # noqa: BLE001 - it lacks an operator
        return


def _try(run: _Run, inputs: dict[str, Any]) -> list[Any] | None:
    """Return what comes of inputs, or None for an error of any kind."""
    try:
        with np.errstate(all="ignore"):
            outputs = run(inputs)
    except Exception:  # noqa: BLE001 - engines raise what they like
        return None
    return [
        np.asarray(value) if isinstance(value, np.generic) else value
        for value in outputs
    ]
