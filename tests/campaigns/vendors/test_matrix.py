"""What one route compiles, another loads and runs, in each form, with the vendor's own
direct result; or it refuses.
"""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np
import onnxruntime
import pytest
from support.agreement import worst_relative_error
from support.vendor_routes import openvino_devices, route
from support.vendors_onnxruntime import OPENVINO, QNN, openvino_options, qnn_options
from vendors.vendor_networks import MORE_NETWORKS, NETWORKS, network

import epctx_core as epctx

FORMS = ("embedded", "file", "bytes")
STEP = {"qnn": 1e-3, "openvino": 1e-5}
"""Largest relative difference: QNN computes in half precision, OpenVINO in that of the
model.
"""
QUANTISATION_STEP = {"quantised_islands": 0.05}
"""One step of the output of a network, as a share of the largest number: what is
compiled apart is rounded apart.
"""
ALL_NETWORKS = [
    *NETWORKS,
    *(pytest.param(name, marks=pytest.mark.stress) for name in MORE_NETWORKS),
]


def compiled(producer, form, model, folder):
    if form == "bytes":
        return producer.compile_to_bytes(model)
    return producer.compile_to_file(
        model, folder / "m_ctx.onnx", embedded=form == "embedded"
    )


@functools.cache
def direct(vendor, name):
    """Return what a vendor's own runtime gives for a network without any context
    model.
    """
    source, inputs = network(name)
    if vendor == "qnn":
        return route("onnxruntime with QNN").run(source, inputs)
    if name == "three_parts":  # OpenVINO does not convert the nodes between them
        return onnxruntime.InferenceSession(
            source, providers=["CPUExecutionProvider"]
        ).run(None, inputs)
    import openvino

    core = openvino.Core()
    model = core.compile_model(
        core.read_model(source), "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"}
    )
    return [np.array(array) for array in model(inputs).values()]


# -- who reads whom
# --------------------------------------------------------------------------------

QNN_ROUTES = ("onnxruntime with QNN", "epctx with QNN")
OPENVINO_ROUTES = ("onnxruntime with OpenVINO", "epctx with OpenVINO", "epctx-openvino")
PAIRS = [
    *(("qnn", *pair) for pair in itertools.product(QNN_ROUTES, repeat=2)),
    *(("openvino", *pair) for pair in itertools.product(OPENVINO_ROUTES, repeat=2)),
]


def refused_by_onnxruntime(producer, consumer, name):
    """Return words of onnxruntime's error where its OpenVINO EP cannot do what epctx
    can, else None.
    """
    if (
        producer == "onnxruntime with OpenVINO"
        and name == "tensorflow_sequences_opset13"
    ):
        return "Conversion is failed for: Loop"
    if (producer, consumer, name) == (
        "epctx-openvino",
        "onnxruntime with OpenVINO",
        "onnxscript_branches",
    ):
        return (
            "not compatible with any execution provider"  # EPContext nodes in subgraphs
        )
    return None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ALL_NETWORKS)
@pytest.mark.parametrize(("vendor", "producer", "consumer"), PAIRS)
def test_what_one_compiles_the_other_runs_with_the_vendors_direct_result(
    vendor, producer, consumer, name, form, tmp_path
):
    words = refused_by_onnxruntime(producer, consumer, name)
    producer, consumer = route(producer), route(consumer)
    source, inputs = network(name)
    if words:
        with pytest.raises(Exception, match=words):
            consumer.run(compiled(producer, form, source, tmp_path), inputs)
        return

    results = consumer.run(compiled(producer, form, source, tmp_path), inputs)

    limit = QUANTISATION_STEP.get(name, STEP[vendor])
    assert worst_relative_error(results, direct(vendor, name)) <= limit


# -- who refuses whom
# ------------------------------------------------------------------------------

NO_EP = r"\(source '{}'\) has no EP to load it"
REFUSALS = [
    ("epctx with QNN", "epctx-openvino", NO_EP.format(QNN)),
    ("onnxruntime with QNN", "epctx-openvino", NO_EP.format(QNN)),
    ("onnxruntime with QNN", "epctx with OpenVINO", NO_EP.format(QNN)),
    ("epctx with QNN", "epctx with OpenVINO", NO_EP.format(QNN)),
    ("epctx-openvino", "epctx with QNN", NO_EP.format(OPENVINO)),
    ("onnxruntime with OpenVINO", "epctx with QNN", NO_EP.format(OPENVINO)),
    ("epctx with OpenVINO", "epctx with QNN", NO_EP.format(OPENVINO)),
    # The same EP name, and yet another EP.
    (
        "onnxruntime with QNN",
        "epctx-sim-qnn",
        r"written by the real QNN SDK \(Qualcomm\)",
    ),
    ("epctx with QNN", "epctx-sim-qnn", r"written by the real QNN SDK \(Qualcomm\)"),
    (
        "epctx-openvino",
        "epctx-sim-openvino",
        r"written by the real OpenVINO execution provider \(Intel\)",
    ),
    ("epctx-sim-qnn", "epctx with QNN", "epctx-sim-qnn made it"),
    (
        "epctx-sim-openvino",
        "epctx-openvino",
        "epctx-sim-openvino made it",
    ),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("producer", "consumer", "words"), REFUSALS)
def test_others_refuse_it_with_a_typed_error_that_says_whose_payload_it_is(
    producer, consumer, words, form, tmp_path
):
    producer, consumer = route(producer), route(consumer)
    source, inputs = network("resnet")
    model = compiled(producer, form, source, tmp_path)

    with pytest.raises(epctx.EpctxError) as caught:
        consumer.run(model, inputs)

    assert isinstance(
        caught.value, (epctx.InvalidGraph, epctx.NotImplementedByProvider)
    )
    assert re.search(words, str(caught.value))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("producer", "consumer", "ep"),
    [
        ("epctx-openvino", "onnxruntime with QNN", OPENVINO),
        ("epctx with QNN", "onnxruntime with OpenVINO", QNN),
    ],
)
def test_onnxruntime_refuses_another_vendors_nodes_by_their_ep(
    producer, consumer, ep, form, tmp_path
):
    producer, consumer = route(producer), route(consumer)
    source, inputs = network("resnet")
    model = compiled(producer, form, source, tmp_path)

    with pytest.raises(
        Exception, match=f"EPContext node generated by '{ep}' is not compatible"
    ):
        consumer.run(model, inputs)


# -- one file over two vendors
# ---------------------------------------------------------------------


def two_vendors(openvino, options=None):
    """Return session options with Qualcomm's EP, and Intel's for what that leaves."""
    made = epctx.SessionOptions()
    made.add_provider("epctx-onnxruntime:QNN", qnn_options())
    made.add_provider(f"{openvino}:OpenVINO", options or {})
    return made


def compiled_for_two(options, form, folder):
    """Return a context model of which Qualcomm's EP has two partitions, and Intel's the
    one between.
    """
    compiler = epctx.ModelCompiler(options, network("two_parts").model, form != "file")
    if form == "bytes":
        return compiler.compile_to_bytes()
    report = compiler.compile_to_file(folder / "m_ctx.onnx")
    assert [partition.ep for partition in report.partitions] == [QNN, OPENVINO, QNN]
    return folder / "m_ctx.onnx"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("named", [True, False])
def test_one_file_over_two_real_vendors_loads_here(named, form, tmp_path):
    options = two_vendors("epctx-openvino")
    model = compiled_for_two(options, form, tmp_path)

    # The manifest says which of the packages with an EP of this name made each payload.
    with epctx.InferenceSession(model, options if named else None) as session:
        results = session.run(None, network("two_parts").inputs)
        plugins = {record.distribution for record in session.get_provider_records()}

    assert plugins == {"epctx-onnxruntime", "epctx-openvino"}
    assert worst_relative_error(results, direct("qnn", "two_parts")) <= STEP["qnn"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("openvino", ["epctx-openvino", "epctx-onnxruntime"])
def test_one_file_over_two_real_vendors_loads_in_onnxruntime(openvino, form, tmp_path):
    if openvino == "epctx-onnxruntime":
        route("onnxruntime with OpenVINO")
    made = two_vendors(
        openvino, openvino_options() if openvino == "epctx-onnxruntime" else None
    )
    model = compiled_for_two(made, form, tmp_path)
    qnn = route("onnxruntime with QNN")
    if not openvino_devices():
        # Then Intel's part is all that onnxruntime has no EP for.
        with pytest.raises(
            Exception,
            match=f"EPContext node generated by '{OPENVINO}' is not compatible",
        ):
            qnn.run(model, network("two_parts").inputs)
        return

    options = qnn.session_options()
    options.add_provider_for_devices(openvino_devices(), openvino_options())
    session = onnxruntime.InferenceSession(
        model if form == "bytes" else str(model), options, enable_fallback=0
    )
    source, inputs = network("two_parts")
    try:
        expected = onnxruntime.InferenceSession(source, options, enable_fallback=0).run(
            None, inputs
        )
    except Exception:  # noqa: BLE001 - with these versions Qualcomm's EP takes no value from Intel's, compiled or not
        with pytest.raises(Exception, match="No HTP or DX12 allocation found"):
            session.run(None, inputs)
    else:
        assert worst_relative_error(session.run(None, inputs), expected) <= STEP["qnn"]
