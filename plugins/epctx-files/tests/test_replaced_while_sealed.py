"""Seals of models that change while they are sealed."""

from __future__ import annotations

import shutil

import pytest
from epctx_files import sealing
from support.folders import REAL

from epctx_core.errors import Fail

pytestmark = pytest.mark.internal


def test_a_model_that_is_replaced_while_its_payloads_are_digested_is_not_sealed(
    tmp_path, monkeypatch
):
    real = shutil.copytree(REAL, tmp_path / "real")
    path, digest = real / "qnn_ctx0.onnx", sealing.PayloadEntry.of

    def digest_and_replace(*payload):
        shutil.copy(real / "share1_ctx.onnx", path)
        return digest(*payload)

    monkeypatch.setattr(sealing.PayloadEntry, "of", digest_and_replace)

    with pytest.raises(Fail, match="was replaced while it was sealed"):
        sealing.seal_model(path, beside=True)
    assert not path.with_name("qnn_ctx0.onnx.epctx.json").exists()
