"""The table of exit codes, and failures that no code foresees."""

from __future__ import annotations

import pytest
from epctx_cli import exit_codes

from epctx_core import errors

pytestmark = pytest.mark.internal


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidArgument("m"), 2),
        (errors.NoSuchFile("m"), 2),
        (errors.InvalidProtobuf("m"), 2),
        (errors.InvalidGraph("m"), 2),
        (errors.ModelRequiresCompilation("m"), 2),
        (errors.NotFound("m"), 2),
        (errors.PackageMissing("m"), 3),
        (errors.EPFail("m"), 3),
        (errors.ModelLoadCanceled("m"), 1),
        (errors.InternalError("m"), 1),
        (errors.NotImplementedByProvider("m"), 3),
        (errors.PluginError("m"), 3),
        (errors.RuntimeException("m"), 1),
        (errors.Fail("nothing compiled", path="in.onnx"), 1),
        (errors.Fail("exists", path="out.onnx"), 2),
        (errors.Fail("no path"), 1),
    ],
)
def test_each_error_has_an_exit_code(error, code):
    assert exit_codes.exit_code(error, model="in.onnx") == code


def test_an_unforeseen_failure_is_a_block_as_well(epctx, monkeypatch, model):
    def fail(*_arguments, **_options):
        raise LookupError("a mistake of ours")

    monkeypatch.setattr("epctx_core.inspect_model", fail)

    short, long = epctx("inspect", model("y = Relu(x)")), epctx("inspect", "m", "-v")

    assert short.code == 1
    assert (
        "the command failed within epctx itself: LookupError: a mistake of ours"
        in short.err
    )
    assert "Traceback" not in short.err
    assert "Traceback" in long.err
