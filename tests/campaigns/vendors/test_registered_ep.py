"""Qualcomm's EP as that of a vendor whom epctx does not know: registered by one call,
it is isolated and cached as an installed one.
"""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from epctx_onnxruntime import cached
from epctx_onnxruntime.providers import register_plugin_ep
from epctx_onnxruntime.providers.qnn import QNNExecutionProvider
from support.agreement import worst_relative_error
from support.vendors_onnxruntime import QNN, qnn_options
from vendors.vendor_networks import network

import epctx_core as epctx
from epctx_core.errors import PluginError

NAME = "two_parts"
AT_LOAD = (0.4, 0.6)
"""Share of the binary that is overwritten: the library segfaults while it loads."""
HALF = 1e-3


@pytest.fixture(scope="module")
def registry():
    made = epctx.Registry(entry_points=False)
    options = [o for o in QNNExecutionProvider.options if o.name in qnn_options()]
    cls = register_plugin_ep(
        QNN, module="onnxruntime_qnn", options=options, registry=made
    )
    # Asked for a verdict without an NPU, Qualcomm's library reads freed memory.
    cls.validate_compatibility = QNNExecutionProvider.validate_compatibility
    return made


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(network(NAME).model)
    return path


def options(**entries):
    made = epctx.SessionOptions()
    made.add_provider(QNN, qnn_options())
    for key, value in entries.items():
        made.add_session_config_entry(f"ep.{key}", value)
    return made


def answer(session):
    return session.run(None, network(NAME).inputs)


def bare(path, damaged=None):
    """Take the digests out of a context model; overwrite a range of its binary."""
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)
    binary = next(path.parent.glob("*.bin"))
    content = bytearray(binary.read_bytes())
    if damaged is not None:
        start, end = (int(len(content) * share) for share in damaged)
        content[start:end] = b"\xff" * (end - start)
    binary.write_bytes(content)
    return path


@pytest.mark.parametrize("mode", ["compile", "all"])
def test_it_compiles_and_runs_in_a_process_of_its_own(registry, source, mode):
    with epctx.InferenceSession(source, options(), registry=registry) as session:
        expected = answer(session)

    with epctx.InferenceSession(
        source, options(isolate=mode), registry=registry
    ) as session:
        results = answer(session)

    assert worst_relative_error(results, expected) <= HALF


def test_a_damaged_payload_without_digests_ends_the_process_of_the_ep_alone(
    registry, source, caplog
):
    epctx.ModelCompiler(options(), source, registry=registry).compile_to_file()
    path = bare(source.with_name("m_ctx.onnx"), AT_LOAD)

    with (
        caplog.at_level(logging.INFO, "epctx"),
        pytest.raises(PluginError, match=r"its process is gone.*SIGSEGV"),
    ):
        epctx.InferenceSession(path, options(), registry=registry)

    assert f"{QNN} works in its own process" in caplog.text


def test_a_payload_without_digests_runs_out_of_process(registry, source):
    epctx.ModelCompiler(options(), source, registry=registry).compile_to_file()
    context = source.with_name("m_ctx.onnx")
    with epctx.InferenceSession(context, options(), registry=registry) as session:
        expected = answer(session)

    with epctx.InferenceSession(bare(context), options(), registry=registry) as session:
        results = answer(session)

    assert np.array_equal(results[0], expected[0])


@pytest.mark.parametrize("mode", ["", "compile", "all"])
def test_the_cache_compiles_by_it_once(registry, source, tmp_path, caplog, mode):
    caplog.set_level(logging.INFO, logger="epctx.cache")

    for _ in range(2):
        with epctx.load_or_compile(
            source, options(isolate=mode), tmp_path / "cache", registry=registry
        ) as session:
            assert len(answer(session)) == 1

    assert caplog.text.count("compiled ") == 1


def test_a_host_that_keeps_onnxruntime_compiles_by_it_in_another_process(
    registry, source, tmp_path, caplog
):
    caplog.set_level(logging.INFO, logger="epctx.cache")
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4

    for _ in range(2):
        session = cached.load_or_compile(
            source,
            quiet,
            provider=QNN,
            provider_options=qnn_options(),
            cache_dir=tmp_path / "cache",
            registry=registry,
        )

    assert type(session) is onnxruntime.InferenceSession
    assert len(answer(session)) == 1
    assert caplog.text.count("compiled ") == 1
