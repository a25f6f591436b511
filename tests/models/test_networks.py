"""Real networks by each simulated EP and by several in order of priority: compiled,
moved, and run by another process.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.agreement import (
    TOLERANCE,
    assert_agree,
    relative_error,
    worst_relative_error,
)
from support.networks.catalog import EXPORTED, LARGE, QUANTISED
from support.networks.matrix import DEEP, SMALL
from support.sim_eps import (
    CPU,
    EVERY_ORDER,
    OPENVINO,
    ORDERS,
    QNN,
    SUFFIXES,
    VITISAI,
    short,
)
from support.small_models import snapshot

import epctx_core as epctx

ONE = ((OPENVINO,), (QNN,), (VITISAI,))
MODES = pytest.mark.parametrize("embedded", [False, True], ids=["file", "embedded"])


def combination(name, eps, *, embedded):
    everyday = (
        eps in ONE or (eps in ORDERS and (not embedded or eps == ORDERS[0]))
        if name in SMALL
        else name in DEEP[:2] and eps == ORDERS[0] and not embedded
    )
    marks = [] if everyday else [pytest.mark.stress]
    return pytest.param(
        name,
        eps,
        embedded,
        id=f"{name}-{short(eps)}-{'embedded' if embedded else 'file'}",
        marks=marks,
    )


MATRIX = [
    combination(name, eps, embedded=embedded)
    for name in (*SMALL, *DEEP, *LARGE)
    for eps in (*ONE, *EVERY_ORDER)
    for embedded in (False, True)
]


@pytest.mark.parametrize(("name", "eps", "embedded"), MATRIX)
def test_a_network_that_is_compiled_and_moved_agrees_with_onnxruntime(
    compiled, name, eps, embedded
):
    found = compiled(name, eps, embedded=embedded)
    taken, context_nodes = (
        found.taken,
        [n for n in found.graph.node if n.op_type == "EPContext"],
    )

    assert_agree(found.outputs, found.reference, found.steps)
    for boundary in ("input", "output"):
        before, after = getattr(found.source, boundary), getattr(found.graph, boundary)
        assert [value.name for value in after] == [value.name for value in before]

    # Each node is in one place, or folded.
    assert len(context_nodes) == len(found.report.partitions)
    assert sum(map(len, taken.values())) == len(set().union(*taken.values()))
    left = len(found.graph.node) - len(context_nodes)
    placed = left + sum(map(len, taken.values()))
    assert placed + found.report.folded_nodes == len(found.source.node) > 10

    # Each EP has its own file.
    binaries = {} if embedded else {ep: f"net_{SUFFIXES[ep]}.bin" for ep in taken}
    assert (
        found.files
        == set(found.report.required_files)
        == {"net_ctx.onnx", *binaries.values()}
    )
    named = {}
    for node in context_nodes:
        texts = {attribute.name: attribute.s.decode() for attribute in node.attribute}
        named.setdefault(texts["source"], set()).add(texts.get("ep_cache_context"))
    assert named.keys() == taken.keys()
    if not embedded:
        assert {ep: names - {None} for ep, names in named.items()} == {
            ep: {b} for ep, b in binaries.items()
        }


@pytest.mark.parametrize(
    ("name", "eps"),
    [
        pytest.param(
            name,
            eps,
            id=f"{name}-{short(eps)}",
            marks=[] if daily else [pytest.mark.stress],
        )
        for name in (*SMALL, *DEEP, *LARGE)
        for eps in EVERY_ORDER
        for daily in [name in SMALL and eps in ORDERS]
    ],
)
def test_the_first_ep_takes_what_it_takes_alone_and_the_others_of_the_rest(
    compiled, name, eps
):
    together = compiled(name, eps).taken
    alone = {ep: compiled(name, (ep,)).taken.get(ep, set()) for ep in eps}

    assert together.get(eps[0], set()) == alone[eps[0]]
    for ep in eps[1:]:
        assert together.get(ep, set()) <= alone[ep]


@pytest.mark.parametrize(
    "names",
    [SMALL, pytest.param((*SMALL, *DEEP), marks=pytest.mark.stress)],
    ids=["small", "deep"],
)
@pytest.mark.parametrize(
    ("ep", "without"), [(QNN, set()), (OPENVINO, set()), (VITISAI, None)]
)
def test_each_ep_compiles_most_of_the_networks_for_it(compiled, ep, without, names):
    left_out = {*names} - {*QUANTISED} if without is None else without

    shares = {name: compiled(name, (ep,)).share(ep) for name in names}

    assert {name for name, share in shares.items() if share < 0.8} == left_out, shares


def test_an_ep_is_not_given_a_quantiser_alone(compiled):
    report = compiled("shufflenet_int8", ORDERS[0]).report

    (refusal,) = [r for r in report.refusals if r.ep == OPENVINO]
    assert refusal.operators == ("QuantizeLinear",)
    assert "costs more than it saves" in refusal.reason


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.stress] if n in DEEP else [])
        for n in QUANTISED
    ],
)
def test_what_quantizes_around_an_operator_is_compiled_with_it(compiled, name):
    left = compiled(name, (VITISAI,)).graph

    made_by = {output: node for node in left.node for output in node.output}
    for node in left.node:
        assert node.op_type != "Conv"
        if node.op_type == "DequantizeLinear":
            # Only what comes out of a partition or is quantised on the CPU is
            # dequantised there.
            assert made_by[node.input[0]].op_type in {"EPContext", "QuantizeLinear"}


@pytest.mark.parametrize("order", [(VITISAI, QNN), (QNN, VITISAI)], ids=short)
def test_two_eps_share_a_network_in_the_order_of_priority(compiled, order):
    found = compiled("shufflenet_int8", order)

    assert_agree(found.outputs, found.reference, found.steps)
    assert found.report.assignments[order[0]] > found.report.assignments[CPU]
    if order[0] == VITISAI:
        assert found.report.assignments[QNN] > 0
        assert found.files == {"net_ctx.onnx", "net_vitisai.bin", "net_qnn.bin"}


# --- other routes ---------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("name", EXPORTED)
def test_the_session_options_write_the_same_bytes_as_the_compiler(
    network, tmp_path, name, embedded
):
    source = network(name)
    by_options, by_compiler = tmp_path / "by options", tmp_path / "by compiler"
    by_options.mkdir()
    by_compiler.mkdir()
    options = with_qnn(
        ep__context_enable="1",
        ep__context_file_path=str(by_options / "net_ctx.onnx"),
        ep__context_embed_mode=str(int(embedded)),
    )

    with epctx.InferenceSession(source.path, options) as session:
        outputs = session.run(None, source.inputs)
    epctx.ModelCompiler(with_qnn(), source.path, embedded).compile_to_file(
        by_compiler / "net_ctx.onnx"
    )

    assert snapshot(by_options) == snapshot(by_compiler)
    assert len(snapshot(by_options)) == (1 if embedded else 2)
    assert worst_relative_error(outputs, source.reference) <= TOLERANCE


def with_qnn(**entries):
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return options


def test_without_a_path_both_routes_write_beside_the_source(network):
    source = network("lstm")
    written = source.path.with_name("lstm_ctx.onnx")

    with epctx.InferenceSession(source.path, with_qnn(ep__context_enable="1")):
        first = written.read_bytes()
    report = epctx.ModelCompiler(with_qnn(), source.path).compile_to_file()

    assert report.output == written
    assert written.read_bytes() == first
    assert sorted(p.name for p in written.parent.iterdir()) == [
        "lstm.onnx",
        "lstm_ctx.onnx",
        "lstm_qnn.bin",
    ]


@pytest.mark.parametrize("name", [n for n in SMALL if n not in QUANTISED])
def test_original_compiled_and_loaded_session_agree(network, tmp_path, name):
    source = network(name, seed=3)
    written = tmp_path / "net_ctx.onnx"
    epctx.ModelCompiler(with_qnn(), source.path).compile_to_file(written)

    for ep, model, options in (
        (None, source.path, None),
        (QNN, source.path, with_qnn()),
        (QNN, written, None),
    ):
        with epctx.InferenceSession(model, options) as session:
            assert (
                worst_relative_error(session.run(None, source.inputs), source.reference)
                <= TOLERANCE
            )
            assert (QNN in session.get_providers()) == (ep == QNN)


def test_a_session_answers_a_choice_of_outputs_in_the_order_asked_for(network):
    source = network("bert")
    with epctx.InferenceSession(source.path, with_qnn()) as session:
        names = [output.name for output in session.get_outputs()]
        every = session.run(None, source.inputs)

        backwards = session.run(names[::-1], source.inputs)
        none_named = session.run([], source.inputs)

    for one, other in zip(backwards[::-1], every, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(none_named) == len(every)


def test_the_ep_is_found_by_its_entry_point():
    (record,) = [r for r in epctx.plugins() if r.name == QNN]

    assert record.distribution == "epctx-sim-qnn"
    assert QNN in epctx.get_available_providers()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.stress] if n in DEEP else [])
        for n in QUANTISED
    ],
)
def test_a_quantised_network_answers_each_input_differently(network, name):
    answers = [network(name, seed=seed).reference[0] for seed in (0, 1)]

    assert np.isfinite(answers[0]).all()
    assert relative_error(*answers) > 0.05
