"""The conformance kit over Qualcomm's EP, with an honest declaration; that of
epctx-openvino is with its package.
"""

from __future__ import annotations

from epctx_conformance import GROUPS, chosen_checks
from epctx_onnxruntime.providers.qnn import QNNExecutionProvider
from support.vendors_onnxruntime import qnn_options

from epctx_core.testing import ProviderConformance, Requirements

ABILITIES = Requirements(
    deterministic=False,  # other bytes at each compile
    dynamic_shapes=False,
    zero_size=False,
    control_flow_bodies=False,  # onnxruntime compiles no subgraphs for EPs
    compatibility=False,  # verdicts are for machines with an NPU
    share_groups=False,  # its simulator loads no shared weights
    weight_sharing=False,
    tolerance=5e-3,  # of half precision
)
OF_QUALCOMM = frozenset(
    {
        "int64_what_it_claims_gives_the_right_results",  # 32 bits
        "uint32_what_it_claims_gives_the_right_results",
        "nan_infinities_and_signed_zeros_give_the_right_results",  # half precision
        "very_large_and_very_small_floats_give_the_right_results",
        # one has numbers beyond half precision; see test_matrix.py
        "every_model_that_it_takes_agrees_with_the_cpu_ep",
        "it_prints_nothing_to_stdout",  # a line of the simulator's, once in a process
    }
)
"""Checks of what onnxruntime with this EP does, too."""
QUICK = tuple(
    check.name
    for check in chosen_checks([group for group in GROUPS if group != "node_models"])
    if check.name not in OF_QUALCOMM
)


class TestQuick(ProviderConformance):
    provider = QNNExecutionProvider
    requirements = ABILITIES
    options = qnn_options()
    only = QUICK


def test_the_checks_that_are_left_out_are_of_the_kit():
    assert {check.name for check in chosen_checks(None)} >= OF_QUALCOMM
