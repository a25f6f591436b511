"""Functions that a model defines stand as their operators in what an EP sees, unless
the EP wants the calls.
"""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.count_instructions import counting_instructions
from support.special_models import (
    OPSET,
    Example,
    X,
    made,
    node,
    sequence_of_functions,
    value,
)
from support.taker import (
    Taker,
    assert_same,
    compile_with,
    expected,
    registry_with,
    run_with,
    through_everything,
)

import epctx_core as epctx


class WantsCalls(Taker):
    """Takes calls of one function, and nothing else."""

    operators = frozenset({"Scaled"})
    keeps_functions = frozenset({("mine", "Scaled")})


def saved(model, folder):
    folder.mkdir()
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def one_function(nodes, *, opset=OPSET, imports=(), model_opset=OPSET, domains=()):
    function = helper.make_function(
        "mine",
        "F",
        ["a"],
        ["b"],
        nodes,
        [helper.make_opsetid("", opset), *(helper.make_opsetid(*i) for i in imports)],
    )
    graph_nodes = [node("F", ["x"], ["m"], domain="mine"), node("Neg", ["m"], ["y"])]
    model = made(
        graph_nodes,
        [value("x")],
        [value("y", shape=None)],
        opset=model_opset,
        domains=[("mine", 1), *domains],
        functions=[function],
    )
    return Example(model, X, 0)


def test_no_function_is_left_in_a_context_model(tmp_path):
    example = sequence_of_functions()

    outcome = through_everything(
        saved(example.model, tmp_path / "in"), example.feeds, tmp_path / "out"
    )

    left = onnx.load(tmp_path / "out" / "m_ctx.onnx")
    assert not left.functions
    assert {n.op_type for n in left.graph.node} == {"Constant", "Sigmoid", "EPContext"}
    assert outcome.taken == 6


def test_attributes_that_a_call_leaves_out_have_the_functions_defaults(tmp_path):
    leaky = node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.add(
        name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT
    )
    example = one_function([leaky])
    example.model.functions[0].attribute_proto.append(
        helper.make_attribute("slope", 0.5)
    )
    wanted = expected(example.model, example.feeds)

    outcome = through_everything(
        saved(example.model, tmp_path / "in"), example.feeds, tmp_path / "out"
    )

    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, wanted)


def test_an_ep_gets_calls_of_the_functions_that_it_keeps(tmp_path):
    example = sequence_of_functions()
    wanted = expected(example.model, example.feeds)

    outcome = through_everything(
        saved(example.model, tmp_path / "in"),
        example.feeds,
        tmp_path / "out",
        ep=WantsCalls,
    )

    assert outcome.report.partitions[0].operators == ("Scaled", "Scaled")
    # Those of the functions count, too.
    assert outcome.taken == 12
    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, wanted)


def test_a_call_that_is_kept_and_not_taken_runs_on_the_cpu(tmp_path):
    class KeepsOnly(Taker):
        operators = frozenset({"Sigmoid"})
        keeps_functions = frozenset({("mine", "Scaled")})

    example = sequence_of_functions()
    wanted = expected(example.model, example.feeds)

    outcome = through_everything(
        saved(example.model, tmp_path / "in"),
        example.feeds,
        tmp_path / "out",
        ep=KeepsOnly,
    )

    assert outcome.taken == 1
    assert [f.name for f in onnx.load(tmp_path / "out" / "m_ctx.onnx").functions] == [
        "Scaled"
    ]
    assert_same(outcome.loaded, wanted)


def test_functions_of_another_domain_bring_their_import_along(tmp_path):
    example = one_function(
        [
            node("Gelu", ["a"], ["g"], domain="com.microsoft"),
            node("Relu", ["g"], ["b"]),
        ],
        imports=[("com.microsoft", 1)],
    )
    wanted = expected(example.model, example.feeds)

    outcome = through_everything(
        saved(example.model, tmp_path / "in"), example.feeds, tmp_path / "out"
    )

    assert outcome.taken == 2
    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, wanted)


def test_a_function_for_an_older_version_with_the_same_operators_is_put_in_place(
    tmp_path,
):
    example = one_function(
        [node("Exp", ["a"], ["e"]), node("Abs", ["e"], ["b"])], opset=13
    )

    outcome = through_everything(
        saved(example.model, tmp_path / "in"), example.feeds, tmp_path / "out"
    )

    assert outcome.taken == 3


def test_a_function_whose_operators_are_others_in_the_models_version_is_read_with_that():
    example = one_function(
        [node("Constant", [], ["c"], value_float=1.0), node("Add", ["a", "c"], ["b"])],
        opset=7,
    )

    results = run_with(Taker, example.model.SerializeToString(), X)

    assert_same(results, expected(example.model, X))


def test_weights_of_functions_may_lie_in_files(tmp_path):
    (tmp_path / "w.bin").write_bytes(numpy_helper.from_array(X["x"], "w").raw_data)
    tensor = TensorProto(
        name="w", data_type=1, dims=[2, 3], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="w.bin")
    example = one_function(
        [node("Constant", [], ["w"], value=tensor), node("Add", ["a", "w"], ["b"])]
    )

    (result,) = run_with(
        Taker,
        example.model.SerializeToString(),
        X,
        session__model_external_initializers_file_folder_path=tmp_path,
    )

    assert_same(result, -(X["x"] + X["x"]))


def test_functions_that_call_each_other_in_a_circle_are_refused():
    model = sequence_of_functions().model
    model.functions[0].node[2].op_type = "Twice"
    model.functions[0].node[2].domain = "mine"
    model.functions[0].opset_import.add(domain="mine", version=1)

    with pytest.raises(epctx.InvalidGraph, match="Cycle"):
        run_with(Taker, model.SerializeToString(), X)


def test_the_source_is_unchanged(tmp_path):
    example = sequence_of_functions()
    path = saved(example.model, tmp_path / "in")
    before = path.read_bytes()

    compile_with(Taker, path)

    assert path.read_bytes() == before


def calls_of_own_functions(count):
    """Return a chain of calls, each of a function of its own."""
    opsets = [helper.make_opsetid("", OPSET)]
    names = [f"F{i}" for i in range(count)]
    results = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    return made(
        [
            node(name, [before], [after], domain="mine")
            for name, before, after in zip(
                names, results[:-1], results[1:], strict=True
            )
        ],
        [value("x")],
        [value("y", shape=None)],
        domains=[("mine", 1)],
        functions=[
            helper.make_function(
                "mine", name, ["a"], ["b"], [node("Neg", ["a"], ["b"])], opsets
            )
            for name in names
        ],
    )


def test_explaining_each_call_costs_no_look_at_each_function():
    class WantsAll(Taker):
        operators = frozenset()
        keeps_functions = frozenset(("mine", f"F{i}") for i in range(200))

    counts = []
    for calls in (100, 200):
        model = calls_of_own_functions(calls).SerializeToString()
        registry = registry_with(WantsAll)
        options = epctx.SessionOptions()
        options.add_provider(WantsAll.name)
        with counting_instructions() as count:
            explained = epctx.explain_model(model, options, registry=registry)
        assert sum(node.inside for node in explained.nodes) == calls
        counts += count

    assert counts[1] < 3 * counts[0]


def test_kept_functions_that_no_set_can_have_are_a_fault_of_the_ep():
    class Wrong(Taker):
        keeps_functions = (["mine", "Scaled"],)

    model = sequence_of_functions().model.SerializeToString()

    with pytest.raises(epctx.PluginError, match="in keeps_functions"):
        epctx.InferenceSession(
            model, providers=[Wrong.name], registry=registry_with(Wrong)
        )


@pytest.mark.parametrize("optional", [False, True])
def test_a_session_looks_up_an_ep_once_and_keeps_it_whatever_the_host_removes(optional):
    names = []

    class Counting(epctx.Registry):
        def resolve(self, name):
            names.append(name)
            return super().resolve(name)

    registry = Counting(entry_points=False)
    registry.register(Taker)
    options = epctx.SessionOptions()
    options.add_provider(Taker.name, optional=optional)
    model = sequence_of_functions().model.SerializeToString()

    with epctx.InferenceSession(model, options, registry=registry) as session:
        assert session.get_providers() == [Taker.name, "CPUExecutionProvider"]

    assert names == [Taker.name]


def test_a_plugin_that_cannot_be_imported_is_a_finding_of_a_verification():
    class Broken(epctx.Registry):
        def resolve(self, name):
            raise epctx.PluginError("it cannot be imported.", ep=name)

    options = epctx.SessionOptions()
    options.add_provider("AnyExecutionProvider")
    model = sequence_of_functions().model.SerializeToString()

    report = epctx.verify_model(model, options, registry=Broken(entry_points=False))

    assert "plugin-broken" in {finding.code for finding in report.findings}
