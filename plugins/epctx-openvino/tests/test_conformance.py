"""The conformance kit: some of its groups with every suite, all of them with
`make stress`.

Not with all of ONNX's cases: some have rows of an attention that are masked whole, for
which see the README.
"""

from __future__ import annotations

import pytest
from epctx_openvino import OpenVINOExecutionProvider

from epctx_core.testing import ProviderConformance, Requirements

pytestmark = pytest.mark.internal

# OpenVINO does not promise the same bytes twice, and puts all weights of a partition
# into its program.
ABILITIES = Requirements(deterministic=False, weight_sharing=False)


class TestSample(ProviderConformance):
    provider = OpenVINOExecutionProvider
    requirements = ABILITIES
    only = (
        "signatures",
        "claims",
        "nodes",
        "export",
        "sharing",
        "payloads",
        "side_effects",
        "cancellation",
    )


@pytest.mark.stress
class TestWhole(ProviderConformance):
    provider = OpenVINOExecutionProvider
    requirements = ABILITIES
