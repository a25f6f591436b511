"""EPs that the start page and errors name as an example."""

from __future__ import annotations

import pytest


@pytest.fixture
def own_and_broken(site):
    """EPs that come first in the alphabet: one of a user's own, one without its SDK."""
    site("epctx-aardvark", "AardvarkExecutionProvider")
    return site("epctx-abc", "AbcExecutionProvider", code="import no_such_sdk\n")


def test_examples_name_a_vendors_ep_before_a_users_own_and_a_broken_one(
    process, own_and_broken, model
):
    start = process(path=[own_and_broken])
    error = process("compile", model("y = Relu(x)"), path=[own_and_broken])

    assert "epctx compile model.onnx --ep OpenVINO" in start.out
    assert "Aardvark" not in start.out
    assert error.code == 2
    assert "Installed: AardvarkExecutionProvider, AbcExecutionProvider" in error.err
    assert "Add --ep OpenVINO." in error.err


def test_examples_name_an_ep_that_is_not_excluded(process, own_and_broken):
    some = process(path=[own_and_broken], EPCTX_PLUGINS="epctx-aardvark,epctx-abc")
    one = process(path=[own_and_broken], EPCTX_PLUGINS="epctx-abc")

    assert "epctx compile model.onnx --ep Aardvark" in some.out
    assert "epctx compile model.onnx --ep Abc" in one.out
