"""The source model of a weightless context model is looked into, too, and what is wrong
with it is a finding.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.sim_eps import OPENVINO, with_eps
from support.small_models import chain, example, saved

import epctx_core as epctx


@pytest.fixture
def context(tmp_path):
    """A context model whose payload left its weights in the source beside it."""
    options = with_eps(OPENVINO)
    options.add_session_config_entry("ep.enable_weightless_mode", "2")
    source = saved(chain(["Add", "Relu", "Mul"]), tmp_path / "source.onnx")
    epctx.ModelCompiler(options, source).compile_to_file(tmp_path / "m_ctx.onnx")
    return tmp_path / "m_ctx.onnx"


def found(path):
    return [finding.code for finding in epctx.verify_model(path).findings]


def test_with_its_source_a_model_is_in_order_and_runs(context):
    with epctx.InferenceSession(context) as session:
        (result,) = session.run(None, {"x": example()})

    assert np.isfinite(result).all()
    assert found(context) == []


DAMAGES = [b"", b"\x08", b"\xff" * 40, b"<html>not found</html>"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_source_that_is_no_model_is_a_finding(context, damage):
    context.with_name("source.onnx").write_bytes(damage)

    assert found(context) == ["source-refused"]
    with pytest.raises(
        epctx.InvalidProtobuf, match=r"'source\.onnx' is not an ONNX model"
    ):
        epctx.InferenceSession(context)


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_a_manifest_it_is_one_too_and_no_plugin_is_to_blame(context, damage):
    context.with_name("source.onnx").write_bytes(damage)
    model = onnx.load(context)
    del model.metadata_props[:]
    onnx.save(model, context)

    codes = found(context)

    assert "container-refused" in codes
    assert "plugin-broken" not in codes
