"""Custom operators that a compile leaves over run by an EP's kernels where the context
model is loaded.

The context model says what ties their types together: metadata
`epctx.kernel_type_constraints`.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from epctx_kernels import KernelDef, OperatorTypes
from epctx_sim_qnn import QnnProvider
from support.acme import (
    FLOAT,
    SCALE,
    Acme,
    KernelProvider,
    X,
    compiled,
    kernel_ep,
    model_of,
    results_of,
    scaling,
    session_of,
    with_eps,
)
from support.engine_eps import Alpha

import epctx_core as epctx
from epctx_core.plugin import Availability, Purpose, hookimpl

KEY = "epctx.kernel_type_constraints"
MIXED = model_of("a = Relu(x) b = acme.Scale(a) y = Neg(b)", inner="float[2] b")
EXPECTED = -2 * np.maximum(X, 0)
ENTRY = {
    "domain": "acme",
    "op_type": "Scale",
    "since_version": 1,
    "inputs": ["T", "T"],
    "outputs": ["T"],
}


def metadata(path):
    return {p.key: p.value for p in onnx.load(path).metadata_props}


def with_metadata(path, text):
    """Put a text in place of what the compile wrote."""
    model = onnx.load(path)
    for entry in model.metadata_props:
        if entry.key == KEY:
            entry.value = text
    onnx.save(model, path)
    return path


class Both(Alpha, KernelProvider):
    """Compiles what Alpha does, and has kernels for acme's operators."""

    name = "BothExecutionProvider"
    kernels = [scaling()]  # noqa: RUF012 - never changed
    described = [SCALE]  # noqa: RUF012 - never changed

    @hookimpl
    def get_capability(self, graph):
        compiled = Alpha.get_capability(self, graph)
        return [*compiled, *KernelProvider.get_capability(self, graph)]

    @hookimpl
    def compile(self, partitions):
        made = {}
        for base in (Alpha, KernelProvider):
            own = [
                partition
                for partition in partitions
                if isinstance(partition.token, KernelDef) == (base is KernelProvider)
            ]
            made.update(zip(own, base.compile(self, own), strict=True))
        return [made[partition] for partition in partitions]


class Undescribed(KernelProvider):
    """Has a kernel with constraints, and says nothing about the operator itself."""

    name = "UndescribedExecutionProvider"
    kernels = [scaling()]  # noqa: RUF012 - never changed


def test_a_custom_operator_of_a_loaded_model_runs_by_a_kernel_and_the_rest_as_compiled(
    tmp_path,
):
    context = compiled(MIXED, tmp_path, Alpha, Acme)

    (result,) = results_of(context, Alpha, Acme)

    assert [node.op_type for node in onnx.load(context).graph.node] == [
        "EPContext",
        "Scale",
        "Neg",
    ]
    np.testing.assert_array_equal(result, EXPECTED)


def test_an_ep_whose_nodes_are_in_the_model_is_asked_for_kernels_all_the_same(tmp_path):
    context = compiled(MIXED, tmp_path, Both)

    (result,) = results_of(context, Both)

    np.testing.assert_array_equal(result, EXPECTED)


def test_an_ep_is_found_by_its_nodes_with_its_kernels(tmp_path):
    context = compiled(MIXED, tmp_path, Both)
    registry, _ = with_eps(Both)

    with epctx.InferenceSession(context, registry=registry) as session:
        (result,) = session.run(None, {"x": X})

    np.testing.assert_array_equal(result, EXPECTED)


def test_an_ep_without_nodes_is_found_by_the_kernels_that_it_ran_when_the_model_was_compiled(
    tmp_path,
):
    context = compiled(MIXED, tmp_path, Alpha, Acme)
    registry, _ = with_eps(Alpha, Acme)

    with epctx.InferenceSession(context, registry=registry) as session:
        (result,) = session.run(None, {"x": X})
        providers = session.get_providers()

    assert providers == [Alpha.name, Acme.name, "CPUExecutionProvider"]
    np.testing.assert_array_equal(result, EXPECTED)


def test_an_ep_found_by_its_kernels_compiles_nothing_that_the_compile_left_to_the_cpu(
    tmp_path,
):
    first = type(
        "First", (Alpha,), {"name": "FirstExecutionProvider", "binary_suffix": "first"}
    )
    model = model_of(
        "a = Relu(x) b = Relu(a) c = acme.Scale(b) y = Relu(c)", inner="float[2] c"
    )
    onnx.save(model, tmp_path / "m.onnx")
    registry, options = with_eps(first, Both)
    options.add_session_config_entry("ep.partition_min_nodes", "2")
    epctx.ModelCompiler(
        options, tmp_path / "m.onnx", registry=registry
    ).compile_to_file()
    registry, _ = with_eps(first, Both)
    options = epctx.SessionOptions()
    options.add_session_config_entry("session.disable_model_compile", "1")

    with epctx.InferenceSession(
        tmp_path / "m_ctx.onnx", options, registry=registry
    ) as session:
        (result,) = session.run(None, {"x": X})
        providers = session.get_providers()

    assert providers == [first.name, Both.name, "CPUExecutionProvider"]
    np.testing.assert_array_equal(result, 2 * np.maximum(X, 0))


def test_a_list_of_providers_is_all_that_a_session_has_whoever_ran_kernels(tmp_path):
    context = compiled(MIXED, tmp_path, Alpha, Acme)
    registry, _ = with_eps(Alpha, Acme)

    with pytest.raises(epctx.NotImplementedByProvider, match="acme"):
        epctx.InferenceSession(context, providers=[Alpha.name], registry=registry)


def test_where_the_ep_with_the_kernels_is_not_there_a_warning_names_it_and_the_cpu_does_what_it_can(
    tmp_path, caplog
):
    negative = KernelDef(
        op_type="Neg",
        since_version=13,
        create=lambda _node: lambda inputs: [-inputs[0]],
    )
    context = compiled(
        model_of("a = Relu(x) y = Neg(a)"), tmp_path, Alpha, kernel_ep(negative)
    )
    registry, _ = with_eps(Alpha)

    with epctx.InferenceSession(context, registry=registry) as session:
        (result,) = session.run(None, {"x": X})

    np.testing.assert_array_equal(result, -np.maximum(X, 0))
    assert (
        "AcmeExecutionProvider took nodes that this model kept when it was compiled"
        in caplog.text
    )


def test_an_ep_whose_kernels_this_machine_cannot_run_is_left_out_with_its_reason(
    tmp_path, caplog
):
    negative = KernelDef(
        op_type="Neg",
        since_version=13,
        create=lambda _node: lambda inputs: [-inputs[0]],
    )
    compiled_with = kernel_ep(negative)

    class Absent(compiled_with):
        @classmethod
        def availability(cls, purpose):
            return Availability(
                purpose is Purpose.EXPORT, reason="no device is plugged in"
            )

    context = compiled(
        model_of("a = Relu(x) y = Neg(a)"), tmp_path, Alpha, compiled_with
    )
    registry, _ = with_eps(Alpha, Absent)

    with epctx.InferenceSession(context, registry=registry) as session:
        (result,) = session.run(None, {"x": X})
        eps = session.get_providers()

    np.testing.assert_array_equal(result, -np.maximum(X, 0))
    assert Absent.name not in eps
    assert "no device is plugged in" in caplog.text


def test_a_malformed_preference_of_the_host_is_an_error_where_kernels_are_looked_up(
    tmp_path, monkeypatch
):
    context = compiled(MIXED, tmp_path, Alpha, Acme)

    class Refreshed(epctx.Registry):
        """A registry that another thread refreshes while the EP with the kernels is
        looked up.
        """

        def route(self, source, among=None):
            with monkeypatch.context() as patch:
                if source == Acme.name:
                    patch.setenv("EPCTX_PREFER", "QNN")
                    with pytest.raises(epctx.InvalidArgument):
                        self.refresh()
                return super().route(source, among)

    registry = Refreshed(entry_points=False)
    registry.register(Alpha)
    registry.register(Acme)

    with pytest.raises(epctx.InvalidArgument, match="EPCTX_PREFER"):
        epctx.InferenceSession(context, registry=registry)


def test_compiling_again_keeps_who_ran_kernels(tmp_path):
    context = compiled(MIXED, tmp_path, Alpha, Acme)
    again = tmp_path / "again_ctx.onnx"
    registry, options = with_eps(Alpha)
    epctx.ModelCompiler(options, context, registry=registry).compile_to_file(again)
    registry, _ = with_eps(Alpha, Acme)

    with epctx.InferenceSession(again, registry=registry) as session:
        (result,) = session.run(None, {"x": X})

    np.testing.assert_array_equal(result, EXPECTED)


def test_what_such_an_ep_would_compile_now_stays_with_the_cpu(tmp_path):
    # Three Relus; the compile is told to leave the single ones to the CPU.
    model = model_of(
        "a = Relu(x) b = Relu(a) c = acme.Scale(b) y = Relu(c)", inner="float[2] c"
    )
    source = tmp_path / "m.onnx"
    onnx.save(model, source)
    registry, options = with_eps(Both)
    options.add_session_config_entry("ep.partition_min_nodes", "2")
    epctx.ModelCompiler(options, source, registry=registry).compile_to_file()
    registry, options = with_eps(Both)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")

    with epctx.InferenceSession(
        tmp_path / "m_ctx.onnx", options, registry=registry
    ) as session:
        taken = [
            (subgraph.ep_name, [node.op_type for node in subgraph.get_nodes()])
            for subgraph in session.get_provider_graph_assignment_info()
        ]

    assert taken == [
        (Both.name, ["EPContext"]),
        (Both.name, ["Scale"]),
        ("CPUExecutionProvider", ["Relu"]),
    ]


def test_the_model_carries_the_table_of_what_stays_and_no_schema_describes(tmp_path):
    context = compiled(MIXED, tmp_path, Alpha, Acme)

    assert json.loads(metadata(context)[KEY]) == {"version": 1, "operators": [ENTRY]}


def test_the_table_lets_an_ep_match_that_says_nothing_itself(tmp_path):
    context = compiled(MIXED, tmp_path, Alpha, Acme)

    (result,) = results_of(context, Alpha, Undescribed)

    np.testing.assert_array_equal(result, EXPECTED)


def test_without_the_table_such_an_ep_has_no_kernel_that_fits(tmp_path):
    context = compiled(MIXED, tmp_path, Alpha, kernel_ep(described=()))

    assert KEY not in metadata(context)
    with pytest.raises(
        epctx.NotImplementedByProvider,
        match="it is unknown to which inputs and outputs",
    ):
        session_of(context, Alpha, Undescribed)


def test_operators_in_bodies_that_stay_are_described_too(tmp_path):
    model = model_of(
        """
        a = Relu(x)
        y = If (c) <
          then_branch = t () => (float[2] p) { p = acme.Scale(a) },
          else_branch = e () => (float[2] q) { q = Identity(a) }
        >
        """,
        inputs="float[2] x, bool c",
    )

    context = compiled(model, tmp_path, Alpha, Acme)

    assert json.loads(metadata(context)[KEY])["operators"] == [ENTRY]


def test_nothing_is_written_of_operators_that_onnx_knows_or_the_model_has_not(tmp_path):
    described = [
        OperatorTypes(domain="", op_type="Neg", inputs=("T",), outputs=("T",)),
        OperatorTypes(domain="acme", op_type="Other", inputs=("T",), outputs=("T",)),
    ]

    context = compiled(
        model_of("a = Relu(x) y = Neg(a)"),
        tmp_path,
        Alpha,
        kernel_ep(described=described),
    )

    assert KEY not in metadata(context)


def test_the_table_is_the_same_whatever_the_order_in_which_an_ep_describes(tmp_path):
    model = model_of(
        "a = Relu(x) b = acme.Zoom(a) y = acme.Scale(b)", inner="float[2] b"
    )
    zoom = OperatorTypes(domain="acme", op_type="Zoom", inputs=("T",), outputs=("T",))
    texts = []
    for number, described in enumerate(([SCALE, zoom], [zoom, SCALE])):
        folder = tmp_path / str(number)
        folder.mkdir()
        ep = kernel_ep(scaling(), scaling(op_type="Zoom"), described=described)
        texts.append(metadata(compiled(model, folder, Alpha, ep))[KEY])

    assert texts[0] == texts[1]


def test_the_version_in_effect_is_written(tmp_path):
    newer = OperatorTypes(
        domain="acme",
        op_type="Scale",
        since_version=3,
        inputs=("T", "U"),
        outputs=("T",),
    )
    model = model_of("a = Relu(x) y = acme.Scale(a)", acme=4)

    ep = kernel_ep(scaling(since_version=3), described=[SCALE, newer])
    context = compiled(model, tmp_path, Alpha, ep)

    (entry,) = json.loads(metadata(context)[KEY])["operators"]
    assert (entry["since_version"], entry["inputs"]) == (3, ["T", "U"])


def test_of_two_eps_that_describe_an_operator_the_first_counts(tmp_path):
    other = OperatorTypes(
        domain="acme", op_type="Scale", inputs=("A", "B"), outputs=("C",)
    )
    twice = model_of(
        "a = Relu(x) b = acme.Scale(a) y = acme.Scale <first: int = 1> (b)",
        inner="float[2] b",
    )
    first = kernel_ep(scaling())

    @hookimpl
    def get_capability(self, graph):
        kernels = self.match(graph)
        return [kernels.claim(graph.nodes[0])]

    first.get_capability = get_capability
    later = kernel_ep(scaling(type_constraints={}), described=[other])
    later.name = "LaterExecutionProvider"

    context = compiled(twice, tmp_path, Alpha, first, later)

    assert json.loads(metadata(context)[KEY])["operators"] == [ENTRY]


def test_compiling_again_without_the_ep_keeps_the_table(tmp_path):
    context = compiled(MIXED, tmp_path, Alpha, Acme)
    registry, _ = with_eps()

    epctx.ModelCompiler(
        epctx.SessionOptions(), context, registry=registry
    ).compile_to_file(tmp_path / "again_ctx.onnx")

    assert metadata(tmp_path / "again_ctx.onnx")[KEY] == metadata(context)[KEY]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        DEEP,
        '{"version": 1}',
        '{"version": 1, "operators": 7}',
        '{"version": 1, "operators": [7]}',
        '{"version": 1, "operators": [{}]}',
        json.dumps({"version": 1, "operators": [ENTRY, ENTRY]}),
        json.dumps({"version": 1, "operators": [{**ENTRY, "since_version": 0}]}),
        json.dumps({"version": 1, "operators": [{**ENTRY, "since_version": "1"}]}),
        json.dumps({"version": 1, "operators": [{**ENTRY, "inputs": "TT"}]}),
        json.dumps({"version": 1, "operators": [{**ENTRY, "inputs": [1]}]}),
        json.dumps({"version": 1, "operators": [{**ENTRY, "op_type": None}]}),
        json.dumps({"version": 1, "operators": [{**ENTRY, "outputs": ["T"] * 5000}]}),
        json.dumps({"version": 1, "operators": [{**ENTRY, "domain": "a" * (1 << 20)}]}),
    ],
)
def test_a_damaged_table_is_said_and_nothing_runs(tmp_path, text):
    context = with_metadata(compiled(MIXED, tmp_path, Alpha, Acme), text)

    with pytest.raises(epctx.InvalidGraph, match=KEY) as caught:
        session_of(context, Alpha, Acme)

    assert caught.value.hint
    assert len(str(caught.value)) < 1000


def test_a_table_of_a_later_version_is_passed_over(tmp_path):
    context = with_metadata(
        compiled(MIXED, tmp_path, Alpha, Acme), '{"version": 2, "types": []}'
    )

    (result,) = results_of(context, Alpha, Acme)

    np.testing.assert_array_equal(result, EXPECTED)


def test_what_a_later_release_adds_to_an_entry_is_ignored(tmp_path):
    later = json.dumps({"version": 1, "operators": [{**ENTRY, "added": 1}], "more": 2})
    context = with_metadata(compiled(MIXED, tmp_path, Alpha, Acme), later)

    (result,) = results_of(context, Alpha, Undescribed)

    np.testing.assert_array_equal(result, EXPECTED)


def test_a_table_that_says_something_false_is_never_the_plugins_fault(tmp_path):
    false = json.dumps(
        {"version": 1, "operators": [{**ENTRY, "inputs": ["A"], "outputs": []}]}
    )
    context = with_metadata(compiled(MIXED, tmp_path, Alpha, Acme), false)

    with pytest.raises(
        epctx.NotImplementedByProvider, match="does not say which values 'T' is"
    ):
        session_of(context, Alpha, Undescribed)


def test_a_compile_for_kernels_alone_leaves_the_model_as_it_is(tmp_path):
    source = tmp_path / "m.onnx"
    onnx.save(MIXED, source)
    registry, options = with_eps(Acme)

    report = epctx.ModelCompiler(options, source, registry=registry).compile_to_file(
        tmp_path / "out.onnx"
    )

    assert not report.partitions
    assert [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node] == [
        "Relu",
        "Scale",
        "Neg",
    ]


def test_two_kernels_for_two_types_share_one_table(tmp_path):
    double = onnx.TensorProto.DOUBLE
    ep = kernel_ep(
        scaling(type_constraints={"T": {double}}),
        scaling(type_constraints={"T": {FLOAT}}),
    )

    (result,) = results_of(compiled(MIXED, tmp_path, Alpha, ep), Alpha, ep)

    np.testing.assert_array_equal(result, EXPECTED)


def test_a_session_that_writes_a_context_model_writes_the_table_too(tmp_path):
    source = tmp_path / "m.onnx"
    onnx.save(MIXED, source)
    registry, options = with_eps(Alpha, Acme)
    options.add_session_config_entry("ep.context_enable", "1")

    with epctx.InferenceSession(source, options, registry=registry) as session:
        (result,) = session.run(None, {"x": X})

    assert json.loads(metadata(tmp_path / "m_ctx.onnx")[KEY])["operators"] == [ENTRY]
    np.testing.assert_array_equal(result, EXPECTED)


def test_members_of_a_share_group_carry_their_tables(tmp_path):
    paths = [tmp_path / "one.onnx", tmp_path / "two.onnx"]
    registry, options = with_eps(QnnProvider, Acme)
    (tmp_path / "out").mkdir()

    with epctx.ShareGroup(tmp_path / "out", registry=registry) as group:
        for path in paths:
            onnx.save(MIXED, path)
            group.compile(path, options)

    for name in ("one_ctx.onnx", "two_ctx.onnx"):
        assert json.loads(metadata(tmp_path / "out" / name)[KEY])["operators"] == [
            ENTRY
        ]
        np.testing.assert_array_equal(
            results_of(tmp_path / "out" / name, QnnProvider, Acme)[0], EXPECTED
        )
