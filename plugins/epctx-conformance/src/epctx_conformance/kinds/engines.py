"""Checks of an engine: a subclass of `epctx_core.plugin.BaseEngine`."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from epctx_conformance.harness import disagreement
from epctx_conformance.kinds.detached import INLINE, detach
from epctx_conformance.kinds.kit import Kit
from epctx_conformance.models import (
    BLOCKS,
    FOREIGN_DOMAIN,
    LARGE_BLOCKS,
    Block,
    GraphBuilder,
    SmallModel,
    single,
)
from epctx_conformance.table import CheckFailed, Skipped
from epctx_core import (
    GraphOptimizationLevel,
    InferenceSession,
    Registry,
    SessionOptions,
)
from epctx_core.errors import EpctxError, NotImplementedByProvider
from epctx_core.plugin import BaseEngine, EnginePolicy, RunnableModel

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case, Data
    from epctx_conformance.report import CheckResult, ConformanceReport

REFERENCE = "onnx.reference"
TOLERANCE = 1e-3
KIT = Kit(
    "engine",
    (
        "class", "refusals", "values", "memory", "concurrency", "lifetime",
        "node_models",
    ),
)  # fmt: skip
_NAMED = re.compile(r"\S.* \S*\d\S*")
_RUNS = 32
_THREADS = 4


class EngineSubject:
    """Engine under test, and the models that it accepts.

    Attributes:
        cls: the class.
        full: whether all of onnx's cases are run, not a sample.
    """

    def __init__(
        self, cls: type[BaseEngine], models: Sequence[str], *, full: bool
    ) -> None:
        self.cls = cls
        self.full = full
        self._paths = models

    @cached_property
    def engine(self) -> BaseEngine:
        """Engine with the settings of a session that sets none."""
        return self.cls(EnginePolicy())

    @cached_property
    def models(self) -> list[SmallModel]:
        """Models of the kit, then those of the engine's author."""
        author_models = [
            SmallModel(Path(path).stem, onnx.load(path)) for path in self._paths
        ]
        return [*_make_views(), *map(_single, BLOCKS), *author_models]

    @cached_property
    def accepted(self) -> list[SmallModel]:
        """The models that the engine accepts; Skipped if there are none."""
        models = [model for model in self.models if self.accepts(model.proto)]
        if not models:
            raise Skipped(
                "the engine accepts no model of the kit; give it one with --model"
            )
        return models

    @cached_property
    def weighted(self) -> list[SmallModel]:
        """The models with large weights that the engine accepts; Skipped if there are
        none.
        """
        large = [_single(block, "large") for block in LARGE_BLOCKS[:2]]  # on float32
        models = [model for model in large if self.accepts(model.proto)]
        models += [model for model in self.accepted if _detach(model)[1]]
        if not models:
            raise Skipped(
                f"the engine accepts no model with a weight of more than {INLINE} bytes"
            )
        return models

    def accepts(self, model: onnx.ModelProto) -> bool:
        """Return whether the engine prepares a model."""
        try:
            self.engine.prepare(deepcopy(model))
        except NotImplementedByProvider:
            return False
        return True

    def run(
        self, prepared: RunnableModel, feeds: dict[str, Any], *, outputs: Any = None
    ) -> list[Any]:
        """Run a prepared model on read-only inputs; return its results."""
        inputs = [_freeze(value) for value in feeds.values()]
        if outputs is None:
            return list(prepared.run(inputs))
        return list(prepared.run(inputs, outputs))


def check_engine(
    engine: type[BaseEngine],
    *,
    models: Sequence[str] = (),
    only: Sequence[str] | None = None,
    full: bool = False,
    progress: Callable[[CheckResult], None] | None = None,
) -> ConformanceReport:
    """Check an engine against the contract.

    Args:
        engine: its class; it need not be installed.
        models: paths of models that it accepts, beside the kit's own.
        only: groups or names of checks; None for all.
        full: True to run all of onnx's cases, not a sample.
        progress: called with each result.

    Returns:
        One result for each check; an error of the engine is a check that failed.

    Raises:
        ValueError: an unknown name in `only`.
    """
    subject = EngineSubject(engine, models, full=full)
    name = getattr(engine, "name", None) or getattr(engine, "__name__", repr(engine))
    return KIT.run(subject, str(name), only=only, progress=progress)


# -- class
# --------------------------------------------------------------------------------------


@KIT.check("class", "it is a subclass of BaseEngine that can be made")
def _is_a_subclass(subject: EngineSubject) -> None:
    if not (isinstance(subject.cls, type) and issubclass(subject.cls, BaseEngine)):
        raise CheckFailed(
            f"{subject.cls!r} is not a subclass of epctx_core.plugin.BaseEngine, and "
            "the core would use onnx.reference instead.",
            hint="The value of the entry point is `module:Class`.",
        )
    policy = EnginePolicy()
    if getattr(subject.cls(policy), "policy", None) is not policy:
        raise CheckFailed(
            "its attribute `policy` is not the policy that it was given; a session "
            "changes that one while it is made.",
            hint="Call super().__init__(policy).",
        )


@KIT.check("class", "its name is its name and version")
def _has_a_name(subject: EngineSubject) -> None:
    name = getattr(subject.cls, "name", None)
    if not isinstance(name, str) or not _NAMED.fullmatch(name):
        raise CheckFailed(
            f"the attribute `name` of the class is {name!r}, which is not a name and "
            "a version.",
            hint='Logs, reports and caches name the engine by it: name = "acme 1.0".',
        )


# -- refusals
# --------------------------------------------------------------------------------------


@KIT.check("refusals", "it accepts a model")
def _accepts_something(subject: EngineSubject) -> None:
    if not subject.accepted:
        raise Skipped("there is none")


@KIT.check(
    "refusals", "it refuses an operator that it lacks, so that another may run it"
)
def _refuses_unknown(subject: EngineSubject) -> None:
    model = _make_unknown()
    try:
        subject.engine.prepare(model.proto)
    except NotImplementedByProvider:
        return
    except BaseException as error:
        raise CheckFailed(
            f"prepare raises {type(error).__name__} for a model with an operator that "
            "it lacks, and not NotImplementedByProvider: no other engine is asked.",
            hint="Raise epctx_core.errors.NotImplementedByProvider for any refusal.",
        ) from error
    raise CheckFailed(
        f"prepare accepts a model with the operator {FOREIGN_DOMAIN}::Unheard, which "
        "nobody has; it would fail in a run.",
        hint="Look at each node in prepare, those of subgraphs too.",
    )


@KIT.check("refusals", "has_kernels says what prepare does")
def _has_kernels(subject: EngineSubject) -> None:
    for model in (*subject.models, _make_unknown()):
        accepts = subject.accepts(model.proto)
        if subject.engine.has_kernels(model.proto) is not accepts:
            raise CheckFailed(
                f"has_kernels returns {not accepts} for the model {model.name}, which "
                f"prepare {'accepts' if accepts else 'refuses'}."
            )


@KIT.check("refusals", "preparing a model does not change it")
def _leaves_models(subject: EngineSubject) -> None:
    for model in subject.accepted:
        copy = deepcopy(model.proto)
        subject.engine.prepare(copy)
        if copy != model.proto:
            raise CheckFailed(
                f"prepare changed the model {model.name}, which is the host's.",
                hint="Copy the model before you change it.",
            )


# -- values
# --------------------------------------------------------------------------------------


@KIT.check("values", "its results are those of the model")
def _computes(subject: EngineSubject) -> None:
    for model in subject.accepted:
        prepared = subject.engine.prepare(model.proto)
        for seed in (0, 1):
            feeds = model.feeds(seed)
            _expect(model, subject.run(prepared, feeds), feeds, "its results are wrong")


@KIT.check("values", "weights that are given beside the model are used")
def _takes_weights(subject: EngineSubject) -> None:
    for model in subject.weighted:
        detached, weights = _detach(model)
        prepared = subject.engine.prepare(detached, weights)
        feeds = model.feeds()
        results = subject.run(prepared, feeds)
        _expect(model, results, feeds, "with weights beside it its results are wrong")


@KIT.check("values", "an optimised model computes the same")
def _optimises(subject: EngineSubject) -> None:
    level = GraphOptimizationLevel.ORT_ENABLE_BASIC
    for model in subject.accepted:
        copy = deepcopy(model.proto)
        try:
            optimised = subject.engine.optimize_model(copy, {}, level)
        except NotImplementedByProvider:
            if not subject.cls.optimizes:
                raise Skipped("it has no optimiser") from None
            continue
        if copy != model.proto:
            raise CheckFailed(f"optimize_model changed the model {model.name}.")
        feeds = model.feeds()
        arrays = {name: view.array() for name, view in optimised.weights.items()}
        results = subject.run(subject.engine.prepare(optimised.model, arrays), feeds)
        _expect(model, results, feeds, "optimised, its results are wrong")


# -- memory
# --------------------------------------------------------------------------------------


@KIT.check("memory", "its results share no memory with inputs")
def _aliases_nothing(subject: EngineSubject) -> None:
    for model, prepared, feeds in _prepare_models(subject):
        inputs = [_freeze(value) for value in feeds.values()]
        for index, result in enumerate(prepared.run(inputs)):
            if any(np.may_share_memory(result, value) for value in inputs):
                raise CheckFailed(
                    f"result {index} of the model {model.name} shares memory with an "
                    "input, and changes when its owner writes to that.",
                    hint="Copy a result that is a view of an input.",
                )


@KIT.check("memory", "it does not change inputs")
def _leaves_inputs(subject: EngineSubject) -> None:
    for model, prepared, feeds in _prepare_models(subject):
        copies = {name: value.copy() for name, value in feeds.items()}
        prepared.run(list(copies.values()))
        for name, value in copies.items():
            if value.tobytes() != feeds[name].tobytes():
                raise CheckFailed(
                    f"a run of the model {model.name} changed the input {name!r}."
                )


@KIT.check("memory", "outputs that are given are written in place")
def _writes_in_place(subject: EngineSubject) -> None:
    for model, prepared, feeds in _prepare_models(subject):
        expected = subject.run(prepared, feeds)
        targets = [np.zeros_like(value) for value in expected]
        results = subject.run(prepared, feeds, outputs=targets)
        for index, (target, value) in enumerate(zip(targets, expected, strict=True)):
            if target.tobytes() != value.tobytes():
                raise CheckFailed(
                    f"output {index} of the model {model.name} is not in the array "
                    "that was given for it.",
                    hint="Return epctx_core.plugin.write_in_place(results, outputs).",
                )
            if not np.may_share_memory(results[index], target):
                raise CheckFailed(
                    f"result {index} of the model {model.name} is another array than "
                    "the one that was given for it."
                )

        if not subject.engine.allocates:
            continue
        results = subject.run(prepared, feeds, outputs=[None, *targets[1:]])
        if results[0].tobytes() != expected[0].tobytes():
            raise CheckFailed(
                f"the first result of the model {model.name} is another one where None "
                "is given for it, which leaves its memory to the engine.",
                hint="Return epctx_core.plugin.write_in_place(results, outputs).",
            )


@KIT.check("memory", "a later run leaves the results of an earlier one")
def _keeps_results(subject: EngineSubject) -> None:
    for model, prepared, feeds in _prepare_models(subject):
        results = subject.run(prepared, feeds)
        before = [value.tobytes() for value in results]
        subject.run(prepared, model.feeds(1))
        if [value.tobytes() for value in results] != before:
            raise CheckFailed(
                f"a second run of the model {model.name} wrote into the results of "
                "the first.",
                hint="Allocate results for each run.",
            )


# -- concurrency
# --------------------------------------------------------------------------------------


@KIT.check("concurrency", "a model can be run from several threads at once")
def _runs_in_threads(subject: EngineSubject) -> None:
    for model, prepared, _ in _prepare_models(subject):
        feeds = [model.feeds(seed) for seed in range(_RUNS)]
        expected = [subject.run(prepared, each) for each in feeds]
        with ThreadPoolExecutor(_THREADS) as pool:
            results = list(pool.map(partial(subject.run, prepared), feeds))
        for result, right in zip(results, expected, strict=True):
            if fault := disagreement(result, right, tolerance=TOLERANCE):
                raise CheckFailed(
                    f"run from {_THREADS} threads, the model {model.name} gives other "
                    f"results than alone: {fault}.",
                    hint="Keep the state of a run in its own variables.",
                )


# -- lifetime
# --------------------------------------------------------------------------------------


@KIT.check("lifetime", "a closed model releases its weights and itself")
def _releases(subject: EngineSubject) -> None:
    # The core closes a model by dropping it: nothing else may keep it.
    models = [*subject.accepted]
    with suppress(Skipped):
        models += subject.weighted
    for model in models:
        detached, weights = _detach(model)
        prepared = subject.engine.prepare(detached, weights)
        subject.run(prepared, model.feeds())
        kept = [weakref.ref(array) for array in weights.values()]
        try:
            kept.append(weakref.ref(prepared))  # type: ignore[arg-type]
        except TypeError:
            if not kept:
                continue  # it has __slots__, and no weight that could tell
        del prepared, weights
        gc.collect()
        if any(each() is not None for each in kept):
            raise CheckFailed(
                f"the model {model.name} or its weights are still in memory after the "
                "last reference to it was dropped, as the core closes a model.",
                hint="Keep what belongs to a model in the object that prepare returns.",
            )


# -- onnx's own cases
# --------------------------------------------------------------------------------------


def _assess(subject: EngineSubject, case: Case) -> str | None:
    """Return what is wrong with a case, empty for nothing; None for one that the engine
    refuses.
    """
    model = onnx.load_from_string(case.model())
    data = case.data()[0]
    values = (*model.graph.input, *model.graph.output)
    if not all(subject.engine.can_pass(_get_elem_type(value)) for value in values):
        return None
    try:
        prepared = subject.engine.prepare(model)
    except NotImplementedByProvider:
        return None
    except Exception as error:  # noqa: BLE001 - any other class is the fault
        return f"{case.name}: prepare raises {type(error).__name__}: {error}"
    try:
        results = subject.run(prepared, data.inputs)
        tolerance = max(TOLERANCE, case.rtol)
        fault = disagreement(results, data.outputs, tolerance=tolerance)
    except Exception as error:  # noqa: BLE001 - a run of what it accepted may not fail
        fault = f"a run raises {type(error).__name__}: {error}"
    return f"{case.name}: {fault}" if fault and _is_telling(case, data) else ""


KIT.check_cases(
    "node_models",
    "what it accepts gives the expected outputs",
    _assess,
    counted="the engine accepts",
    hint="Refuse in prepare what it cannot run: NotImplementedByProvider.",
)


def _get_elem_type(value: onnx.ValueInfoProto) -> int | None:
    return (
        value.type.tensor_type.elem_type if value.type.HasField("tensor_type") else None
    )


def _is_telling(case: Case, data: Data) -> bool:
    """Return whether the reference gives the expected outputs; some are random."""
    try:
        results = _run_reference(case.model(), data.inputs)
    except EpctxError:
        return False
    tolerance = max(TOLERANCE, case.rtol)
    return disagreement(results, data.outputs, tolerance=tolerance) is None


# -- models
# --------------------------------------------------------------------------------------


def _single(block: Block, name: str = "single") -> SmallModel:
    return single(block).copy(f"{name}_{block.operator.lower()}")


def _make_views() -> list[SmallModel]:
    """Models whose results tend to be views of their inputs."""
    models = []
    for op_type, shape in (("Identity", (2, 3)), ("Flatten", (2, 3)), ("Neg", (2, 3))):
        graph = GraphBuilder()
        value = graph.node(op_type, [graph.input("x", (2, 3))])
        graph.output(value, shape)
        models.append(graph.model(op_type.lower()))
    return models


def _make_unknown() -> SmallModel:
    graph = GraphBuilder()
    value = graph.node("Unheard", [graph.input("x", (2, 3))], domain=FOREIGN_DOMAIN)
    graph.output(value, (2, 3))
    return graph.model("unknown")


def _prepare_models(
    subject: EngineSubject,
) -> list[tuple[SmallModel, RunnableModel, dict[str, np.ndarray]]]:
    """Return each accepted model, made ready, with its inputs."""
    return [
        (model, subject.engine.prepare(model.proto), model.feeds())
        for model in subject.accepted
    ]


def _detach(model: SmallModel) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model as the core gives models to engines, and its large weights."""
    detached, weights = detach(model.proto)
    values = {name: weight.values for name, weight in weights.items()}
    return detached, {
        name: array for name, array in values.items() if array.nbytes > INLINE
    }


def _freeze(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def _run_reference(model: bytes, feeds: dict[str, Any]) -> list[Any]:
    """Return the results of the built-in engine."""
    options = SessionOptions()
    options.add_session_config_entry("session.engine", REFERENCE)
    registry = Registry(entry_points=False)
    with InferenceSession(model, options, registry=registry) as session:
        return session.run(None, feeds)


def _expect(
    model: SmallModel, results: list[Any], feeds: dict[str, Any], what: str
) -> None:
    expected = _run_reference(model.data, feeds)
    fault = disagreement(results, expected, tolerance=TOLERANCE, step=model.step)
    if fault is not None:
        raise CheckFailed(f"{what} ({model.name}): {fault}.")
