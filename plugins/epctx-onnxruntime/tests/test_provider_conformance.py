"""The conformance kit on onnxruntime's CPU EP behind the hooks: a sample with every
suite, all of it with `make stress`.
"""

from __future__ import annotations

import pytest
from support.onnxruntime_cpu_ep import OrtCpuExecutionProvider

from epctx_core.testing import ProviderConformance, Requirements

pytestmark = pytest.mark.internal

# It takes no subgraphs, as no EP of onnxruntime does; models in a payload have their
# weights inside.
ABILITIES = Requirements(
    control_flow_bodies=False, weight_sharing=False, compatibility=False
)


class CutExecutionProvider(OrtCpuExecutionProvider):
    """The same without some operators, so that models fall into several partitions."""

    name = "CutExecutionProvider"

    def can_take(self, graph, node):
        return (
            f"{node.op_type} is left to others"
            if node.op_type in {"Erf", "Sin"}
            else True
        )


class TestSample(ProviderConformance):
    provider = CutExecutionProvider
    requirements = ABILITIES
    only = (
        "signatures",
        "claims",
        "nodes",
        "export",
        "sharing",
        "cancellation",
        # Each of these is a process.
        "it_refuses_a_truncated_payload",
        "it_refuses_a_damaged_payload_or_the_damage_does_no_harm",
        "importing_the_ep_does_not_change_the_process",
    )


@pytest.mark.stress
class TestWhole(ProviderConformance):
    provider = OrtCpuExecutionProvider
    requirements = ABILITIES
    full = True
