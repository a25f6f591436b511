"""Options by the names of the real EP: devices, precision, load_config, and what is
wrong with a value.
"""

from __future__ import annotations

import numpy as np
import pytest
from epctx_sim_openvino import OpenVinoProvider
from epctx_sim_openvino.devices import parse_device
from epctx_sim_openvino.load_config import parse_load_config

import epctx_core as epctx
from epctx_core.errors import InvalidArgument

pytestmark = pytest.mark.internal

X = np.random.default_rng(1).standard_normal((2, 200)).astype(np.float32)


def test_every_option_has_a_default_that_is_allowed_and_a_sentence(bench):
    assert bench.options() == {
        option.name: option.default for option in OpenVinoProvider.options
    }
    assert all(o.default in o.choices for o in OpenVinoProvider.options if o.choices)
    assert all(o.doc.endswith(".") for o in OpenVinoProvider.options)


def test_the_documented_options_of_the_real_ep_are_known():
    documented = {
        "device_type", "precision", "num_of_threads", "num_streams", "cache_dir",
        "load_config", "enable_qdq_optimizer", "disable_dynamic_shapes",
        "reshape_input", "layout", "model_priority",
    }  # fmt: skip

    assert documented <= {option.name for option in OpenVinoProvider.options}


@pytest.mark.parametrize(
    ("text", "name", "deciding", "one_is_enough"),
    [
        ("CPU", "CPU", ("CPU",), False),
        ("GPU.1", "GPU", ("GPU",), False),
        ("NPU", "NPU", ("NPU",), False),
        ("AUTO", "AUTO-CPU-GPU-NPU", ("CPU",), False),
        ("AUTO:GPU,CPU", "AUTO-GPU-CPU", ("CPU",), False),
        ("AUTO:GPU,NPU", "AUTO-GPU-NPU", ("GPU", "NPU"), False),
        ("HETERO:NPU,CPU", "HETERO-NPU-CPU", ("NPU", "CPU"), True),
        ("MULTI:GPU.0,GPU.1", "MULTI-GPU", ("GPU",), False),
    ],
)
def test_a_device_type_names_devices_and_who_decides(
    text, name, deciding, one_is_enough
):
    choice = parse_device(text)

    assert (choice.name, choice.deciding, choice.one_is_enough) == (
        name,
        deciding,
        one_is_enough,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu",
        "CPU_FP32",
        "TPU",
        "GPU.",
        "AUTO:",
        "AUTO:CPU",
        "HETERO",
        "HETERO:GPU,",
        "MULTI:CPU,TPU",
    ],
)
def test_other_names_of_devices_are_refused(bench, text):
    with pytest.raises(
        InvalidArgument, match="names no device of OpenVINO's"
    ) as caught:
        bench.compile(bench.two_partitions(), device_type=text)

    assert "HETERO:NPU,CPU" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "FP16"}, "option 'precision' cannot be 'FP16'"),
        (
            {"precision": "FP32", "device_type": "NPU"},
            "option 'precision' cannot be 'FP32'",
        ),
        ({"precision": "INT8"}, "precision"),
        ({"num_of_threads": "0"}, "num_of_threads"),
        ({"num_streams": "9"}, "num_streams"),
        ({"num_streams": "x"}, "needs a whole number"),
        ({"model_priority": "URGENT"}, "allowed: DEFAULT, LOW, MEDIUM, HIGH"),
        ({"enable_qdq_optimizer": "maybe"}, "needs 0 or 1"),
        ({"layout": "x[NCHW"}, "layout"),
        ({"layout": "x[NCHX]"}, "layout"),
        ({"reshape_input": "x[1,3,120..60]"}, "reshape_input"),
        ({"reshape_input": "x"}, "reshape_input"),
        ({"runtime_sdk_version": "2025.4"}, "not a simulated version"),
        ({"device_typ": "CPU"}, "Did you mean 'device_type'"),
    ],
    ids=str,
)
def test_wrong_values_are_refused_before_anything_is_compiled(bench, options, words):
    with pytest.raises(InvalidArgument, match=words) as caught:
        bench.compile(bench.two_partitions(), **options)

    assert caught.value.hint


@pytest.mark.parametrize(
    "options",
    [
        {
            "num_of_threads": "4",
            "num_streams": "2",
            "cache_dir": "anywhere",
            "model_priority": "HIGH",
        },
        {"layout": "x[NC],y[N?]", "reshape_input": "x[1..8,40],z[3]"},
        {"enable_qdq_optimizer": "True", "enable_opencl_throttling": "false"},
        {"load_config": '{"CPU": {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}}'},
        {"precision": "FP32"},
    ],
    ids=str,
)
def test_options_without_effect_change_no_byte_of_the_binary(bench, options):
    plain, given = (bench.compile(bench.two_partitions(), **o) for o in ({}, options))

    assert given.binary.read_bytes() == plain.binary.read_bytes()


def test_the_cache_folder_is_not_made(bench, tmp_path):
    bench.compile(bench.two_partitions(), cache_dir=str(tmp_path / "cache"))

    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is no object"),
        ('{"TPU": {}}', "names the device 'TPU'"),
        ('{"CPU": 1}', "gives CPU no object"),
        (
            '{"GPU": {"INFERENCE_PRECISION_HINT": "f64"}}',
            "'f64'; allowed: f32, f16, bf16",
        ),
        (
            (
                '{"GPU": {"INFERENCE_PRECISION_HINT": "f16", "EXECUTION_MODE_HINT": '
                '"ACCURACY"}}'
            ),
            "sets both",
        ),
        ('{"AUTO": ' * 9 + "{}" + "}" * 9, "nests more than 8"),
    ],
    ids=lambda text: text[:30],
)
def test_a_wrong_load_config_is_refused(text, words):
    with pytest.raises(InvalidArgument, match=words) as caught:
        parse_load_config(text)

    assert "load_config" in caught.value.message


def test_a_load_config_may_nest_eight_objects():
    text = '{"AUTO": ' + '{"DEVICE_PROPERTIES": ' * 6 + "{}" + "}" * 7

    assert "AUTO" in parse_load_config(text)


HINT = '{{"{0}": {{"INFERENCE_PRECISION_HINT": "{1}"}}}}'


@pytest.mark.parametrize(
    ("options", "half"),
    [
        ({"device_type": "GPU"}, False),
        ({"device_type": "GPU", "precision": "FP16"}, True),
        ({"device_type": "NPU", "precision": "FP16"}, True),
        ({"device_type": "GPU.0", "load_config": HINT.format("GPU", "f16")}, True),
        ({"device_type": "GPU", "load_config": HINT.format("NPU", "f16")}, False),
        (
            {
                "device_type": "GPU",
                "precision": "FP16",
                "load_config": HINT.format("GPU", "f32"),
            },
            False,
        ),
        ({"device_type": "AUTO", "load_config": HINT.format("AUTO", "f16")}, True),
        ({"device_type": "CPU", "load_config": HINT.format("CPU", "f16")}, False),
    ],
    ids=str,
)
def test_half_precision_halves_the_weights_and_changes_results_a_little(
    bench, options, half
):
    model = bench.two_partitions(channels=200)
    device = {"device_type": options["device_type"]}
    full, given = bench.compile(model, **device), bench.compile(model, **options)

    (exact,), (found,) = (bench.run(c.path, {"x": X}, **device) for c in (full, given))

    difference = np.max(np.abs(found - exact)) / np.max(np.abs(exact))
    smaller = given.binary.stat().st_size < 0.6 * full.binary.stat().st_size
    assert smaller is half
    assert (0 < difference < 1e-2) if half else difference == 0


def test_a_target_of_the_host_goes_before_device_type(bench):
    """As a host does that chooses devices itself; epctx's own sessions name them by
    options.
    """
    from epctx_sim_openvino.settings import chosen_device, facts

    options = bench.options(device_type="GPU")

    assert chosen_device(options, None).name == "GPU"
    assert facts(options, "NPU")["device"] == "NPU"
    with pytest.raises(InvalidArgument, match="the target 'tpu' names no device"):
        chosen_device(options, "tpu")


def test_short_names_of_the_ep_are_understood():
    options = epctx.SessionOptions()
    options.add_provider("openvino", {"device_type": "GPU"})

    assert "OpenVINOExecutionProvider" in epctx.get_available_providers()
