"""The simulated EPs among special things: they take their nodes or refuse them, and
never fail over them.
"""

from __future__ import annotations

import pytest
from epctx_sim_openvino import OpenVinoProvider
from epctx_sim_qnn import QnnProvider
from epctx_sim_vitisai import VitisAIProvider
from onnx import TensorProto
from support.special_models import ELEMENT_TYPES, KINDS, of_element_type
from support.taker import assert_same, expected, through_everything

EPS = [OpenVinoProvider, QnnProvider, VitisAIProvider]
BEYOND = pytest.mark.not_for_onnxruntime("it refuses some of the sources, too")


def assert_goes_through(example, ep, folder) -> None:
    source = folder / "source" / "m.onnx"
    source.parent.mkdir()
    source.write_bytes(example.model.SerializeToString())
    wanted = expected(example.model, example.feeds)

    outcome = through_everything(source, example.feeds, folder / "out", ep=ep)

    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, wanted)


@BEYOND
@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_model_of_any_kind_gives_the_same(tmp_path, kind, ep):
    assert_goes_through(KINDS[kind](), ep, tmp_path)


@BEYOND
@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("element", ELEMENT_TYPES, ids=TensorProto.DataType.Name)
def test_tensors_of_any_type_give_the_same(tmp_path, element, ep):
    assert_goes_through(of_element_type(element), ep, tmp_path)
