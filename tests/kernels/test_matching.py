"""A kernel fits a node by operator, version and types; the first one that fits is taken."""

from __future__ import annotations

import pytest
from graph.making import FLOAT, INT64, indexed, model, node, value
from onnx import TensorProto, helper

from epctx_core.graph.view import Node
from epctx_core.kernels import RegistryLookup
from epctx_core.plugin import KernelDef, KernelRegistry


def kernel(**facts):
    return KernelDef(**{"op_type": "Add", "since_version": 7, "create": lambda _node: None, **facts})


def found(made, *kernels, index=0):
    graph = indexed(made)
    return RegistryLookup(KernelRegistry(kernels), graph.types).lookup(Node(graph, index))


def adding(elem_type=FLOAT, opset=21):
    return model(
        [node("Add", ["x", "x"], ["y"])],
        [value("x", elem_type)],
        [value("y", elem_type)],
        opsets=[("", opset)],
    )


def test_a_kernel_of_the_operator_matches():
    wanted = kernel()

    assert found(adding(), wanted) is wanted


@pytest.mark.parametrize("other", [{"op_type": "Sub"}, {"domain": "com.microsoft"}])
def test_a_kernel_of_another_operator_or_domain_does_not(other):
    assert found(adding(), kernel(**other)) is None


@pytest.mark.parametrize(
    ("since", "end", "matches"),
    [(7, None, True), (14, None, True), (14, 14, True), (7, 13, False), (15, None, False), (13, 14, True)],
)
def test_the_operators_own_version_counts_not_the_models(since, end, matches):
    # Opset 21 has Add in its version 14.
    wanted = kernel(since_version=since, end_version=end)

    assert (found(adding(), wanted) is wanted) is matches


def test_an_older_model_gets_the_older_kernel():
    old, new = kernel(since_version=7, end_version=12), kernel(since_version=13)

    assert found(adding(opset=12), old, new) is old
    assert found(adding(opset=21), old, new) is new


def test_type_variables_are_checked_against_the_nodes_types():
    floats = kernel(type_constraints={"T": frozenset({FLOAT})})
    integers = kernel(type_constraints={"T": frozenset({INT64})})

    assert found(adding(), integers, floats) is floats
    assert found(adding(INT64), integers, floats) is integers
    assert found(adding(TensorProto.DOUBLE), integers, floats) is None


def test_each_variable_is_checked_where_it_stands():
    made = model([node("Cast", ["x"], ["y"], to=INT64)], [value("x", FLOAT)], [value("y", INT64)])
    fits = kernel(op_type="Cast", type_constraints={"T1": frozenset({FLOAT}), "T2": frozenset({INT64})})
    swapped = kernel(op_type="Cast", type_constraints={"T1": frozenset({INT64})})

    assert found(made, swapped) is None
    assert found(made, swapped, fits) is fits


def test_omitted_inputs_are_not_checked():
    made = model([node("Clip", ["x", "", ""], ["y"])], ["x"], ["y"])
    wanted = kernel(op_type="Clip", type_constraints={"T": frozenset({FLOAT})})

    assert found(made, wanted) is wanted


def test_a_value_of_unknown_type_matches_no_constraint():
    made = model(
        [helper.make_node("Own", ["x"], ["a"], domain="own"), node("Add", ["a", "a"], ["y"])],
        ["x"],
        ["y"],
        opsets=[("", 21), ("own", 1)],
    )

    assert found(made, kernel(type_constraints={"T": frozenset({FLOAT})}), index=1) is None
    assert found(made, kernel(), index=1) is not None


def test_an_operator_without_a_schema_goes_by_the_opset():
    made = model(
        [helper.make_node("Own", ["x"], ["y"], domain="own")], ["x"], ["y"], opsets=[("", 21), ("own", 3)]
    )
    own = {"op_type": "Own", "domain": "own"}

    assert found(made, kernel(**own, since_version=4)) is None
    assert found(made, kernel(**own, since_version=2, end_version=3)) is not None


def test_an_ep_without_kernels_has_no_match():
    graph = indexed(adding())

    assert RegistryLookup(None, graph.types).lookup(Node(graph, 0)) is None


def test_a_registry_gives_its_kernels_in_order():
    kernels = [kernel(), kernel(op_type="Sub"), kernel(since_version=13)]
    registry = KernelRegistry(kernels)

    assert list(registry) == [kernels[0], kernels[2], kernels[1]]
    assert registry.candidates("", "Add") == (kernels[0], kernels[2])
    assert registry.candidates("own", "Add") == ()
