"""Programs of others by onnxruntime and by epctx in its place: the two that are small.

`make hosts` runs all, in environments of their own.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from conformance.documented_numbers import PAGES
from hosts.answers import find_differences
from hosts.running import DROP_IN, compare
from hosts.scripts import list_hosts

HOSTS = list_hosts()
DAILY = ("magika_types", "pysilero_speech")


def installed(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@pytest.mark.parametrize("name", DAILY)
def test_a_program_answers_the_same_on_epctx_as_on_onnxruntime(name, tmp_path):
    host = HOSTS[name]
    if not installed(host.package):
        pytest.skip(f"{host.package} is not installed")
    outcome = compare(host, Path(sys.executable), (), tmp_path, through_contexts=False)
    assert outcome.problems == {DROP_IN: []}
    assert outcome.sessions
    assert outcome.values >= 10


def test_scripts_do_not_know_epctx_and_say_what_they_need():
    assert len(HOSTS) >= 8
    for host in HOSTS.values():
        text = host.script.read_text("utf-8")
        assert "epctx" not in re.sub(r"(?m)^# .*\n", "", text)
        assert any(host.package in needed for needed in host.dependencies)
        assert not (host.compiler and not host.networks)


def test_three_programs_at_least_go_through_context_models():
    assert sum(bool(host.compiler or host.writes) for host in HOSTS.values()) >= 3


def test_each_program_is_in_the_table_of_the_page():
    _, _, table = PAGES["hosts"].read_text("utf-8").partition("<!-- hosts: begin -->")
    rows = {line.split()[1] for line in table.splitlines() if line.startswith("| ")}
    assert {host.package for host in HOSTS.values()} <= rows


@pytest.mark.parametrize(
    ("expected", "found", "place"),
    [
        ({"a": [1, "x"]}, {"a": [1, "y"]}, ".a[1]"),
        ([0.5], [0.51], "[0]"),
        ([1], [1.0], "[0]"),
        ([1, 2], [1], ""),
        ({"a": 1}, {"b": 1}, ""),
        ([True], [1], "[0]"),
        (None, 0.0, ""),
    ],
)
def test_a_difference_is_found_with_its_place(expected, found, place):
    (difference,) = find_differences(expected, found)
    assert difference.startswith(f"{place}: ")


def test_floats_within_the_tolerance_are_equal():
    expected = {"scores": [0.5, 1000.0, 0.0, float("nan"), float("inf")]}
    found = {"scores": [0.5004, 1000.9, 0.00009, float("nan"), float("inf")]}
    assert not list(find_differences(expected, found))
