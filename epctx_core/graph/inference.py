"""Types of values: inferred by onnx from a model's inputs, completed by the model's
declarations.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Sequence,
)
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, TypeAlias

import onnx
from onnx import (
    GraphProto,
    ModelProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from epctx_core.errors import InvalidGraph, quote
from epctx_core.graph.index import find_constants
from epctx_core.graph.model_io import get_structure
from epctx_core.graph.preconditions import (
    check_preconditions,
    find_schema,
    hide_untyped,
    show_hidden,
)
from epctx_core.graph.type_table import (
    TypeTable,
    forget_shape,
    is_open,
    list_dimensions,
    list_initializer_types,
    make_tensor_type,
    may_have_shape,
    restore_declared,
    types_of,
)
from epctx_core.graph.walks import (
    OVERRIDABLE_SINCE,
    Operators,
    copy_message,
    keep_messages,
    list_given_names,
    list_operators,
    list_shaped_types,
    read_opset_imports,
    walk_graphs,
)
from epctx_core.graph.weights import is_detached

if TYPE_CHECKING:
    from epctx_core.plugin import TensorType

_REFUSALS = (
    onnx.shape_inference.InferenceError,
    ValueError,
    RuntimeError,
    onnx.checker.ValidationError,
)


_Hint: TypeAlias = "tuple[ValueInfoProto, ValueInfoProto, TypeProto, bool, bool]"
"""A declared value; the value as inferred; its type with what the declaration adds;
whether that is more than names of open lengths; and whether inference proves the
declaration wrong, all of it or a part.
"""


_MADE_UP = "unk__"
"""Beginning of the names that inference makes up for lengths."""

_RESERVED = "epctx.reserved"
"""Value of a probe whose lengths have the names that inference is not to make up."""


def remove_hints(
    model: ModelProto,
    operators: Operators,
    trusted: Container[str],
    used: Collection[str],
) -> ModelProto:
    """Return a copy of a model in which only inputs and initializers have shapes, and
    each open length of an input has a name.

    Args:
        model: the model.
        operators: those of its nodes.
        trusted: names of other values with shapes that stay.
        used: names that the model declares for lengths; inference makes up others.
    """
    probe: ModelProto = copy_message(model)
    _remove_defaults(probe)

    # A name lets inference see that two lengths computed from one open length are
    # equal.
    names = (name for number in count() if (name := f"{_MADE_UP}{number}") not in used)
    for dim in list_dimensions(probe.graph.input):
        if is_open(dim) and not dim.dim_param:
            dim.dim_param = next(names)
    for path, graph in walk_graphs(probe.graph, operators=operators):
        for value in _list_hinted_values(graph, main=not path):
            if value.name not in trusted:
                forget_shape(value.type)
        _restate_given_values(graph)

    # onnx makes up such names, too, and no one that is in the model. A name that is not
    # UTF-8 is bytes.
    if reserved := sorted(name for name in used if str(name).startswith(_MADE_UP)):
        type_ = onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, reserved)
        probe.graph.value_info.add(name=_RESERVED, type=type_)
    return probe


def _remove_defaults(model: ModelProto) -> None:
    """Remove initializers that are also inputs, in place: a caller may give another
    value, from which onnx would compute other shapes.

    Raises:
        InvalidGraph: one is not of its input's type or shape.
    """
    if model.ir_version < OVERRIDABLE_SINCE:
        return
    inputs = {value.name: value.type for value in model.graph.input}
    defaults = [t for t in model.graph.initializer if t.name in inputs]
    if not defaults:
        return

    for default in list_initializer_types(GraphProto(initializer=defaults)):
        declared, actual = map(make_tensor_type, (inputs[default.name], default.type))
        if declared.elem_type not in {None, actual.elem_type} or not may_have_shape(
            declared, actual.shape
        ):
            raise InvalidGraph(
                f"the input {default.name!r} is declared {declared}, and its default "
                f"value is {actual}."
            )

    keep_messages(model.graph.initializer, lambda tensor: tensor.name not in inputs)


def _restate_given_values(graph: GraphProto) -> None:
    """Drop from value_info what inputs and initializers type already, and give outputs
    that are one of them its type, in place.

    torch's exporter repeats initializers in value_info, and an initializer may be an
    output. onnx would read the type there and, as it lacks the shape, take the tensor
    for one that it knows nothing of: Slice then cuts other axes than it says.
    """
    given_names = set(list_given_names(graph))
    keep_messages(graph.value_info, lambda value: value.name not in given_names)

    # Such outputs are few, and most models have none.
    repeated = [value for value in graph.output if value.name in given_names]
    if repeated:
        names = {value.name for value in repeated}
        stated = (*list_initializer_types(graph, names), *graph.input)
        types = {value.name: value.type for value in stated}
        for value in repeated:
            value.type.CopyFrom(types.get(value.name, value.type))


def _list_hinted_values(graph: GraphProto, *, main: bool) -> Iterator[ValueInfoProto]:
    """Yield the declarations of a graph that prove nothing; inputs of a subgraph may
    change from run to run.
    """
    return chain(graph.output, graph.value_info, () if main else graph.input)


def _find_hints(
    declared: GraphProto,
    inferred: GraphProto,
    operators: Operators,
    names: Container[str],
) -> Iterator[_Hint]:
    """Yield the additions of a graph's and its subgraphs' declarations to types
    inferred without them.

    Args:
        declared: the graph.
        inferred: the same graph, inferred; a value that it does not know is added.
        operators: those of its nodes.
        names: the open lengths of the model's inputs, which are known to be open.
    """
    for (path, declared_graph), (_, inferred_graph) in zip(
        walk_graphs(declared, operators=operators),
        walk_graphs(inferred, operators=operators),
        strict=True,
    ):
        hinted = list(_list_hinted_values(declared_graph, main=not path))
        names_of_hints = {value.name for value in hinted}
        # Of two with one name the first counts.
        values = {
            value.name: value
            for value in reversed(
                [
                    *inferred_graph.input,
                    *list_initializer_types(inferred_graph, names_of_hints),
                    *inferred_graph.output,
                    *inferred_graph.value_info,
                ]
            )
        }
        for value in hinted:
            target = values.get(value.name)
            if target is None:
                target = values[value.name] = inferred_graph.value_info.add(
                    name=value.name
                )
            if value.type != target.type:
                yield _make_hint(value, target, names)


def _make_hint(
    declared: ValueInfoProto, target: ValueInfoProto, names: Container[str]
) -> _Hint:
    type_: TypeProto = copy_message(target.type)
    if type_.WhichOneof("value") is None:
        type_.CopyFrom(declared.type)
        forget_shape(type_)
    elif make_tensor_type(declared.type).elem_type not in {
        None,
        type_.tensor_type.elem_type,
    }:
        # A type that operators refute was refused before: it is an initializer's.
        return declared, target, type_, False, True

    if not (
        type_.HasField("tensor_type") and declared.type.tensor_type.HasField("shape")
    ):
        return declared, target, type_, target.type.WhichOneof("value") is None, False
    hinted = declared.type.tensor_type.shape.dim
    adds_length = not type_.tensor_type.HasField("shape")
    if adds_length:
        type_.tensor_type.shape.SetInParent()
        type_.tensor_type.shape.dim.extend([type(dim)() for dim in hinted])
    dims = type_.tensor_type.shape.dim
    refuted = len(dims) != len(hinted)
    for dim, hint in () if refuted else zip(dims, hinted, strict=True):
        if is_open(hint):
            if hint.dim_param and is_open(dim):
                dim.dim_param = hint.dim_param
        elif is_open(dim) and dim.dim_param not in names:
            dim.dim_value = hint.dim_value
            adds_length = True
        elif dim.dim_value != hint.dim_value or is_open(dim):
            refuted = True

    return declared, target, type_, adds_length, refuted


PROPAGATING = frozenset(
    """
    Add Cast Concat Gather Mul Shape Size Slice Squeeze Sub Unsqueeze
    """.split()  # noqa: SIM905 - names read better without quotes and commas
)
"""Operators through which onnx follows the elements of a shape."""

_STEP_TYPES = frozenset({TensorProto.INT32, TensorProto.INT64})
LONGEST_STEP = 1 << 30
"""Step above which onnx, following the elements of a shape, leaves its 32 bits."""

LONGEST_SHAPE = 4096
"""Elements above which a vector is data, and no shape or list of axes."""

_TYPES_CONTRADICT = ("elem type differs", "has inconsistent type")
_DECLARATION_CONTRADICTS = ("existing shape differ", "existing elem type")
"""Words of onnx about a declaration that its operators contradict."""


_FINDING = " (op_type:"
_FOLLOWS = "expected to have type but instead is null"
_HEADING = "Inference error(s):"
"""Words with which onnx begins a finding, that are in a finding which follows from
another, and with which the finding of a node around others ends.
"""


def infer_types(
    proto: ModelProto,
    resolve: Callable[[ModelProto], None] | None = None,
    trusted: Container[str] = (),
    operators: Operators | None = None,
) -> TypeTable:
    """Infer the types of a model's values from its inputs, then complete them by the
    model's declarations; lengths have the names that the model declares, and no others.

    Args:
        proto: the model, without its large weights. Declarations that are refuted are
            corrected, and those of outputs completed, in place.
        resolve: declares the types that inference left open, in place; called for
            operators that onnx does not know.
        trusted: names of values with declared types that are no hints.
        operators: those of its nodes, if they are known.

    Raises:
        InvalidGraph: the model's own element types contradict each other. Shapes may:
            for onnxruntime, too, declared shapes are hints.
    """
    if operators is None:
        operators = list_operators(proto.graph)
    check_preconditions(proto, operators)
    declaring = restore_declared(proto.graph, operators)
    declared_names = {
        dim.dim_param
        for type_ in _walk_types([declaring], operators)
        for tensor in list_shaped_types(type_)
        for dim in tensor.shape.dim
    } | {""}
    probe = remove_hints(get_structure(proto), operators, trusted, declared_names)
    names = {dim.dim_param for dim in list_dimensions(probe.graph.input)} - {""}
    proven = _infer_completely(probe, resolve, operators)
    keep_messages(proven.graph.value_info, lambda value: value.name != _RESERVED)
    hints = list(_find_hints(declaring, proven.graph, operators, names))

    refuted = _settle_hints(proto, hints)
    for value, given in zip(proven.graph.input, proto.graph.input, strict=False):
        value.CopyFrom(given)
    typed = [proven.graph]
    additions = [(target, type_) for _, target, type_, adds, _ in hints if adds]
    if additions:
        typed.append(copy_message(proven.graph))
        for target, type_ in additions:
            target.type.CopyFrom(type_)
        typed[0] = _infer_completely(proven, resolve, operators).graph

    # Most models get none.
    if any(_MADE_UP.encode() in graph.SerializeToString() for graph in typed):
        actual_types = (actual for _, actual in refuted.values())
        types = chain(_walk_types([proto.graph, *typed], operators), actual_types)
        _forget_made_up_names(types, declared_names)
    proven_types = types_of(typed[-1])
    table = types_of(typed[0], proven_types) if additions else proven_types
    table.contradictions = {
        name: f"{name!r} is declared {declared} but is {make_tensor_type(actual)}"
        for name, (declared, actual) in refuted.items()
    }
    return table


def _settle_hints(
    proto: ModelProto, hints: Sequence[_Hint]
) -> dict[str, tuple[TensorType, TypeProto]]:
    """Give values what declarations add without a length, and declarations what is
    known of their values, in place.

    Returns:
        By name the declared and the true type of values that are declared wrong.
    """
    # Asked before the declarations are corrected. A tensor needs no other witness.
    graphs = walk_graphs(proto.graph) if any(wrong for *_, wrong in hints) else ()
    tensors = {tensor.name for _, graph in graphs for tensor in graph.initializer}
    # Ours alone is no witness against a model: it sees the model without its shapes.
    is_agreed = any(wrong and value.name not in tensors for value, *_, wrong in hints)
    if is_agreed:
        text = _refute(copy_message(get_structure(proto)))
        is_agreed = any(words in text for words in _DECLARATION_CONTRADICTS)
    outputs = {value.name for value in proto.graph.output}
    refuted: dict[str, tuple[TensorType, TypeProto]] = {}
    for declaration, target, type_, adds_length, is_refuted in hints:
        if is_refuted:
            declared = make_tensor_type(declaration.type)
            actual = make_tensor_type(target.type)
            if target.name in tensors or (
                is_agreed and not may_have_shape(declared, actual.shape)
            ):
                said = copy_message(target.type) if adds_length else type_
                refuted[target.name] = declared, said
        if not adds_length:
            target.type.CopyFrom(type_)
        if is_refuted or (
            declaration.name in outputs and type_.HasField("tensor_type")
        ):
            _correct(declaration.type, type_)
    return refuted


def _correct(declared: TypeProto, actual: TypeProto) -> None:
    """Make a declaration say a value's type, in place; its denotations stay."""
    type_: TypeProto = copy_message(actual)
    if declared.denotation:
        type_.denotation = declared.denotation
    dims = declared.tensor_type.shape.dim
    for dim, before in zip(type_.tensor_type.shape.dim, dims, strict=False):
        if before.denotation:
            dim.denotation = before.denotation
    declared.CopyFrom(type_)


def _forget_made_up_names(types: Iterable[TypeProto], declared: Container[str]) -> None:
    """Remove the names of lengths that the model does not declare, in place.

    They are no news to anybody: onnxruntime shows none, and the next inference makes
    up others.
    """
    # Most values have one of a few types.
    clean: set[bytes] = set()
    for type_ in types:
        if type_.SerializeToString() in clean:
            continue
        for tensor in list_shaped_types(type_):
            for dim in tensor.shape.dim:
                if dim.dim_param not in declared:
                    dim.ClearField("dim_param")
        clean.add(type_.SerializeToString())


def _walk_types(
    graphs: Iterable[GraphProto], operators: Operators
) -> Iterator[TypeProto]:
    """Yield the types of all values of graphs and their subgraphs."""
    for graph in graphs:
        for _, each in walk_graphs(graph, operators=operators):
            for value in chain(each.input, each.output, each.value_info):
                yield value.type


def prove_wrong(proto: ModelProto) -> str:
    """Return what onnx's strict inference refuses of a model; empty where there is
    nothing. Declared lengths are hints and left out.
    """
    probe: ModelProto = copy_message(get_structure(proto))
    del probe.graph.value_info[:]
    for value in probe.graph.output:
        forget_shape(value.type)
    return _refute(probe)


def _refute(probe: ModelProto) -> str:
    """Return what onnx's strict inference refuses of a model, which is changed."""
    try:
        infer_safely(probe, strict=True)
    except RuntimeError:  # inference itself gave up, which proves nothing
        return ""
    except _REFUSALS as error:
        return quote_findings(error)
    return ""


def _infer_completely(
    probe: ModelProto,
    resolve: Callable[[ModelProto], None] | None,
    operators: Operators,
) -> ModelProto:
    """Return a model with inferred types, of operators unknown to onnx too."""
    hidden = hide_untyped(probe, operators)
    inferred = _infer(probe, operators)

    versions = read_opset_imports(inferred)
    if resolve is not None and any(
        find_schema(*operator, versions.get(operator[0], 1)) is None
        for operator in operators
    ):
        resolve(inferred)

    if hidden:
        show_hidden(inferred)
        # What was unknown may be declared now.
        if hide_untyped(inferred, operators) < hidden:
            inferred = _infer(inferred, operators)
        show_hidden(inferred)

    return inferred


def infer_safely(probe: ModelProto, *, strict: bool) -> ModelProto:
    """Return a model with the types that onnx infers, following the elements of shapes
    where it can; what it would not survive is left out.

    Args:
        probe: the model; nodes are hidden in it, see `hide_untyped`.
        strict: whether to raise for what contradicts itself.

    Raises:
        InferenceError, ValidationError, ValueError: of onnx, for a wrong model.
        RuntimeError: onnx gave up.
    """
    operators = list_operators(probe.graph)
    hide_untyped(probe, operators)
    inferred = _follow_shapes(probe, operators, strict=strict)
    show_hidden(inferred)
    return inferred


def quote_findings(error: BaseException) -> str:
    """Return the text of strict inference about a wrong model, without what it says of
    each node behind a fault: that it has no input, as nothing was inferred there.
    """
    first, *findings = quote(error).split(_FINDING)
    told = [each for each in findings if _FOLLOWS not in each]
    if all(each.endswith(_HEADING) for each in told):
        told = findings  # there is no other fault
    return _FINDING.join([first, *told])


def _infer(proto: ModelProto, operators: Operators) -> ModelProto:
    """Return a model with inferred types; strictly first, as lenient inference hides
    contradictions.
    """
    try:
        return _follow_shapes(proto, operators, strict=True)
    except _REFUSALS as error:
        text = quote_findings(error)
        contradict = any(sign in text for sign in _TYPES_CONTRADICT)
        if contradict and isinstance(error, onnx.shape_inference.InferenceError):
            raise InvalidGraph(f"type inference refuses the model: {text}") from error
    try:
        return _follow_shapes(proto, operators, strict=False)
    except _REFUSALS as error:
        raise InvalidGraph(
            f"shape inference refuses the model: {quote(error)}"
        ) from error


def _follow_shapes(
    proto: ModelProto, operators: Operators, *, strict: bool
) -> ModelProto:
    """Return a model with the types that onnx infers, following the elements of shapes
    where it can.
    """
    infer = partial(
        onnx.shape_inference.infer_shapes, proto, check_type=strict, strict_mode=strict
    )
    inferred: ModelProto = infer(data_prop=False)
    if _follows_shapes(inferred.graph, operators):
        inferred = infer(data_prop=True)
    return inferred


def _follows_shapes(graph: GraphProto, operators: Operators) -> bool:
    """Return whether inference is to follow the elements of shapes through a graph:
    an operator can compute a shape, no value is too long to be one, and no slice takes
    steps with which onnx would never arrive.
    """
    names = {op_type for _, op_type in operators}
    return not (
        PROPAGATING.isdisjoint(names)
        or _has_long_vectors(graph)
        or ("Slice" in names and _has_long_steps(graph))
    )


def _has_long_steps(graph: GraphProto) -> bool:
    """Return whether a Slice may have steps that do not fit into the number that onnx
    counts with; ONNX allows them. Only constants are sure to fit.
    """
    graphs = [each for _, each in walk_graphs(graph)]
    nodes = [node for each in graphs for node in each.node]
    steps = {n.input[4] for n in nodes if n.op_type == "Slice" and n.input[4:]} - {""}
    tensors = [t for each in graphs for t in each.initializer if t.name in steps]
    makers = [node for node in nodes if not steps.isdisjoint(node.output)]
    constants = [*find_constants(makers)]
    # The others are inputs.
    known = {t.name for t in tensors}.union(name for name, _ in constants)
    tensors += [tensor for _, tensor in constants]
    return not (
        steps <= known and len(constants) == len(makers) and all(map(_fits, tensors))
    )


def _fits(steps: TensorProto) -> bool:
    """Return whether steps are short."""
    if is_detached(steps) or steps.data_type not in _STEP_TYPES:
        return False
    values = onnx.numpy_helper.to_array(steps).astype(float)
    return bool((abs(values) <= LONGEST_STEP).all())


def _has_long_vectors(graph: GraphProto) -> bool:
    """Return whether a value has one dimension and is too long to be a shape.

    Data propagation keeps some 70 bytes for each element of such a value, whatever its
    type.
    """
    for _, each in walk_graphs(graph):
        values = (*each.input, *each.output, *each.value_info)
        shapes = [value.type.tensor_type.shape.dim for value in values]
        lengths = [dims[0].dim_value for dims in shapes if len(dims) == 1]
        lengths += [t.dims[0] for t in each.initializer if len(t.dims) == 1]
        if max(lengths, default=0) > LONGEST_SHAPE:
            return True
    return False
