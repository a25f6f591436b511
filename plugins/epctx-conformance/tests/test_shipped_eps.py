"""The three simulated EPs that are shipped pass the whole kit."""

from __future__ import annotations

import pytest
from support.sim_eps import OPENVINO, QNN, VITISAI

from epctx_core import Registry
from epctx_core.testing import Outcome, Requirements, check_provider

CANNOT = {
    # Like the vendor's own, it compares all nodes of an archive with the archive at
    # once.
    VITISAI: {"load_in_parts": False},
}
"""Abilities that they lack."""
SAMPLE = ("signatures", "claims", "partitions", "boundaries", "nodes", "sharing")
"""The groups that run with every suite."""


def checked(ep, **arguments):
    registry = Registry()
    provider = registry.load(registry.resolve(ep))
    return check_provider(
        provider, requirements=Requirements(**CANNOT.get(ep, {})), **arguments
    )


@pytest.mark.parametrize("ep", [QNN, OPENVINO, VITISAI])
def test_a_shipped_ep_passes_a_sample_of_the_kit(ep):
    report = checked(ep, only=SAMPLE)

    assert report.ok, report.text()
    assert report.count(Outcome.PASSED) > 60


@pytest.mark.stress
@pytest.mark.not_for_onnxruntime("it refuses some of the node models, too")
@pytest.mark.parametrize("ep", [QNN, OPENVINO, VITISAI])
def test_a_shipped_ep_passes_the_whole_kit(ep):
    report = checked(ep, full=True)

    assert report.ok, report.text()
    assert report.count(Outcome.PASSED) > 100
