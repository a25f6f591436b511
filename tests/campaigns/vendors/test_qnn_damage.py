"""Qualcomm's EP ends its process at some damaged context binaries, while it loads or
only in a run: the host survives them.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest
from support.agreement import worst_relative_error
from support.vendor_routes import make_qnn_session_options as options
from support.vendors_onnxruntime import QNN, PluginEP, devices, qnn_options
from vendors.vendor_networks import network

import epctx_core as epctx
from epctx_core.errors import PluginError

NAME = "two_parts"
IN_THE_HEAD, AT_LOAD, IN_A_RUN = (0, 0.02), (0.4, 0.6), (0.48, 0.55)
"""Shares of the binary that are overwritten: the library segfaults while it loads, or
in the first run.
"""
HALF = 1e-3


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A context model of the real EP, and its binary."""
    path = tmp_path_factory.mktemp("good") / "m.onnx"
    path.write_bytes(network(NAME).model)
    epctx.ModelCompiler(options(), path).compile_to_file()
    return path.with_name("m_ctx.onnx"), path.with_name("m_qnn.bin")


def put(good, folder, damaged=None, *, bare=False):
    """Copy a context model; with an overwritten range of its binary, without its
    manifest.
    """
    model, binary = onnx.load(good[0]), bytearray(good[1].read_bytes())
    if bare:
        del model.metadata_props[:]
    if damaged is not None:
        start, end = (int(len(binary) * share) for share in damaged)
        binary[start:end] = b"\xff" * (end - start)
    onnx.save(model, folder / "m_ctx.onnx")
    (folder / "m_qnn.bin").write_bytes(binary)
    return folder / "m_ctx.onnx"


def answer(session):
    return session.run(None, network(NAME).inputs)


@pytest.fixture
def opened(monkeypatch):
    """Sessions that onnxruntime is asked for in this process while a test runs."""
    import onnxruntime

    made, honest = [], onnxruntime.InferenceSession

    def make(*arguments, **more):
        made.append(arguments)
        return honest(*arguments, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    return made


def died(session_or_load):
    with pytest.raises(epctx.EpctxError) as caught:
        session_or_load()
    return caught.value


@pytest.mark.parametrize("mode", ["once", "head", "lazy", "full"])
@pytest.mark.parametrize("damaged", [AT_LOAD, IN_A_RUN], ids=["at-load", "in-a-run"])
def test_a_damaged_binary_with_digests_is_refused_before_the_library_sees_it(
    good, tmp_path, damaged, mode, opened
):
    path = put(good, tmp_path, damaged)

    with pytest.raises(
        epctx.InvalidGraph, match="is not the one that the model was written with"
    ):
        epctx.InferenceSession(path, options(context_verify=mode))

    assert not any(QNN in str(arguments) for arguments in opened)


@pytest.mark.parametrize("damaged", [AT_LOAD, IN_A_RUN], ids=["at-load", "in-a-run"])
def test_one_without_digests_ends_the_process_of_the_ep_and_the_host_goes_on(
    good, tmp_path, damaged
):
    path = put(good, tmp_path, damaged, bare=True)

    def load_and_run():
        with epctx.InferenceSession(path, options()) as session:
            answer(session)

    error = died(load_and_run)

    cause = error if isinstance(error, PluginError) else error.__cause__
    assert isinstance(cause, PluginError)
    assert "its process is gone" in cause.message
    assert "SIGSEGV" in cause.message
    with epctx.InferenceSession(put(good, tmp_path), options()) as session:
        assert len(answer(session)) == 1


@pytest.mark.parametrize("damaged", [AT_LOAD, IN_A_RUN], ids=["at-load", "in-a-run"])
def test_a_host_that_trusts_it_ends_with_it(good, tmp_path, damaged):
    path = put(good, tmp_path, damaged, bare=True)
    code = (
        "import sys, epctx_core as epctx; from vendors import test_qnn_damage as "
        "here\nhere.answer(epctx.InferenceSession(sys.argv[1], "
        "here.options(context_trust_unverified='1')))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )

    assert done.returncode == -signal.SIGSEGV


def test_what_onnxruntime_compiled_runs_out_of_process_and_in_it_where_the_host_trusts_it(
    tmp_path, caplog, opened
):
    import onnxruntime_qnn

    route = PluginEP(
        ep=QNN, devices=devices(QNN, onnxruntime_qnn)[:1], options=qnn_options()
    )
    source, inputs = network(NAME)
    path = route.compile_to_file(source, tmp_path / "m_ctx.onnx", embedded=False)
    expected = route.run(path, inputs)
    opened.clear()

    with (
        caplog.at_level(logging.INFO, "epctx"),
        epctx.InferenceSession(path, options()) as session,
    ):
        apart, sessions = answer(session), len(opened)
    with epctx.InferenceSession(path, options(context_trust_unverified="1")) as session:
        together = answer(session)

    assert "QNNExecutionProvider works in its own process" in caplog.text
    # The middle of the model is no work of QNN, and stays here.
    assert len(opened) - sessions > sessions
    assert np.array_equal(apart[0], together[0])
    assert worst_relative_error(apart, expected) <= HALF


@pytest.mark.parametrize("damaged", [None, IN_THE_HEAD], ids=["good", "damaged"])
def test_a_verification_gives_the_library_a_binary_without_digests_in_another_process(
    good, tmp_path, opened, damaged
):
    report = epctx.verify_model(put(good, tmp_path, damaged, bare=True), options())

    codes = {finding.code for finding in report.findings}
    assert report.ok == (damaged is None)
    assert ("container-refused" in codes) == (damaged is not None)
    assert report.checked
    assert not any(QNN in str(arguments) for arguments in opened)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ep.dynamic.qnn_htp_performance_mode", "no such mode"),
        ("ep.dynamic.no_such_option", "1"),
    ],
)
def test_a_wrong_dynamic_option_which_the_library_aborts_at_is_refused_before_it(
    good, name, value
):
    with (
        epctx.InferenceSession(good[0], options()) as session,
        pytest.raises(epctx.InvalidArgument, match="option"),
    ):
        session.set_ep_dynamic_options({name: value})
