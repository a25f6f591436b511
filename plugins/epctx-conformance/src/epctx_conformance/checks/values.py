"""Checks of types, shapes and special numbers, and of whose memory inputs and results are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from epctx_conformance.models.building import Growing, SmallModel
from epctx_conformance.models.structures import single
from epctx_conformance.scene import disagreement
from epctx_conformance.table import CheckFailed, CheckFunction, Skipped, check

if TYPE_CHECKING:
    from epctx_conformance.scene import Scene
    from epctx_core.plugin import ValueInfo

ELEMENT_TYPES = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE,
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
    TensorProto.BOOL,
)  # fmt: skip
"""What a boundary may carry and numpy can compute with."""

MOVING = ("Identity", "Transpose", "Flatten")
"""Operators that give elements as they came."""
COMPUTING = ("Add", "Sub", "Mul", "Neg", "Abs", "Relu", "Max")
"""Operators of numbers whose results for ordinary numbers are exact in any type."""
EXACT_SPECIAL = ("Identity", "Transpose", "Flatten", "Add", "Sub", "Mul", "Neg", "Abs")
"""Operators of which it is agreed what they do with NaN and infinity."""
_BINARY = frozenset({"Add", "Sub", "Mul", "Max"})
SHAPE = (3, 4)
_SAMPLE = 8
_DIGITS_OF_DOUBLES = 1e-9
_OPERATORS = (*MOVING, *COMPUTING)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_DO_NOT_CLAIM = "What the EP cannot compute it must not claim: refuse it in get_capability, with the reason."


def one_operator(
    op_type: str, elem_type: int = TensorProto.FLOAT, shape: Sequence[int | str] = SHAPE
) -> SmallModel:
    """Return a model of one operator; one with two operands reads two inputs."""
    graph = Growing()
    inputs = [graph.input(name, shape, elem_type) for name in ("a", "b")[: 1 + (op_type in _BINARY)]]
    attributes: dict[str, Any] = {"axis": 1} if op_type == "Flatten" else {}
    given = list(shape[::-1]) if op_type == "Transpose" else list(shape)
    graph.output(graph.node(op_type, inputs, **attributes), given, elem_type)
    kind = TensorProto.DataType.Name(elem_type).lower()
    return graph.model(f"{op_type.lower()}_{kind}")


def is_valid(model: SmallModel) -> bool:
    """Whether ONNX has the operator for the type."""
    try:
        onnx.checker.check_model(model.proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def telling_feeds(model: SmallModel, seed: int = 0) -> dict[str, np.ndarray]:
    """Return inputs that need the whole of their type, digits, width and sign.

    A second input holds zeros and ones, so that sums and products of integers do not overflow.
    """
    numbers = np.random.default_rng(seed)
    return {
        value.name: _telling(numbers, value.type.tensor_type, small=place > 0)
        for place, value in enumerate(model.proto.graph.input)
    }


def _telling(numbers: np.random.Generator, kind: onnx.TypeProto.Tensor, *, small: bool) -> np.ndarray:
    shape = [d.dim_value for d in kind.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if dtype.kind not in "iub":
        return np.asarray(numbers.standard_normal(shape) + 1 / 3).astype(dtype)
    if small or dtype.kind == "b":
        return np.asarray(numbers.integers(0, 2, shape)).astype(dtype)
    limits = np.iinfo(dtype)
    array = np.asarray(numbers.integers(-5 if limits.min else 1, 6, shape)).astype(dtype)
    if array.size:
        array.flat[0] = limits.max - 8
    return array


def filled(feeds: Mapping[str, np.ndarray], values: Sequence[float]) -> dict[str, np.ndarray]:
    """Return inputs of the same shapes made of some values, in another order for each input."""
    return {
        name: np.resize(np.roll(np.asarray(values), place), array.shape).astype(array.dtype)
        for place, (name, array) in enumerate(feeds.items())
    }


def _claimed(
    scene: Scene, operators: Sequence[str], elem_type: int, shape: Sequence[int | str] = (3, 4)
) -> Iterator[SmallModel]:
    for operator in operators:
        model = one_operator(operator, elem_type, shape)
        if is_valid(model) and scene.claimed(model):
            yield model


def _some(found: Iterable[SmallModel], nothing: str) -> list[SmallModel]:
    """Return models; raise Skipped if there is none."""
    models = list(found)
    if not models:
        raise Skipped(f"the EP claims {nothing}")
    return models


def _expect(scene: Scene, model: SmallModel, feeds: Mapping[str, np.ndarray], results: Sequence[Any]) -> None:
    """Raise CheckFailed unless results are right: integers exactly, doubles to more digits than a float has."""
    reference = scene.reference(model, feeds)
    kinds = {np.asarray(wanted).dtype.kind for wanted in reference}
    tolerance = scene.requirements.tolerance
    if any(np.asarray(wanted).dtype == np.float64 for wanted in reference):
        tolerance = min(tolerance, _DIGITS_OF_DOUBLES)
    different = disagreement(results, reference, tolerance=tolerance, step=model.step)
    if different is None and kinds <= set("iub"):
        same = all(np.array_equal(a, b) for a, b in zip(results, reference, strict=True))
        different = None if same else "some integers are not exactly what they should be"
    if different is not None:
        raise CheckFailed(f"{model.name}: {different}.", hint=_DO_NOT_CLAIM)


def _expect_run(scene: Scene, model: SmallModel, feeds: Mapping[str, np.ndarray]) -> None:
    _expect(scene, model, feeds, scene.run(model, feeds))


# --- what a type can hold -------------------------------------------------------------------------------


def _of_type(elem_type: int) -> CheckFunction:
    def function(scene: Scene) -> None:
        models = _claimed(scene, _OPERATORS, elem_type)
        for model in _some(models, "none of the kit's operators on this type"):
            _expect_run(scene, model, telling_feeds(model))

    return function


for _elem_type in ELEMENT_TYPES:
    check("values", f"{TensorProto.DataType.Name(_elem_type).lower()}: what is claimed is computed as such")(
        _of_type(_elem_type)
    )


@check("values", "NaN, infinities and zeros of both signs come through")
def _special_numbers(scene: Scene) -> None:
    values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5]
    models = (model for kind in _FLOATS for model in _claimed(scene, EXACT_SPECIAL, kind))
    for model in _some(models, "no operator of which it is agreed what it does with NaN"):
        with np.errstate(all="ignore"):
            _expect_run(scene, model, filled(telling_feeds(model), values))


@check("values", "very large and very small floats come through")
def _extreme_floats(scene: Scene) -> None:
    limits = np.finfo(np.float32)
    for model in _some(_claimed(scene, MOVING, TensorProto.FLOAT), "no operator that moves floats"):
        for values in ([limits.max, limits.min], [limits.tiny, -limits.tiny]):
            _expect_run(scene, model, filled(telling_feeds(model), [float(v) for v in values]))


# --- shapes ---------------------------------------------------------------------------------------------


@check("values", "tensors without dimensions are computed", needs=["scalars"])
def _scalars(scene: Scene) -> None:
    models = _claimed(scene, ("Identity", *COMPUTING), TensorProto.FLOAT, ())
    for model in _some(models, "no operator on scalars"):
        _expect_run(scene, model, telling_feeds(model))


@check("values", "tensors without elements are computed", needs=["zero_size"])
def _zero_size(scene: Scene) -> None:
    models = (m for shape in ((0, 4), (3, 0)) for m in _claimed(scene, _OPERATORS, TensorProto.FLOAT, shape))
    for model in _some(models, "no operator on tensors without elements"):
        _expect_run(scene, model, telling_feeds(model))


def _open_models(scene: Scene) -> list[SmallModel]:
    models = [single(b, ("n", *b.shape[1:])) for b in scene.claimed_blocks if b.name in _GO_WITH_ANY_LENGTH]
    return _some(filter(scene.claimed, models), "nothing with an open dimension")[:_SAMPLE]


_GO_WITH_ANY_LENGTH = frozenset(
    {"Conv", "MatMul", "Gemm", "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Abs", "Neg"}
)


@check("values", "an open dimension may have another length in each run", needs=["dynamic_shapes"])
def _lengths(scene: Scene) -> None:
    for model in _open_models(scene):
        with scene.session(model) as session:
            for length in (2, 1, 5, 2):
                feeds = model.feeds(length, length=length)
                scene.expect_run(model, f"a run of length {length}", session, feeds=feeds)


@check("values", "an open dimension may have any length after a load", needs=["dynamic_shapes", "export"])
def _lengths_after_load(scene: Scene) -> None:
    for model in _open_models(scene)[:2]:
        with scene.session(scene.compile(model).path) as session:
            for length in (3, 1, 4):
                feeds = model.feeds(length, length=length)
                scene.expect_run(model, f"a run of length {length}", session, feeds=feeds)


@check("values", "an open dimension may have no length at all", needs=["dynamic_shapes", "zero_size"])
def _no_length(scene: Scene) -> None:
    for model in _open_models(scene):
        scene.expect_run(model, "a run of length 0", feeds=model.feeds(length=0))


@check("values", "tensors of a million elements are computed")
def _large(scene: Scene) -> None:
    for operator in _OPERATORS:
        model = one_operator(operator, TensorProto.FLOAT, (1024, 1024))
        if scene.claimed(model):
            return _expect_run(scene, model, telling_feeds(model))
    raise Skipped("the EP claims none of the kit's operators on a large tensor")


# --- one run after another ------------------------------------------------------------------------------


def _sample(scene: Scene) -> list[SmallModel]:
    models = scene.claimed_models()
    return models if scene.full else models[:_SAMPLE]


@check("values", "every piece of work that the kit has agrees with the CPU EP")
def _all_models(scene: Scene) -> None:
    for model in scene.claimed_models():
        scene.expect_run(model, "a run", feeds=model.feeds(1))


@check("values", "a run does not depend on the runs before it")
def _stateless(scene: Scene) -> None:
    for model in _sample(scene):
        first, second = model.feeds(1), model.feeds(2)
        with scene.session(model) as session:
            before = [np.array(result) for result in session.run(None, first)]
            session.run(None, second)
            again = session.run(None, first)
        different = disagreement(again, before, tolerance=scene.requirements.tolerance)
        if different is not None:
            raise CheckFailed(
                f"the same inputs give other results after a run in between ({model.name}): {different}.",
                hint="`run` is stateless: keep nothing between two calls.",
            )


@check("values", "one array may be given for several inputs")
def _same_array_twice(scene: Scene) -> None:
    for model in _some(_claimed(scene, COMPUTING, TensorProto.FLOAT), "no operator of two operands"):
        given = telling_feeds(model)["a"]
        _expect_run(scene, model, {value.name: given for value in model.proto.graph.input})


@check("values", "inputs may be views of larger arrays, or be strided")
def _views(scene: Scene) -> None:
    for model in _sample(scene):
        feeds = model.feeds(3)
        with scene.session(model) as session:
            for what, view in (
                ("a slice", _slice),
                ("a transposed array", _transposed),
                ("every second", _stride),
            ):
                given = {name: view(array) for name, array in feeds.items()}
                scene.expect_agreement(model, session.run(None, given), feeds, f"a run on {what}")


def _slice(array: np.ndarray) -> np.ndarray:
    whole = np.concatenate(
        [np.ones_like(array).reshape(-1), array.reshape(-1), np.ones_like(array).reshape(-1)]
    )
    return whole[array.size : 2 * array.size].reshape(array.shape)


def _transposed(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.T).T


def _stride(array: np.ndarray) -> np.ndarray:
    return np.stack([array, array], axis=-1)[..., 0]


# --- whose memory it is ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One runnable with its boundary.

    Attributes:
        name: the partition's.
        run: the EP's own function.
        inputs, outputs: the boundary; all types are known and all lengths fixed.
    """

    name: str
    run: Callable[..., Sequence[np.ndarray]]
    inputs: Sequence[ValueInfo]
    outputs: Sequence[ValueInfo]

    def example(self, seed: int = 0) -> list[np.ndarray]:
        """Return inputs: whole numbers from 0 to 3, which many operators give back as they are."""
        numbers = np.random.default_rng(seed)
        arrays = [numbers.integers(0, 4, _static_shape(v)).astype(v.dtype) for v in self.inputs]
        for array in arrays:
            array.setflags(write=False)
        return arrays

    def results(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run without outputs of the caller's."""
        return list(self.run(inputs, None))

    def empty_outputs(self) -> list[np.ndarray]:
        """Return memory for the results, filled with a pattern."""
        return [np.full(_static_shape(v), 3, v.dtype) for v in self.outputs]


def _static_shape(value: ValueInfo) -> tuple[int, ...]:
    return tuple(int(length) for length in value.shape or () if length is not None)


@contextmanager
def pieces(scene: Scene, models: Sequence[SmallModel]) -> Iterator[list[tuple[str, Piece]]]:
    """Give all that the EP compiles of some models, and loads again if it can: how it came about, and the piece.

    Raises:
        Skipped: there is nothing that can be run so.
    """
    found: list[tuple[str, Piece]] = []
    sessions = []
    watched, watch = scene.observed()
    with watched:
        try:
            for model in models:
                sessions.append(watched.session(model))
                if scene.requirements.export:
                    sessions.append(watched.session(watched.compile(model).path))
            for hook, boundaries, way in (
                ("compile", "partitions", "compiled"),
                ("load_context", "nodes", "loaded"),
            ):
                for call in watch.of(hook):
                    found += [(way, piece) for piece in _runnable(call.arguments[boundaries], call.result)]
            if not found:
                raise Skipped("the EP compiles nothing of which all types and lengths are known")
            yield found
        finally:
            for session in sessions:
                session.close()


def _runnable(boundaries: Sequence[Any], results: Sequence[Any]) -> Iterator[Piece]:
    for boundary, result in zip(boundaries, results, strict=True):
        values = (*boundary.inputs, *boundary.outputs)
        if result.run is not None and all(v.type.is_static and v.dtype is not None for v in values):
            yield Piece(name=boundary.name, run=result.run, inputs=boundary.inputs, outputs=boundary.outputs)


@check("values", "inputs are not written to", needs=["partitions"])
def _inputs_kept(scene: Scene) -> None:
    with pieces(scene, _sample(scene)) as found:
        for way, piece in found:
            inputs = piece.example()
            before = [array.tobytes() for array in inputs]
            piece.results(inputs)
            if [array.tobytes() for array in inputs] != before:
                raise CheckFailed(
                    f"running what was {way} changes an input of {piece.name!r}.",
                    hint="Inputs are the caller's and read-only; copy what is to be worked on.",
                )


@check("values", "results are not the inputs' memory", needs=["partitions"])
def _results_apart(scene: Scene) -> None:
    models = [*_sample(scene), *_claimed(scene, (*MOVING, "Relu", "Abs", "Max"), TensorProto.FLOAT)]
    with pieces(scene, models) as found:
        for way, piece in found:
            inputs = piece.example()
            for result in piece.results(inputs):
                if any(np.may_share_memory(result, array) for array in inputs):
                    raise CheckFailed(
                        f"a result of {piece.name!r}, which was {way}, lies in the memory of an input.",
                        hint="Copy it: the caller may change its input at once.",
                    )


@check("values", "results are not the memory of earlier results", needs=["partitions"])
def _results_kept(scene: Scene) -> None:
    with pieces(scene, _sample(scene)) as found:
        for way, piece in found:
            first = piece.results(piece.example(1))
            before = [array.tobytes() for array in first]
            piece.results(piece.example(2))
            if [array.tobytes() for array in first] != before:
                raise CheckFailed(
                    f"a second run of {piece.name!r}, which was {way}, changes the results of the first.",
                    hint="Give new memory for results, or take what the caller gives in `outputs`.",
                )


@check("values", "given outputs are written in place and returned", needs=["partitions"])
def _given_outputs(scene: Scene) -> None:
    with pieces(scene, _sample(scene)) as found:
        for way, piece in found:
            inputs, outputs = piece.example(), piece.empty_outputs()
            wanted = piece.results(inputs)
            returned = list(piece.run(inputs, outputs))
            if disagreement(outputs, wanted, tolerance=scene.requirements.tolerance) is not None:
                raise CheckFailed(
                    f"{piece.name!r}, which was {way}, does not write into the outputs that it is given.",
                    hint="run(inputs, outputs): with `outputs`, write the results there and return them.",
                )
            if not all(np.may_share_memory(a, b) for a, b in zip(returned, outputs, strict=True) if b.size):
                raise CheckFailed(
                    f"{piece.name!r}, which was {way}, returns other arrays than the outputs it was given.",
                    hint="Return `outputs` themselves.",
                )


@check(
    "values", "results are what the boundary says: type, shape, number, C-contiguous", needs=["partitions"]
)
def _boundary(scene: Scene) -> None:
    with pieces(scene, _sample(scene)) as found:
        for way, piece in found:
            results = piece.results(piece.example())
            if len(results) != len(piece.outputs):
                raise CheckFailed(
                    f"{piece.name!r} gives {len(results)} results for {len(piece.outputs)} outputs."
                )
            for value, result in zip(piece.outputs, results, strict=True):
                given = (getattr(result, "dtype", None), getattr(result, "shape", None))
                if given != (value.dtype, value.shape) or not result.flags.c_contiguous:
                    raise CheckFailed(
                        f"{piece.name!r}, which was {way}, gives {value.name!r} as {given[0]}{list(given[1] or ())}; "
                        f"the boundary says {value.type}, C-contiguous.",
                        hint="Convert types and layouts at the EP's own boundary.",
                    )


@check("values", "results outlive their session")
def _results_outlive(scene: Scene) -> None:
    for model in _sample(scene):
        feeds = model.feeds()
        results = scene.run(model, feeds)
        scene.expect_agreement(model, results, feeds, "a result that is read after its session was closed")
