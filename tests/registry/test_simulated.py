"""Real and simulated EPs of one name: which is used, when it is asked, and what is said
about the other.
"""

from __future__ import annotations

import logging
import sys

import pytest

import epctx_core as epctx
from epctx_core.errors import PluginError

EP = "QNNExecutionProvider"
SIMULATED = "    simulated = True\n"


@pytest.fixture
def real(packages):
    packages.install("acme-qnn", EP, version="2.0")
    return packages


def imported():
    return {name for name in ("acme_qnn", "acme_sim") if name in sys.modules}


def states(registry):
    return {
        record.distribution: (record.state.value, record.simulated)
        for record in registry.records()
    }


@pytest.mark.parametrize(
    ("said", "known"),
    [("true", True), ("false", False), ("maybe", None), (None, None)],
)
def test_metadata_say_without_an_import_whether_an_ep_is_simulated(
    packages, said, known
):
    packages.install("labs-qnn", EP, simulated=said)

    (record,) = epctx.Registry().records()

    assert (record.simulated, record.state) == (known, epctx.PluginState.DISCOVERED)


def test_a_real_ep_is_used_before_a_simulated_one_which_is_not_imported(real, caplog):
    real.install("epctx-sim-qnn", EP, code="1 / 0", simulated="true")
    caplog.set_level(logging.INFO, "epctx")
    registry = epctx.Registry()

    record = registry.resolve("qnn")

    assert (record.distribution, record.state) == ("acme-qnn", epctx.PluginState.LOADED)
    assert registry.route(EP).distribution == "acme-qnn"
    assert registry.available() == [EP, "CPUExecutionProvider"]
    (notice,) = caplog.records
    assert notice.levelname == "INFO"
    assert notice.getMessage() == (
        f"{EP} (acme-qnn 2.0) is used; epctx-sim-qnn 1.0 is simulated. "
        f"To use that one, name it as '<distribution>:{EP}'."
    )


def test_a_simulated_ep_that_only_its_class_tells_is_asked(real):
    real.install("acme-sim", EP, body=SIMULATED)
    registry = epctx.Registry()
    before = states(registry), imported()

    assert registry.available() == [EP, "CPUExecutionProvider"]

    assert before == (
        {"acme-qnn": ("duplicate", None), "acme-sim": ("duplicate", None)},
        set(),
    )
    assert states(registry) == {
        "acme-qnn": ("loaded", False),
        "acme-sim": ("duplicate", True),
    }
    (passed,) = [
        record for record in registry.records() if record.distribution == "acme-sim"
    ]
    assert passed.reason == "it is simulated, and acme-qnn 2.0 is not"


def test_the_simulated_one_can_be_named_or_preferred(real, caplog):
    real.install("epctx-sim-qnn", EP, simulated="true")
    caplog.set_level(logging.INFO, "epctx")
    registry = epctx.Registry()

    named = registry.resolve("epctx-sim-qnn:QNN")
    registry.prefer(EP, distribution="epctx-sim-qnn")

    assert named.distribution == registry.resolve(EP).distribution == "epctx-sim-qnn"
    assert caplog.messages == []
    assert "acme_qnn" not in imported()


@pytest.mark.parametrize(
    "kinds", [("", ""), (SIMULATED, SIMULATED)], ids=["real", "simulated"]
)
def test_two_of_one_kind_stay_a_question_to_the_host(packages, kinds):
    for distribution, body in zip(("acme-qnn", "acme-sim"), kinds, strict=True):
        packages.install(distribution, EP, body=body)
    registry = epctx.Registry()

    with pytest.raises(
        PluginError, match=r"ambiguous: acme-qnn 1\.0 and acme-sim 1\.0 provide"
    ) as caught:
        registry.resolve(EP)

    assert "EPCTX_PREFER" in caught.value.hint


def test_a_simulated_one_does_not_silently_replace_a_broken_one(packages):
    packages.install("acme-qnn", EP, code="raise OSError('no driver')")
    packages.install("epctx-sim-qnn", EP, simulated="true")

    with pytest.raises(
        PluginError, match=r"acme-qnn 1\.0.*broken.*no driver"
    ) as caught:
        epctx.Registry().resolve(EP)

    assert "keep it out with EPCTX_DISABLE_PLUGINS=acme-qnn" in caught.value.hint


def test_the_metadata_of_an_ep_says_whether_it_is_simulated(packages):
    packages.install("acme-qnn", EP)
    packages.install("acme-sim", "OtherExecutionProvider", body=SIMULATED)
    registry = epctx.Registry()

    said = [
        epctx.get_ep_metadata(ep, registry=registry)["simulated"]
        for ep in ("QNN", "Other", "CPU")
    ]

    assert said == ["0", "1", "0"]
