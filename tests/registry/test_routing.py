"""Routing: a node's source finds its EP by exact name; only names that differ by case
are asked.
"""

from __future__ import annotations

import sys

import pytest

from epctx_core import PluginState, Registry
from epctx_core.errors import PluginError


@pytest.fixture
def installed(packages):
    """Install a QNN-like EP that takes its names in any case, and one that only takes
    its own, exactly.
    """
    accepts = """
    @classmethod
    def accepts_source(cls, source):
        return source.lower() in ("qnn", "qnnexecutionprovider")
"""
    packages.install(
        "epctx-first", "QNNExecutionProvider", sources=["QNN"], body=accepts
    )
    packages.install("epctx-other", "OpenVINOExecutionProvider")
    return packages


def routed(source, among=None, registry=None):
    record = (registry or Registry()).route(source, among)
    return record.name if record else None


def imported():
    return {
        name
        for name in ("epctx_first", "epctx_other", "epctx_second")
        if name in sys.modules
    }


@pytest.mark.parametrize(
    ("source", "ep"),
    [
        ("QNNExecutionProvider", "QNNExecutionProvider"),
        ("QNN", "QNNExecutionProvider"),
        ("OpenVINOExecutionProvider", "OpenVINOExecutionProvider"),
        ("Nobody", None),
        ("", None),
        ("CPUExecutionProvider", None),
        ("OpenVINO", None),
    ],
)
def test_an_exact_name_or_source_key_is_routed_without_importing(installed, source, ep):
    assert routed(source) == ep
    assert imported() == set()


@pytest.mark.parametrize(
    "source", ["qnn", "Qnn", "qnnexecutionprovider", "QNNEXECUTIONPROVIDER"]
)
def test_a_source_in_another_case_is_taken_by_the_ep_that_accepts_it(installed, source):
    assert routed(source) == "QNNExecutionProvider"
    assert imported() == {"epctx_first"}


@pytest.mark.parametrize(
    "source", ["openvinoexecutionprovider", "OPENVINOEXECUTIONPROVIDER"]
)
def test_a_source_in_another_case_is_not_taken_by_an_ep_that_wants_its_exact_name(
    installed, source
):
    assert routed(source) is None
    assert imported() == {"epctx_other"}


def test_what_an_ep_would_accept_is_not_asked_where_no_name_is_alike(installed):
    greedy = (
        "    @classmethod\n    def accepts_source(cls, source):\n        return True\n"
    )
    module = installed.install("epctx-greedy", "GreedyExecutionProvider", body=greedy)

    assert routed("Nobody") is None
    assert module not in sys.modules


def test_an_exact_name_goes_before_another_eps_source_key(installed):
    installed.install(
        "epctx-thief", "ThiefExecutionProvider", sources=["OpenVINOExecutionProvider"]
    )

    assert routed("OpenVINOExecutionProvider") == "OpenVINOExecutionProvider"


def test_an_explicit_list_is_exhaustive_and_imports_nothing_else(installed):
    registry = Registry()
    openvino = registry.resolve("OpenVINO")

    assert routed("QNN", [openvino], registry) is None
    assert routed("qnn", [openvino], registry) is None
    assert routed("QNN", [], registry) is None
    assert (
        routed("OpenVINOExecutionProvider", [openvino], registry)
        == "OpenVINOExecutionProvider"
    )
    assert imported() == set()


def test_a_source_key_of_two_eps_goes_to_the_first_of_the_hosts_list(installed):
    installed.install("epctx-other", "OtherExecutionProvider", sources=["QNN"])
    registry = Registry()
    qnn, other = registry.resolve("QNN"), registry.resolve("Other")

    assert routed("QNN", [qnn, other], registry) == "QNNExecutionProvider"
    assert routed("QNN", [other, qnn], registry) == "OtherExecutionProvider"


def test_a_source_key_of_two_eps_is_an_error_where_the_host_gave_no_order(installed):
    installed.install("epctx-other", "OtherExecutionProvider", sources=["QNN"])

    with pytest.raises(PluginError, match="ambiguous") as caught:
        Registry().route("QNN")

    assert "QNNExecutionProvider (epctx-first 1.0)" in caught.value.message
    assert "OtherExecutionProvider (epctx-other 1.0)" in caught.value.message


def test_two_eps_that_both_accept_a_source_in_another_case_are_ambiguous_without_an_order(
    installed,
):
    installed.install("epctx-other", "QnnExecutionProvider", body=installed.any_case)
    registry = Registry()
    both = [
        registry.resolve("QnnExecutionProvider"),
        registry.resolve("QNNExecutionProvider"),
    ]

    with pytest.raises(PluginError, match="ambiguous"):
        registry.route("qnnexecutionprovider")

    assert routed("qnnexecutionprovider", both, registry) == "QnnExecutionProvider"


def test_an_ep_that_fails_to_import_when_asked_takes_nothing_and_the_next_one_is_asked(
    installed, caplog
):
    installed.install(
        "epctx-a-broken", "QnnExecutionProvider", code="raise SystemExit(1)"
    )
    registry = Registry()

    assert routed("qnnexecutionprovider", registry=registry) == "QNNExecutionProvider"
    assert registry.records()[-1].state is PluginState.BROKEN
    assert "SystemExit" in caplog.text


@pytest.mark.parametrize(
    "what", ["raise ValueError('odd source')", "raise SystemExit('odd source')"]
)
def test_an_ep_that_raises_when_asked_takes_nothing_and_the_error_says_why(
    packages, what
):
    body = f"    @classmethod\n    def accepts_source(cls, source):\n        {what}\n"
    packages.install("epctx-a", "AExecutionProvider", body=body)
    registry = Registry()

    assert registry.route("aexecutionprovider") is None
    why, _ = registry.explain_missing("aexecutionprovider")
    assert "odd source" in why
    assert "accepts_source" in why


def test_a_source_in_another_case_of_an_undecided_ep_is_an_error(installed):
    installed.install("epctx-second", "QNNExecutionProvider")

    with pytest.raises(PluginError, match=r"epctx-first 1\.0 and epctx-second 1\.0"):
        Registry().route("qnnexecutionprovider")

    assert imported() == {"epctx_first", "epctx_second"}, (
        "both are asked whether they are simulated"
    )


def test_a_broken_ep_takes_nothing(packages):
    packages.install("epctx-a", "A", code="1 / 0")
    registry = Registry()
    with pytest.raises(PluginError):
        registry.load(registry.resolve("A"))

    assert registry.route("A") is None
    assert "ZeroDivisionError" in registry.explain_missing("A")[0]
