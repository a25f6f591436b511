"""Checks of a graph transformer: a function of model, weights and level; see
`epctx_core.plugin.GraphTransformer`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto, helper

from epctx_conformance.harness import disagreement
from epctx_conformance.kinds.detached import detach
from epctx_conformance.kinds.kit import Kit
from epctx_conformance.models import (
    BARRIERS,
    BLOCKS,
    FLOAT_BLOCKS,
    LARGE_BLOCKS,
    SmallModel,
    around,
    in_subgraphs,
    joined,
    read_inside,
    separated,
    side_by_side,
    single,
    with_constant_nodes,
    with_unused_input,
)
from epctx_conformance.table import CheckFailed, Skipped
from epctx_core import InferenceSession, Registry, SessionOptions
from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case
    from epctx_conformance.report import CheckResult, ConformanceReport
    from epctx_core.plugin import GraphTransformer

TOLERANCE = 1e-3
LEVELS = (0, 1, 2, 99)
"""Numbers of `GraphOptimizationLevel`."""
KIT = Kit("graph transformer", ("function", "models", "weights", "results"))
_CHILD = (
    "import json, sys\n"
    "request = json.loads(sys.stdin.read())\n"
    "sys.path[:] = request['path']\n"
    "from epctx_conformance.kinds.transformers import digest_in_child\n"
    "print('\\n' + digest_in_child(request))\n"
)


class TransformerSubject:
    """Transformer under test, and the models that it is called on.

    Attributes:
        transform: the function.
        full: whether all of onnx's cases are run, not a sample.
    """

    def __init__(
        self, transform: GraphTransformer, models: Sequence[str], *, full: bool
    ) -> None:
        self.transform = transform
        self.full = full
        self._paths = models

    @cached_property
    def models(self) -> list[SmallModel]:
        """Models of the kit, then those of the transformer's author."""
        author_models = [
            SmallModel(Path(path).stem, onnx.load(path)) for path in self._paths
        ]
        return [*_make_samples(), *author_models]

    def call(self, model: onnx.ModelProto, level: int = 0) -> Any:
        """Return what the transformer gives for a copy of a model."""
        detached, weights = detach(model)
        return self.transform(detached, weights, level)

    @cached_property
    def changed(self) -> list[tuple[SmallModel, onnx.ModelProto]]:
        """The models that the transformer changes, with what it gave; Skipped if there
        are none.
        """
        pairs = []
        for model in self.models:
            result = self.call(model.proto)
            if result is not None and result != detach(model.proto)[0]:
                pairs.append((model, result))
        if not pairs:
            raise Skipped(
                "the transformer changes no model of the kit; give it one with --model"
            )
        return pairs


def check_transformer(
    transform: GraphTransformer,
    *,
    models: Sequence[str] = (),
    only: Sequence[str] | None = None,
    full: bool = False,
    progress: Callable[[CheckResult], None] | None = None,
) -> ConformanceReport:
    """Check a graph transformer against the contract.

    Args:
        transform: the function.
        models: paths of models that it changes, beside the kit's own.
        only: groups or names of checks; None for all.
        full: True to call it on all of onnx's cases, not on a sample.
        progress: called with each result.

    Returns:
        One result for each check; an error of the function is a check that failed.

    Raises:
        ValueError: an unknown name in `only`.
    """
    subject = TransformerSubject(transform, models, full=full)
    name = getattr(transform, "name", None) or getattr(transform, "__name__", "")
    return KIT.run(subject, str(name) or repr(transform), only=only, progress=progress)


# -- function
# --------------------------------------------------------------------------------------


@KIT.check("function", "it is called with a model, weights and a level")
def _has_the_signature(subject: TransformerSubject) -> None:
    if not callable(subject.transform):
        raise CheckFailed(f"{subject.transform!r} cannot be called.")
    try:
        inspect.signature(subject.transform).bind(None, {}, 0)
    except (TypeError, ValueError) as error:
        raise CheckFailed(
            f"it cannot be called as transform(model, weights, level): {error}."
        ) from error


# -- models
# --------------------------------------------------------------------------------------


@KIT.check("models", "it returns None or a model, at every level")
def _returns_models(subject: TransformerSubject) -> None:
    for model in subject.models:
        for level in LEVELS:
            result = subject.call(model.proto, level)
            if not isinstance(result, onnx.ModelProto | None):
                raise CheckFailed(
                    f"for the model {model.name} it returns a "
                    f"{type(result).__name__} instead of an onnx.ModelProto or None."
                )


@KIT.check("models", "inputs and outputs keep their names, order and types")
def _keeps_boundaries(subject: TransformerSubject) -> None:
    for model, result in subject.changed:
        for what in ("input", "output"):
            before = [_as_type(v) for v in getattr(model.proto.graph, what)]
            after = [_as_type(v) for v in getattr(result.graph, what)]
            if before != after:
                raise CheckFailed(
                    f"the {what}s of the model {model.name} become "
                    f"{_name_types(after)}; they were {_name_types(before)}.",
                    hint="Add nodes that convert to the old names and types.",
                )


@KIT.check("models", "the same model gives the same result")
def _is_deterministic(subject: TransformerSubject) -> None:
    for model in subject.models:
        for level in LEVELS[:2]:
            first, second = (subject.call(model.proto, level) for _ in range(2))
            if first != second:
                raise CheckFailed(
                    f"a second call with the model {model.name} gives another result, "
                    "so that a compile could not be found again in a cache.",
                    hint="Use no time, no random numbers, and no state between calls.",
                )


@KIT.check("models", "the same model gives the same result in another process")
def _is_deterministic_in_processes(subject: TransformerSubject) -> None:
    path = _find_path(subject.transform)
    if path is None:
        raise Skipped("another process cannot find the function by its name")
    models = [model for model, _ in subject.changed]
    digests = [_digest_in_process(path, models, seed) for seed in (1, 2)]
    for model, *model_digests in zip(models, *digests, strict=True):
        if len(set(model_digests)) > 1:
            raise CheckFailed(
                f"the model {model.name} gives other bytes in another process.",
                hint="Sort what you take from a set: its order depends on hashes.",
            )


# -- weights
# --------------------------------------------------------------------------------------


@KIT.check("weights", "it does not change weights that it is given")
def _leaves_weights(subject: TransformerSubject) -> None:
    for model in subject.models:
        detached, weights = detach(model.proto)
        before = {name: view.values.tobytes() for name, view in weights.items()}
        subject.transform(detached, weights, 0)
        after = {name: view.values.tobytes() for name, view in weights.items()}
        if before.keys() != after.keys():
            raise CheckFailed(
                f"it changed the mapping of weights of the model {model.name}."
            )
        for name, data in before.items():
            if after[name] != data:
                raise CheckFailed(
                    f"it wrote into the weight {name!r} of the model {model.name}, "
                    "which is the host's file.",
                    hint="Add a new initializer, and copy what you change.",
                )


@KIT.check("weights", "an external weight of the result is one of the model's")
def _refers_to_weights(subject: TransformerSubject) -> None:
    for model, result in subject.changed:
        _, weights = detach(model.proto)
        for tensor in result.graph.initializer:
            is_external = tensor.data_location == TensorProto.EXTERNAL
            if is_external and tensor.name not in weights:
                raise CheckFailed(
                    f"the result for the model {model.name} has an external weight "
                    f"{tensor.name!r}, which the model does not have.",
                    hint="Weights that stay keep their names; new ones are inline.",
                )


# -- results
# --------------------------------------------------------------------------------------


@KIT.check("results", "a changed model computes the same")
def _computes_the_same(subject: TransformerSubject) -> None:
    for model, _ in subject.changed:
        feeds = model.feeds()
        expected = _run(model.data, feeds)
        results = _run(model.data, feeds, subject.transform)
        fault = disagreement(results, expected, tolerance=TOLERANCE, step=model.step)
        if fault is not None:
            raise CheckFailed(f"the changed model {model.name} is wrong: {fault}.")


def _assess(subject: TransformerSubject, case: Case) -> str | None:
    """Return what is wrong with a case, empty for nothing; None for one that the
    transformer leaves as it is.
    """
    data = case.model()
    feeds = case.data()[0].inputs
    model = onnx.load_from_string(data)
    try:
        result = subject.call(model)
    except Exception as error:  # noqa: BLE001 - it has to take any model
        return f"{case.name}: {type(error).__name__}: {error}"
    if result is None or result == detach(model)[0]:
        return None
    try:
        expected = _run(data, feeds)
    except EpctxError:
        return None
    if disagreement(_run(data, feeds), expected, tolerance=TOLERANCE):
        return None  # it draws random numbers
    try:
        results = _run(data, feeds, subject.transform)
    except EpctxError as error:
        return f"{case.name}: {type(error).__name__}: {error.message}"
    fault = disagreement(results, expected, tolerance=TOLERANCE)
    return f"{case.name}: {fault}" if fault else ""


KIT.check_cases(
    "results",
    "what it changes computes the same",
    _assess,
    counted="it changes",
    hint="Leave alone what the transformer cannot change rightly.",
)


def _run(
    model: bytes, feeds: Mapping[str, Any], transform: GraphTransformer | None = None
) -> list[Any]:
    """Run a model on the CPU EP, changed by a transformer."""
    options = SessionOptions()
    if transform is not None:
        options.add_graph_transformer(transform)
    registry = Registry(entry_points=False)
    with InferenceSession(model, options, registry=registry) as session:
        return session.run(None, feeds)


# -- models
# --------------------------------------------------------------------------------------


def _make_samples() -> list[SmallModel]:
    block = FLOAT_BLOCKS[0]
    return [
        *(
            single(each).copy(f"{each.operator.lower()}_{number}")
            for number, each in enumerate((*BLOCKS, *LARGE_BLOCKS))
        ),
        *(
            separated(block, step).copy(f"separated_by_{name.lower()}")
            for name, step in BARRIERS.items()
        ),
        side_by_side(block), read_inside(block), joined(block),
        around(block, BARRIERS["Sin"]), with_unused_input(block),
        with_constant_nodes(single(block)),
        in_subgraphs(block),
    ]  # fmt: skip


def _as_type(value: onnx.ValueInfoProto) -> tuple[str, bytes]:
    return value.name, value.type.SerializeToString(deterministic=True)


def _name_types(values: Sequence[tuple[str, bytes]]) -> str:
    shown = []
    for name, data in values:
        shown.append(
            f"{name} ({helper.printable_type(onnx.TypeProto.FromString(data))})"
        )
    return ", ".join(shown) or "none"


# -- another process
# --------------------------------------------------------------------------------------


def _find_path(transform: Any) -> list[str] | None:
    """Return module and name by which another process finds a function, or None."""
    module, name = (getattr(transform, each, "") for each in ("__module__", "__name__"))
    attribute = (
        getattr(sys.modules.get(module), name, None) if module and name else None
    )
    return [module, name] if attribute is transform and module != "__main__" else None


def _digest_in_process(
    path: list[str], models: Sequence[SmallModel], seed: int
) -> list[str]:
    """Return digests of results in a process with other hashes of texts."""
    request = {
        "path": sys.path,
        "function": path,
        "models": [model.data.hex() for model in models],
    }
    done = subprocess.run(  # noqa: S603 - this interpreter, and the function under test
        [sys.executable, "-c", _CHILD],
        input=json.dumps(request),
        env={
            "ORT_DISABLE_TELEMETRY": "1",
            **os.environ,
            "PYTHONHASHSEED": str(seed),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise CheckFailed(f"it failed in another process: {last}")
    digests: list[str] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return digests


def digest_in_child(request: Mapping[str, Any]) -> str:
    """Return digests of what a transformer gives for models, as JSON; the child calls
    this.

    Args:
        request: `function`, as module and name, and `models`, as hexadecimal digits.
    """
    module, name = request["function"]
    subject = TransformerSubject(getattr(import_module(module), name), (), full=False)
    digests = []
    for data in request["models"]:
        result = subject.call(onnx.load_from_string(bytes.fromhex(data)))
        text = b"" if result is None else result.SerializeToString(deterministic=True)
        digests.append(hashlib.sha256(text).hexdigest())
    return json.dumps(digests)
