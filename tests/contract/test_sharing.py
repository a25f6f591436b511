"""Entries 115 to 117: what holds of weight sharing for one model at a time; groups:
test_sharing_groups.py.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.compiling import compiler
from support.engine_eps import Alpha, scripted
from support.routes import refused, with_qnn
from support.small_models import chain, example, saved
from support.validating_eps import compiled, session

import epctx_core as epctx
from epctx_core.errors import InvalidArgument

SHARE = {"ep__share_ep_contexts": 1}
LAST = {**SHARE, "ep__stop_share_ep_contexts": 1}
ROUTES = pytest.mark.parametrize("route", ["compiler", "session"])


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    return saved(chain(["Relu", "Add", "Sigmoid", "Add"]), folder / "m.onnx")


def compile_by(route, source, *eps, **entries):
    """Compile to the default output by `ModelCompiler` or by a session."""
    if route == "compiler":
        compiler(source, *eps, entries=entries).compile_to_file()
    else:
        session(source, *eps, ep__context_enable=1, **entries).close()


def run(opened):
    return opened.run(None, {"x": example()})[0]


# --- compiling ------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["compiler", "session", "load"])
def test_the_end_of_a_group_without_a_group_is_refused(source, route):
    model = compiled(source, Alpha) if route == "load" else source
    last = {"ep__stop_share_ep_contexts": 1}

    with refused(
        InvalidArgument, "was set without ep.share_ep_contexts=1", folder=source.parent
    ):
        if route == "load":
            session(model, Alpha, **last)
        else:
            compile_by(route, source, Alpha, **last)


@pytest.mark.entry(115, 117)
@pytest.mark.parametrize("group", [SHARE, LAST], ids=["member", "last"])
@pytest.mark.parametrize("how", ["compiler", "session", "argument"])
def test_a_payload_cannot_be_shared_and_embedded(source, group, how):
    ep, embed = scripted(), {"ep__context_embed_mode": 1}

    with refused(
        InvalidArgument,
        "ep.context_embed_mode=1.*ep.share_ep_contexts=1",
        folder=source.parent,
    ):
        if how == "argument":
            compiler(
                source, ep, entries=group, embed_compiled_data_into_model=True
            ).compile_to_file()
        else:
            compile_by(how, source, ep, **group, **embed)

    assert not {"get_capability", "compile"} & set(ep.calls)


# --- loading --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entries", [SHARE, LAST, {**SHARE, "ep__context_embed_mode": 1}], ids=str
)
@pytest.mark.parametrize("embed", [False, True], ids=["file", "embedded"])
def test_a_context_model_loads_with_sharing_as_without(source, entries, embed):
    model = compiled(source, Alpha)
    if embed:
        compiler(source, Alpha, embed_compiled_data_into_model=True).compile_to_file(
            model
        )

    with session(model, Alpha) as alone, session(model, Alpha, **entries) as member:
        assert np.array_equal(run(member), run(alone))


@pytest.mark.parametrize("entries", [SHARE, LAST], ids=str)
def test_a_plain_model_runs_with_sharing_as_without(source, entries):
    with session(source, Alpha) as alone, session(source, Alpha, **entries) as member:
        assert np.array_equal(run(member), run(alone))


@pytest.mark.entry(116)
def test_graphs_of_one_name_in_several_sessions_that_share_never_meet(tmp_path):
    models = []
    for half in (0, 1):
        folder = tmp_path / str(half)
        folder.mkdir()
        source = saved(chain(["Mul", "Add"], seed=3), folder / "m.onnx")
        options = with_qnn({"enable_htp_fp16_precision": half})
        models.append(epctx.ModelCompiler(options, source).compile_to_file().output)
    names = [{node.name for node in onnx.load(model).graph.node} for model in models]
    assert names[0] == names[1]

    expected = []
    for model in models:
        with epctx.InferenceSession(model, with_qnn()) as alone:
            expected.append(run(alone))
    assert not np.array_equal(*expected)

    opened = [
        epctx.InferenceSession(model, with_qnn(**SHARE)) for model in [*models, *models]
    ]
    found = [run(member) for member in opened]
    for member in opened:
        member.close()

    assert all(
        np.array_equal(a, b) for a, b in zip(found, [*expected, *expected], strict=True)
    )
