"""Table, report and test class of the kit; and the fault that each check has to
find.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conformance.faulty_eps.results import OffByALittle
from conformance.faulty_eps.table import all_faults
from conformance.kernel_ep import KernelProvider
from conformance.small_ep import SmallProvider
from conformance.thorough_ep import ThoroughProvider
from epctx_conformance.harness import disagreement
from support.pages import read_page
from support.small_models import chain

from epctx_core.plugin import (
    Compatibility,
    CompiledPartition,
    ExecutionProvider,
    hookimpl,
    supported_partitions,
)
from epctx_core.testing import (
    GROUPS,
    NEEDS,
    CheckResult,
    ConformanceReport,
    Outcome,
    ProviderConformance,
    Requirements,
    check_provider,
    chosen_checks,
)

pytestmark = pytest.mark.internal

FAULTS = all_faults()
SMALL = Requirements(share_groups=False, compatibility=False)
KERNELS = Requirements(partitions=False, export=False)


def reasons(report):
    return {result.title: result.text for result in report.failed}


# --- the table ------------------------------------------------------------------------


def test_there_are_more_than_a_hundred_checks_and_every_group_has_one():
    checks = chosen_checks()

    assert len(checks) >= 100
    assert {made.group for made in checks} == set(GROUPS)


def test_titles_are_sentences_without_their_full_stop():
    for made in chosen_checks():
        assert made.title == made.title.strip().rstrip(".")
        assert " " in made.title
        assert made.name.isidentifier()


def test_each_check_has_a_name_of_its_own_and_needs_that_an_author_can_declare():
    checks = chosen_checks()

    assert len({made.name for made in checks}) == len(checks)
    assert {need for made in checks for need in made.needs} <= NEEDS


def test_an_unknown_group_or_check_is_refused():
    with pytest.raises(ValueError, match="unknown group or check wishes"):
        check_provider(SmallProvider, only=["wishes"])


class OnlyRuns(ExecutionProvider):
    """EP with only the two hooks that running models needs."""

    name = "OnlyRunsExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(
            graph,
            lambda node: not node.domain and node.op_type in {"Add", "Mul", "Relu"},
        )

    @hookimpl
    def compile(self, partitions):
        made = [
            self.context.engine.prepare(each.model(inline_weights=True))
            for each in partitions
        ]
        return [CompiledPartition(each.run, close=each.close) for each in made]


# --- EPs that keep the contract -------------------------------------------------------


SAMPLE = (
    "signatures",
    "claims",
    "partitions",
    "boundaries",
    "contexts",
    "nodes",
    "export",
)
"""The groups that run with every suite; the small EP's own test class and the faults
run others.
"""


@pytest.mark.parametrize(
    ("provider", "requirements"),
    [(SmallProvider, SMALL), (KernelProvider, KERNELS)],
    ids=["small", "kernels"],
)
@pytest.mark.parametrize(
    "only",
    [SAMPLE, pytest.param(None, marks=pytest.mark.stress)],
    ids=["sample", "whole"],
)
def test_an_ep_that_keeps_the_contract_passes(provider, requirements, only):
    report = check_provider(provider, requirements=requirements, only=only)

    assert not reasons(report)
    assert report.ok


def test_the_hint_for_an_ep_that_cannot_save_is_how_to_declare_it():
    report = check_provider(OnlyRuns, only=["one_block_gives_the_right_results"])

    (failed,) = report.failed
    assert "has no get_ep_context_nodes hook" in failed.reason
    assert "Requirements(export=False)" in failed.hint
    assert "--without export" in failed.hint


class OpensPayloads(ThoroughProvider):
    """Opens each payload once, however many nodes it is for."""

    name = "OpeningExecutionProvider"

    @hookimpl
    def load_context(self, nodes, reader):
        opened = {id(reader.payload(node)) for node in nodes}
        if len(opened) != 1:
            raise ValueError(f"one payload was opened {len(opened)} times")
        return super().load_context(nodes, reader)


def test_an_ep_that_opens_a_payload_once_for_all_its_nodes_may_do_so_in_every_check():
    report = check_provider(OpensPayloads, only=["nodes"])

    assert reasons(report) == {}


class TakesOnlyItsVendorsOperators(OnlyRuns):
    """Takes no node of the kit's models, and supports every text."""

    name = "ParticularExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.domain == "acme")

    @classmethod
    def validate_compatibility(cls, info, options):
        return Compatibility.EP_SUPPORTED_OPTIMAL


def test_verdicts_on_foreign_texts_are_checked_though_the_ep_takes_none_of_the_kits_models():
    report = check_provider(
        TakesOnlyItsVendorsOperators,
        only=["it_does_not_claim_to_support_what_it_cannot_read"],
    )

    (failed,) = report.failed
    assert "is <Compatibility.EP_SUPPORTED_OPTIMAL" in failed.reason


OTHER_PROCESSES = (
    "another_process_loads_what_this_one_compiled",
    "it_compiles_out_of_process",
    "another_process_with_another_hash_seed_gives_the_same_files",
)


def outcomes(provider):
    report = check_provider(provider, requirements=SMALL, only=OTHER_PROCESSES)
    return {result.name: result.outcome.value for result in report.results}


def test_an_ep_of_a_module_on_no_path_is_checked_from_its_file_and_not_isolated(
    monkeypatch,
):
    # As `pytest --import-mode=importlib` leaves a test's module.
    name = "acme_tests.test_acme_ep"
    spec = importlib.util.spec_from_file_location(
        name, Path(__file__).parent / "conformance" / "small_ep.py"
    )
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)

    assert outcomes(module.SmallProvider) == {
        OTHER_PROCESSES[0]: "passed",
        OTHER_PROCESSES[1]: "skipped",
        OTHER_PROCESSES[2]: "passed",
    }


def test_an_ep_of_a_module_on_a_path_is_isolated():
    assert outcomes(SmallProvider) == dict.fromkeys(OTHER_PROCESSES, "passed")


def test_without_the_package_for_isolation_the_check_that_needs_it_is_skipped(
    monkeypatch,
):
    monkeypatch.setattr(
        "epctx_conformance.checks.contexts.find_spec", lambda _name: None
    )

    report = check_provider(
        SmallProvider, requirements=SMALL, only=OTHER_PROCESSES[1:2]
    )

    assert [(r.outcome.value, r.reason) for r in report.results] == [
        ("skipped", "epctx-isolation is not installed")
    ]


@pytest.mark.parametrize("module", [__name__, "__main__"], ids=["factory", "script"])
def test_a_class_that_no_other_process_can_find_is_checked_in_none(module, monkeypatch):
    made = type(
        "Made",
        (SmallProvider,),
        {"name": "MadeExecutionProvider", "__module__": module},
    )
    if module == "__main__":
        monkeypatch.setattr(sys.modules["__main__"], "Made", made, raising=False)

    assert outcomes(made) == dict.fromkeys(OTHER_PROCESSES, "skipped")


# --- EPs with a fault -----------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_its_check(name):
    provider, seen_by, requirements = FAULTS[name]

    report = check_provider(
        provider, requirements=Requirements(**requirements), only=seen_by
    )

    assert {result.name: result.outcome for result in report.results} == dict.fromkeys(
        seen_by, Outcome.FAILED
    )
    assert all(result.reason for result in report.results)


CHECKS_OTHER_THINGS = {
    "boundaries": set(),
    "contexts": {"verification_finds_no_error_in_its_context_model"},
    "nodes": {"each_attribute_of_its_nodes_comes_back_as_it_was_written"},
    "sharing": {
        "a_discarded_group_leaves_nothing",
        "the_same_group_gives_the_same_bytes",
    },
}
"""By group, the checks that do not compare results."""


@pytest.mark.parametrize("group", CHECKS_OTHER_THINGS)
def test_wrong_results_fail_every_check_that_compares_results(group):
    report = check_provider(
        OffByALittle, only=[group], requirements=Requirements(weight_sharing=False)
    )

    passed = {
        result.name for result in report.results if result.outcome is Outcome.PASSED
    }
    assert passed == CHECKS_OTHER_THINGS[group]


# --- reports --------------------------------------------------------------------------


def test_a_report_says_what_failed_why_and_what_to_do():
    report = check_provider(FAULTS["DeniesItself"][0], only=["signatures"])

    (failed,) = report.failed
    assert not report.ok
    assert "accepts_source('SmallExecutionProvider') is not True" in failed.reason
    assert failed.hint in report.text()
    assert f"FAILED  {failed.title}" in report.text()
    assert "Native code is not seen" in report.text()
    assert "1 failed" in report.summary()


def test_a_brief_report_has_what_failed_and_counts_the_skipped_by_reason():
    outcomes = {Outcome.PASSED: [""] * 5, Outcome.FAILED: ["it lies"]}
    outcomes[Outcome.SKIPPED] = ["no a."] * 3 + ["no b"] * 2 + ["no c", "no d", "no e"]
    results = tuple(
        CheckResult(
            group="claims",
            name=f"{outcome.value}_{number}",
            title=f"{outcome.value} {number}",
            outcome=outcome,
            reason=reason,
        )
        for outcome, reasons in outcomes.items()
        for number, reason in enumerate(reasons)
    )

    report = ConformanceReport(ep="Acme", vendor="", results=results)

    assert report.text(brief=True).splitlines()[:-2] == [
        "Conformance of Acme",
        "",
        "claims",
        "  FAILED  failed 0",
        "            it lies",
        "",
        "Skipped 8 checks: no a (3); no b (2); no c (1); other reasons (2).",
        "",
        "failed",
        "  failed_0",
        "",
    ]
    assert "passed 0" in report.text()


def test_a_report_is_json_with_a_schema():
    report = check_provider(SmallProvider, requirements=SMALL, only=["signatures"])

    found = json.loads(json.dumps(report.as_dict()))

    assert found["schema"] == 1
    assert found["ok"] is True
    assert found["ep"] == "SmallExecutionProvider"
    assert sum(found["counts"].values()) == len(found["checks"])
    assert found["checks"][0].keys() == {
        "group",
        "name",
        "title",
        "outcome",
        "reason",
        "hint",
        "seconds",
    }


def test_checks_of_an_ability_that_the_author_declares_missing_are_skipped_with_this_reason():
    report = check_provider(SmallProvider, requirements=SMALL, only=["sharing"])

    assert {result.outcome for result in report.results} == {Outcome.SKIPPED}
    assert {result.reason for result in report.results} == {
        "its author declares Requirements(share_groups=False)"
    }
    assert not report.ok


def test_an_ep_that_its_machine_lacks_fails_one_check_and_the_later_ones_are_skipped():
    report = check_provider(FAULTS["HasNoDevice"][0])

    assert [result.name for result in report.failed] == [
        "it_is_available_on_this_machine"
    ]
    assert {r.reason for r in report.results if r.group == "payloads"} == {
        "it cannot run here: no NPU was found"
    }


def test_an_error_of_an_ep_is_a_failed_check_that_names_the_hook():
    class Broken(SmallProvider):
        @hookimpl
        def get_capability(self, graph):
            raise SystemExit(3)

    report = check_provider(Broken, only=["claims"])

    assert report.failed
    assert any("get_capability" in result.text for result in report.failed)


def test_a_class_that_is_not_an_ep_gets_a_report():
    report = check_provider(int, only=["signatures"])

    assert not report.ok
    assert "not a subclass" in report.results[0].reason


def test_an_ep_that_does_not_return_fails_the_check():
    class Sleeping(SmallProvider):
        @hookimpl
        def compile(self, partitions):
            time.sleep(1.5)
            return super().compile(partitions)

    report = check_provider(
        Sleeping,
        requirements=Requirements(seconds=0.5),
        only=["a_chain_gives_the_right_results"],
    )

    assert report.failed[0].reason == "the check was not over after 0.5 s"
    time.sleep(1.5)  # until the thread that was left behind is done


def test_progress_is_called_with_each_result():
    seen = []

    report = check_provider(
        SmallProvider, requirements=SMALL, only=["signatures"], progress=seen.append
    )

    assert tuple(seen) == report.results


def test_models_of_its_author_replace_the_kits_own():
    class Particular(SmallProvider):
        @hookimpl
        def get_capability(self, graph):
            return super().get_capability(graph) if graph.name == "particular" else []

    model = chain(["Relu", "Add", "Relu"])
    model.graph.name = "particular"

    without = check_provider(
        Particular, requirements=SMALL, only=["it_takes_at_least_one_node_of_a_model"]
    )
    given = check_provider(
        Particular,
        requirements=SMALL,
        models=[model.SerializeToString()],
        only=["claims", "contexts", "determinism"],
    )

    assert without.failed
    assert not reasons(given)
    assert given.count(Outcome.PASSED) > 15


# --- the test class -------------------------------------------------------------------


class TestSmallProvider(ProviderConformance):
    provider = SmallProvider
    requirements = SMALL
    only = ("signatures", "claims", "determinism")


def test_a_test_class_has_a_test_for_each_check():
    expected = {
        f"test_{made.name}"
        for made in chosen_checks()
        if made.group in TestSmallProvider.only
    }

    assert {
        name for name in dir(TestSmallProvider) if name.startswith("test_")
    } == expected


def test_a_test_class_fails_with_what_the_check_says(tmp_path):
    (tmp_path / "test_faulty.py").write_text(
        textwrap.dedent(
            """
            from conformance.faulty_eps.signatures import DeniesItself
            from epctx_core.testing import ProviderConformance

            class TestFaulty(ProviderConformance):
                provider = DeniesItself
                only = ("signatures",)
            """
        )
    )

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "accepts_source('SmallExecutionProvider') is not True" in done.stdout
    assert "1 failed" in done.stdout


def test_importing_the_kit_imports_neither_pytest_nor_onnx():
    code = (
        "import sys, epctx_conformance; print(sorted({'pytest', 'onnx', 'numpy'} & "
        "set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


# --- its page -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [GROUPS, NEEDS | {"tolerance", "seconds"}], ids=["groups", "requirements"]
)
def test_the_page_names_every_group_and_requirement(names):
    page = read_page("conformance.md")

    assert not [name for name in names if f"`{name}`" not in page]


@pytest.mark.parametrize(("difference", "agrees"), [(2**-8, True), (2**-7, False)])
def test_bfloat16_results_may_differ_by_their_last_digit(difference, agrees):
    expected = np.array([0.75, 0.5], ml_dtypes.bfloat16)
    result = np.array([0.75 + difference, 0.5], ml_dtypes.bfloat16)

    assert (disagreement([result], [expected], tolerance=1e-3) is None) is agrees
    assert disagreement([result], [expected], tolerance=0.0) is not None
