"""Entries 59 to 62: which EP takes a node, by its source and by what the host
listed.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from contract.context_edits import by_qnn, context_nodes, edit, set_attributes
from support.engine_eps import scripted
from support.routes import QNN, refused
from support.small_models import SHAPE, chain, example, saved
from support.validating_eps import options_with, registry_with

import epctx_core as epctx
from epctx_core.errors import InvalidArgument, NotImplementedByProvider, PluginError


@pytest.fixture
def source(tmp_path):
    """A network of which QNN takes three parts: it has no Erf here."""
    return saved(
        chain(["Relu", "Add", "Erf", "Mul", "Erf", "Add"]), tmp_path / "m.onnx"
    )


@pytest.fixture
def lone(tmp_path):
    """A network that QNN takes whole."""
    return saved(chain(["Relu", "Add"]), tmp_path / "l.onnx")


def result(path):
    with epctx.InferenceSession(path) as session:
        return session.run(None, {"x": example()})[0]


# --- sources --------------------------------------------------------------------------


@pytest.mark.entry(59)
@pytest.mark.parametrize("name", ["QNN", "qnn", "Qnn", QNN, QNN.lower()])
def test_qnn_takes_its_sources_in_any_case(source, name):
    path = by_qnn(source)
    edit(
        path,
        lambda model: (
            [set_attributes(n, source=name) for n in context_nodes(model)] and None
        ),
    )

    assert np.allclose(result(path), result(source), atol=1e-6)


@pytest.mark.entry(59)
@pytest.mark.parametrize(
    "name", ["Q", "QNN ", "QNNExecutionProvider2", "SomebodyElse", "", None]
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_foreign_node_among_several_is_enough_to_refuse_a_model(
    source, name, place
):
    path = by_qnn(source)
    edit(path, lambda model: set_attributes(context_nodes(model)[place], source=name))
    node = context_nodes(onnx.load(path))[place].name

    for providers in (None, ["QNN"]):
        with refused(NotImplementedByProvider, "has no EP to load it", node=node):
            epctx.InferenceSession(path, providers=providers)


@pytest.mark.entry(60)
def test_a_session_with_the_cpu_alone_refuses_the_first_node_by_name(source):
    path = by_qnn(source)
    node = context_nodes(onnx.load(path))[0].name

    with refused(
        NotImplementedByProvider, "No EP of this session accepts the source", node=node
    ) as caught:
        epctx.InferenceSession(path, providers=["CPUExecutionProvider"])

    assert "Add 'QNNExecutionProvider' to the providers" in caught.value.hint


@pytest.mark.entry(61)
@pytest.mark.parametrize("name", [QNN, "QNN"])
def test_an_installed_ep_is_used_by_its_name_also_for_a_model_without_nodes(lone, name):
    with epctx.InferenceSession(lone, providers=[name]) as session:
        assert session.get_providers() == [QNN, "CPUExecutionProvider"]
        assert session.run(None, {"x": example()})[0].shape == SHAPE


@pytest.mark.entry(61)
def test_a_name_that_no_ep_has_is_never_ignored(lone):
    with refused(InvalidArgument, "QNNExecutionProvidr.*Did you mean"):
        epctx.InferenceSession(lone, providers=["QNNExecutionProvidr"])


def reading(name, *, accepts=("shared",)):
    """Return an EP whose `calls` say whether it loaded, and that accepts these sources
    without case.
    """
    accept = classmethod(lambda _cls, source: source.casefold() in accepts)
    return type(name, (scripted(),), {"name": name, "accepts_source": accept})


def registry_of_sources(*pairs):
    registry = epctx.Registry(entry_points=False)
    for ep, source in pairs:
        registry.register(ep, sources=[source])
    return registry


def loaded_by(path, *pairs):
    """Return the EPs that load something in a session that lists all, in this order."""
    for ep, _ in pairs:
        ep.calls.clear()
    registry = registry_of_sources(*pairs)
    epctx.InferenceSession(
        path, options_with(*(ep for ep, _ in pairs)), registry=registry
    ).close()
    return [ep.name for ep, _ in pairs if "load_context" in ep.calls]


@pytest.mark.entry(62)
@pytest.mark.parametrize("spelling", ["shared", "Shared", "SHARED"])
def test_of_two_eps_that_read_a_source_the_first_of_the_hosts_list_takes_it(
    tmp_path, spelling
):
    one, two = (
        (reading(f"{name}ExecutionProvider"), "Shared") for name in ("One", "Two")
    )
    path = by_ep(one[0], tmp_path)
    edit(path, lambda model: set_attributes(context_nodes(model)[0], source=spelling))

    assert loaded_by(path, one, two) == ["OneExecutionProvider"]
    assert loaded_by(path, two, one) == ["TwoExecutionProvider"]
    with pytest.raises(PluginError, match="is ambiguous"):
        epctx.InferenceSession(path, registry=registry_of_sources(one, two))


@pytest.mark.entry(62)
def test_a_source_that_is_an_eps_own_name_is_that_eps_whatever_the_order(tmp_path):
    own, greedy = reading("OwnExecutionProvider"), reading("GreedyExecutionProvider")
    path = by_ep(own, tmp_path)

    for pairs in ([(greedy, own.name), (own, "x")], [(own, "x"), (greedy, own.name)]):
        assert loaded_by(path, *pairs) == [own.name]


def by_ep(ep, folder):
    source = saved(chain(["Relu", "Add"]), folder / "m.onnx")
    path = folder / "m_ctx.onnx"
    epctx.ModelCompiler(
        options_with(ep), source, registry=registry_with(ep)
    ).compile_to_file(path)
    return path
