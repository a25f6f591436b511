"""The kit catches each plugin that lies, and finds nothing in one that does not."""

from __future__ import annotations

import importlib
import logging
import os
import random
import signal
import sys
import warnings

import numpy as np
import pytest
from conformance.fragile_ep import CarefulProvider, FragileProvider, GullibleProvider
from conformance.lying_plugins.describing import AnswersOnce, NumbersItsPayloads
from conformance.lying_plugins.table import all_lies
from conformance.lying_plugins.trusting import DiesOfItsHead
from conformance.thorough_ep import ThoroughProvider
from support.honest_ep import HonestProvider

from epctx_core.testing import (
    GROUPS,
    Outcome,
    Requirements,
    check_provider,
    chosen_checks,
)

LIES = all_lies()
IN_A_PROCESS = frozenset(
    check.name for check in chosen_checks(None) if check.group == "side_effects"
)
FIRST = {lie.check: lie for lie in reversed(LIES)}
SAMPLE = [
    lie for lie in LIES if lie.check not in IN_A_PROCESS or lie is FIRST[lie.check]
]
"""All, but of those that need a process of their own one for each check; `make stress`
runs the others, too.
"""
ENDLESS = """
import sys, threading
from support.honest_ep import HonestProvider

class EndlessProvider(HonestProvider):
    name = "EndlessExecutionProvider"

if "pytest" not in sys.modules:  # the suite itself has to come to an end
    threading.Thread(target=threading.Event().wait, name="acme driver").start()
"""
DAEMON = """
import os, pathlib, subprocess, sys
from support.honest_ep import HonestProvider

class DaemonProvider(HonestProvider):
    name = "DaemonExecutionProvider"

if "pytest" not in sys.modules:  # it inherits standard output and standard error
    daemon = subprocess.Popen(["sleep", "120"], start_new_session=True)
    with open(os.environ["DAEMONS"], "a") as file:
        print(daemon.pid, file=file)
"""
UNLICENSED = """
import sys
from support.honest_ep import HonestProvider

class UnlicensedProvider(HonestProvider):
    name = "UnlicensedExecutionProvider"

if "pytest" not in sys.modules:
    raise RuntimeError("no licence for a second process")
"""
PAYLOADS = (
    "it_refuses_a_truncated_payload",
    "it_refuses_a_damaged_payload_in_the_model",
    "it_loads_a_good_payload_after_a_refusal",
    "it_refuses_a_node_whose_graph_is_missing",
)
EXTENT = pytest.mark.parametrize(
    ("only", "least"),
    [
        pytest.param(PAYLOADS, len(PAYLOADS), id="some"),
        pytest.param(("payloads",), 12, id="all", marks=pytest.mark.stress),
    ],
)
"""Checks of payloads, each of which takes a process; and the least number of those that
pass.
"""
OWN_GROUPS = ("payloads", "values", "concurrency", "side_effects", "cancellation")


@pytest.fixture(autouse=True)
def host(tmp_path, monkeypatch):
    """Give lies a home and a current folder to write to, and put right afterwards what
    they do to the process.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    root, level = logging.getLogger(), logging.getLogger().level
    environment, path, numbers = dict(os.environ), list(sys.path), random.getstate()
    interrupt, errors = signal.getsignal(signal.SIGINT), np.geterr()
    with warnings.catch_warnings():
        yield
    root.setLevel(level)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    random.setstate(numbers)
    signal.signal(signal.SIGINT, interrupt)
    np.seterr(**errors)


def reasons(report):
    return {result.name: result.text for result in report.failed}


def test_there_is_a_lie_in_every_group_of_checks():
    groups = {check.name: check.group for check in chosen_checks(None)}

    assert {groups[lie.check] for lie in LIES} >= set(GROUPS)


@pytest.mark.parametrize("lie", SAMPLE, ids=repr)
def test_the_kit_catches_a_plugin_that_lies(lie):
    report = check_provider(
        lie.provider, requirements=Requirements(**lie.requirements), only=[lie.check]
    )

    (result,) = report.results
    assert result.outcome is Outcome.FAILED
    assert len(result.reason) > 20
    assert not report.ok


def test_an_ep_that_declares_that_its_compiles_differ_fails_no_check_of_what_is_written():
    declared = Requirements(deterministic=False, weight_sharing=False)

    report = check_provider(
        NumbersItsPayloads,
        requirements=declared,
        only=("determinism", "contexts", "nodes", "sharing"),
    )

    assert reasons(report) == {}
    skipped = {
        result.name for result in report.results if result.outcome is Outcome.SKIPPED
    }
    assert "a_second_compile_in_another_folder_gives_the_same_files" in skipped
    assert "it_describes_the_same_nodes_each_time" not in skipped


def test_an_ep_that_declares_it_describes_the_same_nodes_each_time_all_the_same():
    only = ("it_describes_the_same_nodes_each_time",)

    report = check_provider(
        AnswersOnce, requirements=Requirements(deterministic=False), only=only
    )

    assert reasons(report).keys() == set(only)


def test_the_kit_catches_a_plugin_whose_import_does_harm(monkeypatch):
    monkeypatch.delenv("ACME_HOME", raising=False)
    cls = importlib.import_module(
        "conformance.lying_plugins.at_import"
    ).ChangesTheHostAtImport
    monkeypatch.delenv("ACME_HOME")
    logging.getLogger().setLevel(logging.WARNING)

    report = check_provider(cls, only=["importing_the_ep_does_not_change_the_process"])

    assert "ACME_HOME" in report.failed[0].reason
    assert "root logger" in report.failed[0].reason


def test_the_kit_catches_a_plugin_whose_import_starts_a_thread_that_never_ends(
    tmp_path, monkeypatch
):
    (tmp_path / "endless_ep.py").write_text(ENDLESS, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    cls = importlib.import_module("endless_ep").EndlessProvider

    report = check_provider(
        cls,
        requirements=Requirements(seconds=60),
        only=[
            "importing_the_ep_does_not_change_the_process",
            "importing_the_ep_writes_nothing",
        ],
    )

    (failed,) = report.failed
    assert "threads that keep the process from ending (acme driver)" in failed.reason


def test_side_effects_of_a_plugin_that_another_process_cannot_import_fail_the_checks(
    tmp_path, monkeypatch
):
    (tmp_path / "unlicensed_ep.py").write_text(UNLICENSED, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    cls = importlib.import_module("unlicensed_ep").UnlicensedProvider

    report = check_provider(
        cls, only=["compiling_loading_and_running_start_no_program"]
    )

    (failed,) = report.failed
    assert (
        "failed in import: RuntimeError: no licence for a second process"
        in failed.reason
    )


def test_a_check_ends_with_the_process_that_it_watches_though_a_daemon_of_the_ep_lives_on(
    tmp_path, monkeypatch
):
    (tmp_path / "daemon_ep.py").write_text(DAEMON, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DAEMONS", str(tmp_path / "daemons"))
    cls = importlib.import_module("daemon_ep").DaemonProvider
    in_processes = [
        "importing_the_ep_does_not_change_the_process",
        "another_process_loads_what_this_one_compiled",
    ]

    report = check_provider(
        cls, requirements=Requirements(seconds=60), only=in_processes
    )

    daemons = (tmp_path / "daemons").read_text("utf-8").split()
    for daemon in daemons:
        # A kill fails if one has ended: there would have been nothing to wait for.
        os.kill(int(daemon), signal.SIGKILL)
    assert reasons(report) == {}
    assert len(daemons) == len(in_processes)


def test_what_ends_the_process_of_an_ep_is_named_with_its_last_words():
    report = check_provider(
        DiesOfItsHead, only=["it_refuses_a_payload_with_any_other_byte_in_its_head"]
    )

    (failed,) = report.failed
    assert failed.reason.startswith("a payload whose byte 0 of ")
    assert (
        "ends its process: the EP failed in another process (exit code -"
        in failed.reason
    )
    assert "needs_verified_payloads = True" in failed.hint


@EXTENT
def test_an_ep_that_needs_verified_payloads_may_end_its_process_at_a_damaged_one_and_the_report_says_so(
    only, least
):
    report = check_provider(FragileProvider, only=only)

    skipped = {r.name: r.reason for r in report.results if r.outcome is Outcome.SKIPPED}
    assert {name for name, _ in reasons(report).items()} == {
        "it_refuses_a_node_whose_graph_is_missing"
    }
    assert skipped["it_refuses_a_truncated_payload"] == (
        "a payload cut in half ends its process. The EP declares "
        "needs_verified_payloads: the core gives it no byte that is not checked."
    )
    assert len(report.results) >= least
    assert {
        "it_refuses_a_damaged_payload_in_the_model",
        "it_loads_a_good_payload_after_a_refusal",
    } < {*skipped}


def test_an_ep_that_needs_verified_payloads_may_compute_with_a_damaged_one_and_the_report_says_so():
    name = "it_refuses_a_damaged_payload_or_the_damage_does_no_harm"

    report = check_provider(GullibleProvider, only=[name])

    assert [result.outcome for result in report.results] == [Outcome.SKIPPED]
    assert "The EP declares needs_verified_payloads" in report.results[0].reason


@EXTENT
def test_an_ep_that_needs_verified_payloads_and_refuses_all_others_passes(only, least):
    report = check_provider(CarefulProvider, only=only)

    assert reasons(report) == {}
    assert report.count(Outcome.PASSED) >= least


def test_a_class_that_no_other_process_can_find_meets_no_damaged_payload():
    made = type("Made", (HonestProvider,), {"__module__": __name__})

    (result,) = check_provider(made, only=["it_refuses_a_truncated_payload"]).results

    assert result.outcome is Outcome.SKIPPED
    assert "another process cannot find" in result.reason


@pytest.mark.parametrize("group", OWN_GROUPS)
def test_a_plugin_that_keeps_the_contract_passes(group):
    report = check_provider(HonestProvider, only=[group])

    assert reasons(report) == {}
    assert report.count(Outcome.PASSED) >= 8


@pytest.mark.parametrize(
    "group", ["signatures", "claims", "nodes", "export", "sharing"]
)
def test_a_plugin_that_uses_the_whole_contract_passes(group):
    report = check_provider(
        ThoroughProvider, only=[group], requirements=Requirements(weight_sharing=False)
    )

    assert reasons(report) == {}
    assert report.count(Outcome.PASSED) >= 7


@pytest.mark.stress
@pytest.mark.not_for_onnxruntime("it refuses some of the node models, too")
@pytest.mark.parametrize("honest", [HonestProvider, ThoroughProvider])
def test_a_plugin_that_keeps_the_contract_passes_the_whole_kit(honest):
    stored_inline = Requirements(weight_sharing=False, seconds=900)

    report = check_provider(honest, full=True, requirements=stored_inline)

    assert reasons(report) == {}
    assert report.ok


@pytest.mark.stress
@pytest.mark.not_for_onnxruntime("it refuses some of the node models, too")
@pytest.mark.parametrize("lie", LIES, ids=repr)
def test_the_whole_kit_catches_a_plugin_that_lies_and_comes_to_its_end(lie):
    report = check_provider(
        lie.provider, requirements=Requirements(**{"seconds": 60, **lie.requirements})
    )

    assert lie.check in reasons(report)
    assert len(report.results) == len(chosen_checks(None))
