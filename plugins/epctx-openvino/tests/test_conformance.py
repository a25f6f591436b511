"""The conformance kit: a sample of its groups with every suite, all of it with `make stress`."""

from __future__ import annotations

import pytest
from epctx_openvino import OpenVINOExecutionProvider

from epctx_core.testing import ProviderConformance, Requirements

# OpenVINO does not promise the same bytes twice, and puts all weights of a partition into its program.
ABILITIES = Requirements(deterministic=False, weight_sharing=False)


class TestSample(ProviderConformance):
    provider = OpenVINOExecutionProvider
    requirements = ABILITIES
    only = ("signatures", "claims", "nodes", "export", "sharing", "payloads", "side_effects", "cancellation")


@pytest.mark.stress
class TestWhole(ProviderConformance):
    provider = OpenVINOExecutionProvider
    requirements = ABILITIES
    full = True
