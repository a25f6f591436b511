"""The committed zoo on the EPs of Qualcomm (simulator) and Intel."""

from __future__ import annotations

import re

import pytest
from support.vendor_routes import route
from zoo.exporters.saving import read_runs
from zoo.routes import REAL, find_differences
from zoo.scripts import FOLDER
from zoo.taking import problems_of, take

LACKING = {
    "real-qnn": {
        # Transpositions that onnxruntime removes, as others undo them.
        "derived_transformers_convnext_fixed_quantised_qoperator": 1,
        "derived_transformers_whisper_onnxslim": 1,
        "paddle_recogniser": 1,
        "paddle_recogniser_minus_one": 1,
        "programs_grid_sample": 1,
        "tensorflow_sequences_opset13": 1,
        "transformers_deberta_v2": 2,
        "transformers_modernbert": 2,
        "transformers_segformer": 2,
        "transformers_whisper": 1,
    },
    "real-openvino": {
        # Calls of functions, which epctx inlines: it takes the nodes inside.
        "onnxscript_functions": 2,
        "onnxscript_functions_opset15": 1,
        # onnxruntime moves a dequantiser over a transposition.
        "derived_transformers_convnext_fixed_quantised_qoperator": 5,
    },
}
"""How many nodes onnxruntime gives an EP that epctx does not, by route and model; 0 in
all others.
"""

SHARED = {
    # It takes an input of unknown rank for a scalar.
    "lightgbm_classes": "incompatible",
    "lightgbm_regressor": "incompatible",
    "lightgbm_zipmap": "incompatible",
    "sklearn_bayes_opset11": "incompatible",
    "sklearn_mlp_opset9": "incompatible",
    # It computes differently in 16 bits.
    "quantised_qdq_16_bits": "output 0 is 0.14 apart",
}
"""Models with which onnxruntime fails, too, on Intel's EP, and how."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("eps", REAL)
def test_every_model_is_right_and_an_ep_gets_what_onnxruntime_gives_it(eps, tmp_path):
    route(f"epctx with {REAL[eps]}")  # skips where there is no device
    shared = SHARED if eps == "real-openvino" else {}

    compiled = take(f"compile:{eps}", FOLDER, tmp_path)
    assert_shared(problems_of(compiled), shared)
    lacking = {o["name"]: len(o["lacking"]) for o in compiled if o["lacking"]}
    assert lacking == LACKING[eps]

    assert_shared(problems_of(take(f"load:{eps}", FOLDER, tmp_path)), shared)


def assert_shared(problems, shared):
    """Expect the problems that onnxruntime has, too, and no other."""
    assert problems.keys() == shared.keys()
    for name, found in problems.items():
        assert all(shared[name] in problem for problem in found)


@pytest.mark.parametrize("name", SHARED)
def test_onnxruntime_fails_likewise_on_intels_ep(name):
    intel = route("onnxruntime with OpenVINO")
    run = read_runs(FOLDER / f"{name}.npz")[0]

    try:
        results = intel.run(FOLDER / f"{name}.onnx", run.inputs)
        found = str(find_differences(results, run.results, 0.0))
    except Exception as error:  # noqa: BLE001 - its exceptions have no base of their own
        found = str(error)
    assert re.search(re.escape(SHARED[name]), found)
