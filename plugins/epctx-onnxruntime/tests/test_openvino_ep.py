"""The OpenVINO EP's options and devices, without the package that contains it;
`tests/campaigns/vendors` has the EP itself.
"""

from __future__ import annotations

import _ctypes
import logging
from dataclasses import replace
from types import SimpleNamespace

import onnxruntime
import pytest
from epctx_onnxruntime.providers.openvino import OpenVINOExecutionProvider as OpenVINO
from support.strange_files import STRANGE

import epctx_core as epctx
from epctx_core.plugin import Purpose

pytestmark = pytest.mark.internal

FLOAT32 = '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'


def devices(*types):
    return [SimpleNamespace(ep_metadata={"ov_device": type_}) for type_ in types]


def made(**options):
    """Return an instance, as the core makes it; nothing of onnxruntime is called for
    it.
    """
    declared = {option.name: option.default for option in OpenVINO.options}
    context = SimpleNamespace(
        options={**declared, **options}, logger=logging.getLogger("epctx.ep")
    )
    return OpenVINO(context)


@pytest.mark.parametrize("wanted", ["CPU", "GPU", "NPU"])
def test_the_device_of_the_type_that_the_options_say_is_used(wanted):
    (chosen,) = OpenVINO.select_devices(
        devices("NPU", "GPU", "CPU", "GPU"), {"device_type": wanted}
    )

    assert chosen.ep_metadata["ov_device"] == wanted


def test_a_device_that_is_not_listed_is_refused_with_those_that_are():
    with pytest.raises(
        epctx.InvalidArgument,
        match=r"'device_type' is NPU, but .* lists CPU, GPU alone",
    ):
        OpenVINO.select_devices(devices("GPU", "CPU"), {"device_type": "NPU"})


def test_onnxruntime_gets_the_options_that_its_ep_reads():
    given = {
        "device_type": "GPU",
        "load_config": FLOAT32,
        "enable_causallm": True,
        "reshape_input": None,
    }

    assert OpenVINO.vendor_options(given) == {
        "load_config": FLOAT32,
        "enable_causallm": "1",
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"CPU": ', "cannot be read as JSON"),
        (
            '{"INFERENCE_PRECISION_HINT": "f32"}',
            "not an object of properties by device",
        ),
        ("/missing/config.json", "cannot be read as JSON from that file"),
        ("[]", "cannot be read as JSON from that file"),
    ],
)
def test_properties_that_the_ep_would_refuse_are_refused_as_an_option(text, reason):
    with pytest.raises(epctx.InvalidArgument, match=reason) as caught:
        made(load_config=text)

    assert "'load_config'" in caught.value.message
    assert "INFERENCE_PRECISION_HINT" in caught.value.hint


def test_properties_are_json_or_in_a_file(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(FLOAT32)

    for given in (FLOAT32, str(file), "{}"):
        assert made(load_config=given)


def test_a_workload_type_is_ignored_on_devices_that_have_none(caplog):
    with caplog.at_level(logging.INFO, "epctx.ep"):
        made(device_type="CPU").set_dynamic_options(
            {"ep.dynamic.workload_type": "Efficient"}
        )

    assert "ep.dynamic.workload_type has no effect on the device CPU" in caplog.text


@pytest.mark.parametrize(
    ("op_type", "shape", "verdict"),
    [
        ("Relu", (2, 3), True),
        ("Loop", (2, 3), "OpenVINO does not convert all bodies of control flow"),
        ("Relu", None, "the rank of 'x' is not known"),
    ],
)
def test_nodes_for_which_it_would_refuse_a_whole_model_are_told_apart(
    op_type, shape, verdict
):
    value = SimpleNamespace(shape=shape, type=SimpleNamespace(is_static=True))
    graph = SimpleNamespace(initializer=lambda _name: None, value=lambda _name: value)
    node = SimpleNamespace(op_type=op_type, domain="", inputs=["x"], outputs=["y"])

    assert made().can_take(graph, node) == verdict


def register(_name, _path):
    """Accept a library; none of its devices is listed."""


def test_where_no_device_is_listed_the_ep_says_which_it_lists_and_what_else_there_is(
    monkeypatch,
):
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", register)
    loaded = _ctypes.__file__

    class Unlisted(OpenVINO):
        library = replace(OpenVINO.library, ep="Unlisted", module="", path=loaded)

    found = Unlisted.availability(Purpose.RUN)

    assert found.reason.endswith(
        "lists no device on this machine: it lists devices of Intel processors only."
    )
    assert "epctx-openvino" in found.hint
    assert "epctx-sim-openvino:OpenVINO" in found.hint


@pytest.mark.parametrize("kind", STRANGE)
def test_a_file_of_properties_that_could_not_be_read_to_its_end_is_refused(
    kind, tmp_path
):
    STRANGE[kind](tmp_path / "config.json")

    with pytest.raises(epctx.InvalidArgument, match="from that file"):
        made(load_config=str(tmp_path / "config.json"))
