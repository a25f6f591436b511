"""Results of every structure, type and shape, compared with the CPU EP's, compiled and
loaded; memory of inputs and results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from epctx_conformance import models as structures
from epctx_conformance.harness import disagreement
from epctx_conformance.models import GraphBuilder, SmallModel, is_valid, rename_values
from epctx_conformance.table import CheckFailed, CheckFunction, Skipped, check

if TYPE_CHECKING:
    from epctx_conformance.harness import Harness
    from epctx_core.plugin import ValueInfo

Feeds = Mapping[str, np.ndarray]


# --- boundaries -----------------------------------------------------------------------


def expect_agreement(
    harness: Harness, model: SmallModel, feeds: Feeds | None = None
) -> None:
    """Run a model in a session; compile it, load it and run it again; compare both with
    the CPU EP.

    Raises:
        Skipped: the EP takes nothing of it.
        CheckFailed: other results.
    """
    if not harness.claimed(model):
        raise Skipped(f"the EP takes nothing of the model {model.name}")
    harness.expect_run(model, "compiled in a session", feeds=feeds)
    if harness.requirements.export and harness.requirements.partitions:
        path = harness.compile(model)
        harness.expect_run(
            model, "compiled ahead of time and loaded", path, feeds=feeds
        )


_SEVERAL = ("several_partitions",)
_STRUCTURES: tuple[
    tuple[str, Callable[[Harness], SmallModel], tuple[str, ...]], ...
] = (
    # The least that an EP can do.
    (
        "one block gives the right results",
        lambda harness: structures.single(harness.block),
        (),
    ),
    # Five blocks.
    (
        "a chain gives the right results",
        lambda harness: structures.chain(harness.block, 5),
        (),
    ),
    # The graph declares its inputs and outputs in other orders than its nodes read and
    # make them.
    (
        "inputs and outputs in different orders are not confused",
        lambda harness: structures.side_by_side(
            harness.block,
            input_order=(2, 1, 0),
            output_order=(1, 2, 0),
            name="in_another_order",
        ),
        (),
    ),
    # Sorted as text, x10 would come before x2.
    (
        "twelve inputs are not sorted by their names",
        lambda harness: structures.side_by_side(
            harness.block, 12, name="twelve_branches"
        ),
        (),
    ),
    # Two readers inside the partition.
    (
        "two nodes may read one value",
        lambda harness: structures.forked(harness.block),
        (),
    ),
    # The value leaves the partition and stays in it.
    (
        "an output of the model may also be read inside",
        lambda harness: structures.read_inside(harness.block),
        (),
    ),
    # Both operands are one value; then two inputs of the model meet in one operator.
    (
        "one node may read one value twice",
        lambda harness: structures.joined(harness.block, twice=True),
        (),
    ),
    (
        "one node may read two inputs of the model",
        lambda harness: structures.joined(harness.block),
        (),
    ),
    # The model has more inputs than the partition.
    (
        "an input of the model may be unused",
        lambda harness: structures.with_unused_input(harness.block),
        (),
    ),
    # The value that crosses the boundary is read on both sides.
    (
        "its own nodes and others may read one value",
        lambda harness: structures.read_on_both_sides(harness.block, harness.barrier),
        _SEVERAL,
    ),
    # The second partition needs the first one's result by way of the CPU EP.
    (
        "a path may leave its nodes and come back",
        lambda harness: structures.around(harness.block, harness.barrier),
        _SEVERAL,
    ),
    # Each with weights of its own, so that a mix-up shows.
    (
        "four partitions of one model give the right results",
        lambda harness: structures.separated(harness.block, harness.barrier, 4),
        _SEVERAL,
    ),
    # Stored once or twice, it is the same.
    (
        "two partitions may read one weight",
        lambda harness: structures.separated(
            harness.weighted_block, harness.barrier, shared=True
        ),
        _SEVERAL,
    ),
    # The same numbers, written as nodes.
    (
        "weights may be Constant nodes",
        lambda harness: structures.with_constant_nodes(
            structures.chain(harness.weighted_block)
        ),
        (),
    ),
    # A megabyte or more, which EPs get as a view and not inside the model.
    (
        "weights may be large",
        lambda harness: structures.single(harness.large_block),
        (),
    ),
)
"""Title, the model, and the abilities needed."""


def _make_agreement_check(model: Callable[[Harness], SmallModel]) -> CheckFunction:
    return lambda harness: expect_agreement(harness, model(harness))


for _title, _model, _needs in _STRUCTURES:
    check("boundaries", _title, needs=_needs)(_make_agreement_check(_model))


@check("boundaries", "an input with a default may be given or left out")
def check_default(harness: Harness) -> None:
    """The caller's numbers count, not those of the model when it was compiled."""
    model = structures.joined(harness.block, default=True)
    expect_agreement(harness, model)
    other = np.full(harness.block.shape, 0.5, np.float32)
    expect_agreement(harness, model, {**model.feeds(), "w": other})


@check(
    "boundaries",
    "the branches of an If give the right results",
    needs=("control_flow_bodies",),
)
def check_subgraphs(harness: Harness) -> None:
    """Each branch in turn."""
    model = structures.in_subgraphs(harness.block)
    for condition in (True, False):
        expect_agreement(
            harness, model, {**model.feeds(), "condition": np.array(condition)}
        )


@check("boundaries", "values may have any names")
def check_names(harness: Harness) -> None:
    """Slashes, spaces, letters of other alphabets, and a name of 300 characters."""
    model = structures.side_by_side(harness.block, 2).copy("strange_names")
    strange = (
        "/layer.0/x:0",
        "a b",
        "größe",
        "名前",
        "x" * 300,
        "..",
        "CON",
        "%s{}\\",
        "'\"",
    )
    graph = model.proto.graph
    names = [value.name for value in (*graph.input, *graph.output, *graph.initializer)]
    renamed = dict(zip(names, strange, strict=False))
    rename_values(graph, lambda name: renamed.get(name, name))
    expect_agreement(harness, model)


# --- types, numbers and shapes --------------------------------------------------------


ELEMENT_TYPES = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE,
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
    TensorProto.BOOL,
)  # fmt: skip
"""Types that a boundary may carry and numpy can compute with."""

MOVING = ("Identity", "Transpose", "Flatten")
"""Operators that do not change elements."""
COMPUTING = ("Add", "Sub", "Mul", "Neg", "Abs", "Relu", "Max")
"""Operators of numbers whose results for ordinary numbers are exact in any type."""
EXACT_SPECIAL = ("Identity", "Transpose", "Flatten", "Add", "Sub", "Mul", "Neg", "Abs")
"""Operators whose results for NaN and infinity are agreed upon."""
_BINARY = frozenset({"Add", "Sub", "Mul", "Max"})
SHAPE = (3, 4)
_SAMPLE = 8
_DIGITS_OF_DOUBLES = 1e-9
_OPERATORS = (*MOVING, *COMPUTING)
_FLOATS = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.DOUBLE,
)


def one_operator(
    op_type: str, elem_type: int = TensorProto.FLOAT, shape: Sequence[int | str] = SHAPE
) -> SmallModel:
    """Return a model of one operator; one with two operands reads two inputs."""
    graph = GraphBuilder()
    inputs = [
        graph.input(name, shape, elem_type)
        for name in ("a", "b")[: 1 + (op_type in _BINARY)]
    ]
    attributes: dict[str, Any] = {"axis": 1} if op_type == "Flatten" else {}
    result = shape[::-1] if op_type == "Transpose" else shape
    graph.output(graph.node(op_type, inputs, **attributes), result, elem_type)
    return graph.model(
        f"{op_type.lower()}_{TensorProto.DataType.Name(elem_type).lower()}"
    )


def exacting_feeds(model: SmallModel) -> dict[str, np.ndarray]:
    """Return inputs that need the whole of their type: digits, width and sign.

    A second input holds zeros and ones, so that sums and products of integers do not
    overflow.
    """
    numbers = np.random.default_rng(0)
    return {
        value.name: _make_exacting_values(
            numbers, value.type.tensor_type, small=index > 0
        )
        for index, value in enumerate(model.proto.graph.input)
    }


def _make_exacting_values(
    numbers: np.random.Generator, tensor: onnx.TypeProto.Tensor, *, small: bool
) -> np.ndarray:
    shape = [d.dim_value for d in tensor.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind not in "iub":
        return np.asarray(numbers.standard_normal(shape) + 1 / 3).astype(dtype)
    if small or dtype.kind == "b":
        return np.asarray(numbers.integers(0, 2, shape)).astype(dtype)
    limits = np.iinfo(dtype)
    array = np.asarray(numbers.integers(-5 if limits.min else 1, 6, shape)).astype(
        dtype
    )
    if array.size:
        array.flat[0] = limits.max - 8
    return array


def _make_special_feeds(model: SmallModel) -> dict[str, np.ndarray]:
    return _fill(model, [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5])


def _make_extreme_feeds(model: SmallModel) -> dict[str, np.ndarray]:
    limits = np.finfo(np.float32)
    return _fill(
        model,
        [float(limit) for limit in (limits.max, limits.min, limits.tiny, -limits.tiny)],
    )


def _fill(model: SmallModel, values: Sequence[float]) -> dict[str, np.ndarray]:
    """Return inputs made of some values, in another order for each input."""
    return {
        name: np.resize(np.roll(np.asarray(values), index), array.shape).astype(
            array.dtype
        )
        for index, (name, array) in enumerate(model.feeds().items())
    }


def _repeat_array(model: SmallModel) -> dict[str, np.ndarray]:
    return dict.fromkeys(
        [value.name for value in model.proto.graph.input], exacting_feeds(model)["a"]
    )


def _list_claimed(
    harness: Harness,
    operators: Sequence[str],
    types: Sequence[int] = _FLOATS[:1],
    *shapes: tuple[int, ...],
) -> Iterator[SmallModel]:
    for elem_type in types:
        for shape in shapes or (SHAPE,):
            models = (
                one_operator(operator, elem_type, shape) for operator in operators
            )
            yield from (
                model for model in models if is_valid(model) and harness.claimed(model)
            )


def _require(candidates: Iterable[SmallModel], nothing: str) -> list[SmallModel]:
    """Return models; raise Skipped if there is none."""
    models = list(candidates)
    if not models:
        raise Skipped(f"the EP claims {nothing}")
    return models


def _expect_exact(harness: Harness, model: SmallModel, feeds: Feeds) -> None:
    """Raise CheckFailed unless results are right: integers exactly, doubles to more
    digits than a float has.
    """
    with np.errstate(all="ignore"):
        results = harness.run(model, feeds)
        reference = harness.reference(model, feeds)
    dtypes = {np.asarray(expected).dtype for expected in reference}
    tolerance = harness.requirements.tolerance
    if np.dtype(np.float64) in dtypes:
        tolerance = min(tolerance, _DIGITS_OF_DOUBLES)
    different = disagreement(results, reference, tolerance=tolerance, step=model.step)
    if different is None and all(dtype.kind in "iub" for dtype in dtypes):
        same = all(
            np.array_equal(a, b) for a, b in zip(results, reference, strict=True)
        )
        different = None if same else "some integers are not exact"
    if different is not None:
        raise CheckFailed(
            f"{model.name}: {different}.",
            hint=(
                "Refuse in get_capability, with the reason, what the EP cannot compute."
            ),
        )


_EXACT: tuple[
    tuple[
        str,
        str,
        Callable[[Harness], Iterator[SmallModel]],
        Callable[[SmallModel], Feeds],
        tuple[str, ...],
    ],
    ...,
] = (
    (
        ("NaN, infinities and signed zeros give the right results"),
        "no operator whose result for NaN is agreed upon",
        lambda harness: _list_claimed(harness, EXACT_SPECIAL, _FLOATS),
        _make_special_feeds,
        (),
    ),
    (
        ("very large and very small floats give the right results"),
        "no operator that moves floats",
        lambda harness: _list_claimed(harness, MOVING),
        _make_extreme_feeds,
        (),
    ),
    (
        "scalars give the right results",
        "no operator on scalars",
        lambda harness: _list_claimed(
            harness, ("Identity", *COMPUTING), _FLOATS[:1], ()
        ),
        exacting_feeds,
        ("scalars",),
    ),
    (
        "tensors without elements give the right results",
        "no operator on tensors without elements",
        lambda harness: _list_claimed(harness, _OPERATORS, _FLOATS[:1], (0, 4), (3, 0)),
        exacting_feeds,
        ("zero_size",),
    ),
    (
        "tensors of a million elements give the right results",
        "none of the kit's operators on a large tensor",
        lambda harness: islice(
            _list_claimed(harness, _OPERATORS, _FLOATS[:1], (1024, 1024)), 1
        ),
        exacting_feeds,
        (),
    ),
    (
        "one array may be given for several inputs",
        "no operator of two operands",
        lambda harness: _list_claimed(harness, COMPUTING),
        _repeat_array,
        (),
    ),
)
"""Title, a name of the models in a reason to skip, the models, their inputs, and the
abilities needed.
"""


def _make_exact_check(
    nothing: str,
    models: Callable[[Harness], Iterator[SmallModel]],
    feeds: Callable[[SmallModel], Feeds],
) -> CheckFunction:
    def function(harness: Harness) -> None:
        for model in _require(models(harness), nothing):
            _expect_exact(harness, model, feeds(model))

    return function


def _make_type_check(elem_type: int) -> CheckFunction:
    nothing = "none of the kit's operators on this type"
    return _make_exact_check(
        nothing,
        lambda harness: _list_claimed(harness, _OPERATORS, [elem_type]),
        exacting_feeds,
    )


for _elem_type in ELEMENT_TYPES:
    _name = TensorProto.DataType.Name(_elem_type).lower()
    check("values", f"{_name}: what it claims gives the right results")(
        _make_type_check(_elem_type)
    )
for _title, _nothing, _models, _feeds, _needs in _EXACT:
    check("values", _title, needs=_needs)(_make_exact_check(_nothing, _models, _feeds))


def _open_models(harness: Harness) -> list[SmallModel]:
    blocks = (block for block in harness.claimed_blocks if block.name in _ANY_LENGTH)
    models = (structures.single(block, ("n", *block.shape[1:])) for block in blocks)
    return _require(filter(harness.claimed, models), "nothing with an open dimension")[
        :_SAMPLE
    ]


_ANY_LENGTH = frozenset(
    {"Conv", "MatMul", "Gemm", "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Abs", "Neg"}
)


@check(
    "values",
    "an open dimension may have another length in each run",
    needs=["dynamic_shapes"],
)
def check_lengths(harness: Harness) -> None:
    """In a session, and where it can be after a load.

    Without elements, too, which no EP expects.
    """
    export = harness.requirements.export and harness.requirements.partitions
    for model in _open_models(harness):
        for source in (model, harness.compile(model)) if export else (model,):
            with harness.session(source) as session:
                for length in (2, 1, 5, 2, *[0] * harness.requirements.zero_size):
                    feeds = model.feeds(length, length=length)
                    harness.expect_run(
                        model, f"a run of length {length}", session, feeds=feeds
                    )


# --- one run after another ------------------------------------------------------------


def _choose_sample(harness: Harness) -> list[SmallModel]:
    models = harness.claimed_models()
    return models if harness.full else models[:_SAMPLE]


@check("values", "every model that it takes agrees with the CPU EP")
def check_all_models(harness: Harness) -> None:
    """The session of each is closed before its results are read.

    The models of the EP's author are loaded, too.
    """
    for model in harness.claimed_models():
        harness.expect_run(model, "a run", feeds=model.feeds(1))
    for model in harness.own_models:
        expect_agreement(harness, model)


@check("values", "a run does not depend on earlier runs")
def check_stateless(harness: Harness) -> None:
    """The same inputs before and after others."""
    for model in _choose_sample(harness):
        with harness.session(model) as session:
            for seed in (1, 2, 1):
                results = session.run(None, model.feeds(seed))
                what = f"run with the inputs of seed {seed}, after others"
                hint = "`run` is stateless: keep nothing between two calls."
                harness.expect_agreement(
                    model, results, model.feeds(seed), what, hint=hint
                )


@check("values", "inputs may be views of larger arrays, or be strided")
def check_views(harness: Harness) -> None:
    """Memory in which an input is not alone, or not in order."""
    for model in _choose_sample(harness):
        feeds = model.feeds(3)
        with harness.session(model) as session:
            for what, view in _VIEWS.items():
                results = session.run(
                    None, {name: view(array) for name, array in feeds.items()}
                )
                harness.expect_agreement(model, results, feeds, f"a run on {what}")


_VIEWS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "a slice": lambda array: np.stack(
        [np.ones_like(array), array, np.ones_like(array)]
    )[1],
    "a transposed array": lambda array: np.ascontiguousarray(array.T).T,
    "every second": lambda array: np.stack([array, array], axis=-1)[..., 0],
}


# --- memory ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Runnable:
    """Compiled partition with its boundary.

    Attributes:
        name: the partition's, and how it came about.
        run: the EP's own function.
        inputs, outputs: arrays of the boundary's types and shapes.
    """

    name: str
    run: Callable[..., Sequence[np.ndarray]]
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]

    def example(self, seed: int = 0) -> list[np.ndarray]:
        """Return inputs: whole numbers from 0 to 3, which many operators give back as
        they are.
        """
        numbers = np.random.default_rng(seed)
        arrays = [
            numbers.integers(0, 4, each.shape).astype(each.dtype)
            for each in self.inputs
        ]
        for array in arrays:
            array.setflags(write=False)
        return arrays


def _make_array(value: ValueInfo) -> np.ndarray:
    return np.full(
        [int(length) for length in value.shape or () if length is not None],
        3,
        value.dtype,
    )


@contextmanager
def runnables(
    harness: Harness, models: Sequence[SmallModel]
) -> Iterator[list[Runnable]]:
    """Provide all partitions that the EP compiles of some models, and loads again if it
    can.

    Raises:
        Skipped: nothing can be run so.
    """
    other, watch = harness.observed()
    with ExitStack() as sessions:
        for model in models:
            sessions.enter_context(other.session(model))
            if harness.requirements.export:
                sessions.enter_context(other.session(other.compile(model)))
        runs = [
            Runnable(
                name=f"{boundary.name!r}, {way},",
                run=result.run,
                inputs=[_make_array(value) for value in boundary.inputs],
                outputs=[_make_array(value) for value in boundary.outputs],
            )
            for hook, boundaries, way in (
                ("compile", "partitions", "compiled"),
                ("load_context", "nodes", "loaded"),
            )
            for call in watch.of(hook)
            for boundary, result in zip(
                call.arguments[boundaries], call.result, strict=True
            )
            if result.run is not None
            and all(
                v.type.is_static and v.dtype is not None
                for v in (*boundary.inputs, *boundary.outputs)
            )
        ]
        if not runs:
            raise Skipped(
                "the EP compiles no partition whose types and lengths are all known"
            )
        yield runs


def _check_runnables(
    title: str,
    hint: str,
    models: Callable[[Harness], Sequence[SmallModel]] = _choose_sample,
) -> Callable[[Callable[[Harness, Runnable], str | None]], None]:
    """Put a check of each runnable into the table; the function returns the fault of
    one, or None.
    """

    def add(find_fault: Callable[[Harness, Runnable], str | None]) -> None:
        def function(harness: Harness) -> None:
            with runnables(harness, models(harness)) as runs:
                for runnable in runs:
                    fault = find_fault(harness, runnable)
                    if fault is not None:
                        raise CheckFailed(f"{runnable.name} {fault}.", hint=hint)

        check("values", title, needs=["partitions"])(function)

    return add


@_check_runnables(
    "it does not write to inputs",
    "Inputs are the caller's and read-only; copy what is to be worked on.",
)
def _find_changed_input(_harness: Harness, runnable: Runnable) -> str | None:
    inputs = runnable.example()
    before = [array.tobytes() for array in inputs]
    runnable.run(inputs, None)
    return (
        None if [array.tobytes() for array in inputs] == before else "changes an input"
    )


@_check_runnables(
    "results do not share memory with inputs",
    "Copy it: the caller may change its input at once.",
    lambda harness: [
        *_choose_sample(harness),
        *_list_claimed(harness, (*MOVING, "Relu", "Abs", "Max")),
    ],
)
def _find_shared_memory(_harness: Harness, runnable: Runnable) -> str | None:
    inputs = runnable.example()
    results = runnable.run(inputs, None)
    shared = any(
        np.may_share_memory(result, array) for result in results for array in inputs
    )
    return "gives a result in the memory of an input" if shared else None


@_check_runnables(
    "results do not share memory with earlier results",
    "Give new memory for results, or take what the caller gives in `outputs`.",
)
def _find_changed_result(_harness: Harness, runnable: Runnable) -> str | None:
    first = list(runnable.run(runnable.example(1), None))
    before = [array.tobytes() for array in first]
    runnable.run(runnable.example(2), None)
    return (
        None
        if [array.tobytes() for array in first] == before
        else "changes results of an earlier run"
    )


@_check_runnables(
    "it writes given outputs in place and returns them",
    "run(inputs, outputs): with `outputs`, write the results there and return them.",
)
def _find_ignored_output(harness: Harness, runnable: Runnable) -> str | None:
    inputs = runnable.example()
    outputs = [array.copy() for array in runnable.outputs]
    expected = runnable.run(inputs, None)
    returned = runnable.run(inputs, outputs)
    if (
        disagreement(outputs, expected, tolerance=harness.requirements.tolerance)
        is not None
    ):
        return "does not write into the outputs that it is given"
    same = all(
        np.may_share_memory(a, b)
        for a, b in zip(returned, outputs, strict=True)
        if b.size
    )
    return None if same else "returns other arrays than the outputs that it is given"


@_check_runnables(
    "results have the boundary's types and shapes, and are C-contiguous",
    "Convert types and layouts at the EP's own boundary.",
)
def _find_wrong_boundary(_harness: Harness, runnable: Runnable) -> str | None:
    results = runnable.run(runnable.example(), None)
    if len(results) != len(runnable.outputs):
        return f"gives {len(results)} results for {len(runnable.outputs)} outputs"
    for index, (expected, result) in enumerate(
        zip(runnable.outputs, results, strict=True)
    ):
        dtype = getattr(result, "dtype", None)
        shape = getattr(result, "shape", None)
        if (dtype, shape) != (
            expected.dtype,
            expected.shape,
        ) or not result.flags.c_contiguous:
            return (
                f"gives output {index} as {dtype}{list(shape or ())}; "
                f"expected {expected.dtype}{list(expected.shape)}, C-contiguous"
            )
    return None
