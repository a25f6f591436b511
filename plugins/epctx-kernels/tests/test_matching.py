"""A kernel fits a node by operator, version and types, as in ONNX Runtime; the first
one that fits is taken.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest
from epctx_kernels import KernelDef, KernelProvider, KernelRegistry, OperatorTypes
from onnx import TensorProto, helper
from support.graph_models import FLOAT, INT64, model, node, value

from epctx_core import InferenceSession, Registry
from epctx_core.errors import NotImplementedByProvider, PluginError
from epctx_core.plugin import hookimpl


def kernel(**facts):
    return KernelDef(
        **{"op_type": "Add", "since_version": 14, "create": lambda _node: None, **facts}
    )


def looked_up(made, *kernels, index=0, operators=(), carried=()):
    """Return the kernel found for a node, and the reason that the EP is told if there
    is none.
    """
    said = []

    class Provider(KernelProvider):
        name = "KernelsExecutionProvider"

        def get_kernel_registry(self):
            return KernelRegistry(kernels, operators)

        @hookimpl
        def get_capability(self, graph):
            kernels = self.match(graph)
            asked = next(each for each in graph.nodes if each.index == index)
            said.append((kernels.lookup(asked), kernels.refusal(asked)))
            return []

    registry = Registry(entry_points=False)
    registry.register(Provider)
    if carried:
        entries = [
            {
                "domain": operator.domain, "op_type": operator.op_type,
                "since_version": operator.since_version,
                "inputs": list(operator.inputs), "outputs": list(operator.outputs),
            }
            for operator in carried
        ]  # fmt: skip
        text = json.dumps({"version": 1, "operators": entries})
        made.metadata_props.add(key="epctx.kernel_type_constraints", value=text)
    # Nobody takes an operator that nothing describes, so such a session fails when the
    # EP has been asked.
    with suppress(NotImplementedByProvider):
        InferenceSession(
            made.SerializeToString(), providers=[Provider.name], registry=registry
        ).close()
    return said[0]


def found(made, *kernels, **given):
    return looked_up(made, *kernels, **given)[0]


def reason(made, *kernels, **given):
    return looked_up(made, *kernels, **given)[1]


def adding(elem_type=FLOAT, opset=21):
    return model(
        [node("Add", ["x", "x"], ["y"])],
        [value("x", elem_type)],
        [value("y", elem_type)],
        opsets=[("", opset)],
    )


def test_a_kernel_of_the_operator_matches():
    expected = kernel()

    assert found(adding(), expected) is expected


@pytest.mark.parametrize("other", [{"op_type": "Sub"}, {"domain": "com.microsoft"}])
def test_a_kernel_of_another_operator_or_domain_does_not(other):
    assert found(adding(), kernel(**other)) is None


@pytest.mark.parametrize(
    ("since", "end", "matches"),
    [
        (14, None, True),
        (14, 14, True),
        (13, 14, True),
        (7, 21, True),
        (7, None, False),
        (13, None, False),
        (7, 13, False),
        (15, None, False),
        (15, 21, False),
        (21, None, False),
    ],
)
def test_the_operators_own_version_counts_and_an_end_that_is_not_stated_covers_no_later_one(
    since, end, matches
):
    # Opset 21 has Add in its version 14.
    expected = kernel(since_version=since, end_version=end)

    assert (found(adding(), expected) is expected) is matches


def test_an_older_model_gets_the_older_kernel():
    old, new = kernel(since_version=7, end_version=13), kernel(since_version=14)

    assert found(adding(opset=12), old, new) is old
    assert found(adding(opset=21), old, new) is new


def test_type_variables_are_checked_against_the_nodes_types():
    floats = kernel(type_constraints={"T": frozenset({FLOAT})})
    integers = kernel(type_constraints={"T": frozenset({INT64})})

    assert found(adding(), integers, floats) is floats
    assert found(adding(INT64), integers, floats) is integers
    assert found(adding(TensorProto.DOUBLE), integers, floats) is None


def test_each_variable_is_checked_where_it_stands():
    made = model(
        [node("Cast", ["x"], ["y"], to=INT64)], [value("x", FLOAT)], [value("y", INT64)]
    )
    fits = kernel(
        op_type="Cast",
        since_version=21,
        type_constraints={"T1": frozenset({FLOAT}), "T2": frozenset({INT64})},
    )
    swapped = kernel(
        op_type="Cast", since_version=21, type_constraints={"T1": frozenset({INT64})}
    )

    assert found(made, swapped) is None
    assert found(made, swapped, fits) is fits


def test_omitted_inputs_are_not_checked():
    made = model([node("Clip", ["x", "", ""], ["y"])], ["x"], ["y"])
    expected = kernel(
        op_type="Clip", since_version=13, type_constraints={"T": frozenset({FLOAT})}
    )

    assert found(made, expected) is expected


def test_a_value_of_unknown_type_matches_no_constraint():
    made = model(
        [
            helper.make_node("Own", ["x"], ["a"], domain="own"),
            node("Add", ["a", "a"], ["y"]),
        ],
        ["x"],
        ["y"],
        opsets=[("", 21), ("own", 1)],
    )

    assert (
        found(made, kernel(type_constraints={"T": frozenset({FLOAT})}), index=1) is None
    )
    assert found(made, kernel(), index=1) is not None


def owning(opset=3, elem_type=FLOAT, inputs=("x",)):
    """Return a model of one node of an operator that no ONNX schema describes."""
    return model(
        [helper.make_node("Own", inputs, ["y"], domain="own")],
        [value("x", elem_type), value("z", INT64)],
        [value("y", elem_type)],
        opsets=[("", 21), ("own", opset)],
    )


OWN = {"op_type": "Own", "domain": "own", "since_version": 1}
SCALE = OperatorTypes(
    domain="own", op_type="Own", inputs=("T", "factor"), outputs=("T",)
)


@pytest.mark.parametrize(
    ("since", "end", "matches"),
    [(1, None, True), (4, None, False), (2, 3, True), (1, 2, False), (3, 9, True)],
)
def test_an_operator_that_nothing_describes_goes_by_the_opset(since, end, matches):
    own = kernel(**{**OWN, "since_version": since, "end_version": end})

    assert (found(owning(), own) is own) is matches


def test_constraints_of_an_operator_that_nothing_describes_fit_nothing():
    own = kernel(**OWN, type_constraints={"T": {FLOAT}})

    assert found(owning(), own) is None
    assert "it is unknown to which inputs and outputs" in reason(owning(), own)


@pytest.mark.parametrize("source", ["operators", "carried"])
def test_the_plugin_or_the_model_describes_an_operator_that_onnx_does_not_know(source):
    floats = kernel(**OWN, type_constraints={"T": {FLOAT}, "factor": {INT64}})

    assert found(owning(inputs=("x", "z")), floats, **{source: [SCALE]}) is floats
    assert found(owning(inputs=("x", "x")), floats, **{source: [SCALE]}) is None
    assert (
        found(owning(elem_type=TensorProto.DOUBLE), floats, **{source: [SCALE]}) is None
    )


@pytest.mark.parametrize(
    ("opset", "since", "matches"),
    [(1, 1, True), (2, 1, True), (3, 3, True), (3, 1, False), (9, 3, True)],
)
def test_a_described_operator_has_versions_like_those_of_onnx(opset, since, matches):
    versions = [
        OperatorTypes(
            domain="own", op_type="Own", since_version=v, inputs=("T",), outputs=("T",)
        )
        for v in (3, 1)
    ]
    own = kernel(**{**OWN, "since_version": since})

    assert (found(owning(opset), own, operators=versions) is own) is matches


def test_what_the_plugin_says_comes_before_what_the_model_says():
    wrong = OperatorTypes(
        domain="own", op_type="Own", inputs=("other",), outputs=("other",)
    )
    floats = kernel(**OWN, type_constraints={"T": {FLOAT}})

    assert found(owning(), floats, operators=[SCALE], carried=[wrong]) is floats


def test_what_anybody_says_of_an_operator_of_onnx_does_not_count():
    wrong = OperatorTypes(
        domain="", op_type="Add", inputs=("other",), outputs=("other",)
    )
    floats = kernel(type_constraints={"T": {FLOAT}})

    assert found(adding(), floats, operators=[wrong], carried=[wrong]) is floats


def test_a_constraint_on_what_the_operator_has_not_is_a_mistake_of_the_plugin():
    with pytest.raises(
        PluginError,
        match=r"constrains 'U'; version 14 of its operator does not have it",
    ) as caught:
        found(adding(), kernel(type_constraints={"U": {FLOAT}}))

    assert "It has: T." in caught.value.hint


def test_a_constraint_on_what_the_models_metadata_leaves_out_only_does_not_fit():
    hollow = OperatorTypes(domain="own", op_type="Own", inputs=(), outputs=())
    floats = kernel(**OWN, type_constraints={"T": {FLOAT}})

    assert found(owning(), floats, carried=[hollow]) is None
    assert "does not say which values 'T' is" in reason(
        owning(), floats, carried=[hollow]
    )


def test_a_parameter_whose_type_is_no_variable_is_constrained_by_its_own_name():
    # Reshape's second input is always int64; no other name is known for it.
    made = model(
        [node("Reshape", ["x", "s"], ["y"])],
        ["x", value("s", INT64, [1])],
        [value("y", FLOAT, [6])],
    )
    facts = {"op_type": "Reshape", "since_version": 21}
    fits = kernel(**facts, type_constraints={"shape": {INT64}})

    assert (
        found(made, kernel(**facts, type_constraints={"shape": {FLOAT}}), fits) is fits
    )


def test_a_parameter_whose_type_is_a_variable_is_not_known_by_its_name():
    with pytest.raises(PluginError, match="constrains 'A'"):
        found(adding(), kernel(type_constraints={"A": {FLOAT}}))


def test_the_first_value_of_a_variadic_parameter_says_the_type():
    made = model([node("Concat", ["x", "x", "x"], ["y"], axis=0)], ["x"], ["y"])
    facts = {"op_type": "Concat", "since_version": 13}
    fits = kernel(**facts, type_constraints={"T": {FLOAT}})

    assert found(made, kernel(**facts, type_constraints={"T": {INT64}}), fits) is fits


def test_an_output_says_the_type_of_an_operator_whose_inputs_are_left_out():
    made = model([node("RandomNormal", [], ["y"], shape=[2], dtype=FLOAT)], [], ["y"])
    facts = {"op_type": "RandomNormal", "since_version": 1, "end_version": 22}
    fits = kernel(**facts, type_constraints={"T": {FLOAT}})

    assert (
        found(made, kernel(**facts, type_constraints={"T": {TensorProto.DOUBLE}}), fits)
        is fits
    )


def test_the_name_ai_onnx_is_the_default_domain():
    expected = kernel(domain="ai.onnx")

    assert found(adding(), expected) is expected


def test_the_reason_names_each_kernel_and_what_does_not_fit():
    floats = kernel(type_constraints={"T": {FLOAT}})
    old = kernel(since_version=7, end_version=13)

    said = reason(adding(TensorProto.DOUBLE), old, floats)

    assert "Add 7 to 13: this node is version 14 of the operator" in said
    assert "Add 14 is for T = float; 'x' is double[" in said


def test_there_is_no_reason_where_a_kernel_fits_or_none_has_the_operator():
    assert reason(adding(), kernel(since_version=7), kernel()) is None
    assert reason(adding(), kernel(op_type="Sub")) is None


def test_an_ep_without_kernels_has_no_match():
    assert looked_up(adding()) == (None, None)


@pytest.mark.parametrize(("since", "end"), [(0, None), (-1, 3), (5, 4)])
def test_versions_that_cannot_be_are_refused_where_they_are_written(since, end):
    with pytest.raises(ValueError, match="Add: there are no operator versions"):
        kernel(since_version=since, end_version=end)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"since_version": "14"},
            "operator versions are whole numbers, not '14' to None",
        ),
        ({"end_version": 15.0}, "operator versions are whole numbers, not 14 to 15.0"),
        (
            {"type_constraints": {"T": FLOAT}},
            "type_constraints['T'] is 1, not a set of element types",
        ),
        (
            {"type_constraints": {"T": "float"}},
            "type_constraints['T'] is 'float', not a set",
        ),
        (
            {"type_constraints": {"T": ["tensor(float)"]}},
            "['tensor(float)'], not a set of element types",
        ),
        ({"create": None}, "create is None, not a function"),
    ],
)
def test_what_a_kernel_def_cannot_mean_is_said_where_it_is_written(facts, said):
    with pytest.raises(TypeError, match=f"Add: .*{re.escape(said)}"):
        kernel(**facts)


def test_a_text_where_a_sequence_of_names_belongs_is_refused_where_it_is_written():
    with pytest.raises(TypeError, match="one name is"):
        OperatorTypes(domain="own", op_type="Own", inputs="T", outputs=("T",))


def test_a_registry_gives_its_kernels_in_order():
    kernels = [
        kernel(),
        kernel(op_type="Sub"),
        kernel(since_version=13, end_version=13),
    ]
    registry = KernelRegistry(kernels)

    assert list(registry) == [kernels[0], kernels[2], kernels[1]]
    assert registry.candidates("", "Add") == (kernels[0], kernels[2])
    assert registry.candidates("own", "Add") == ()
