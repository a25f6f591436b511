"""Which context models go without onnx's checker: with an engine that says the same as
the checker, a load does not show it.
"""

from __future__ import annotations

import onnx
import pytest
from support.out_of_form import FAULTS, add_branches

from epctx_core.graph.model_io import is_sound_context_model
from epctx_core.graph.walks import list_operators

pytestmark = pytest.mark.internal


def is_sound(model):
    return is_sound_context_model(model, list_operators(model.graph))


@pytest.fixture
def model(context_model):
    return onnx.ModelProto.FromString(context_model.SerializeToString())


def test_a_context_model_as_it_is_written_is_in_form(model):
    assert is_sound(model)

    add_branches(model, "m = Neg(x) t0 = Neg(m)", "m = Abs(x) f0 = Neg(m)")
    assert is_sound(model)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_the_checker_refuses_is_out_of_form(model, fault):
    fault(model)

    assert not is_sound(model)


def test_a_model_without_epcontext_nodes_is_for_the_checker(model):
    del model.graph.node[0]

    assert not is_sound(model)
